// ImportanceCollector: while a model runs over a text, the squares of what every weight is multiplied with, summed by
// column: what an importance matrix is made of. It must be set before the model is loaded (ScopedMatmulTap), and sees
// CPUs only. The head and the embedding are left out, as llama.cpp does it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/matmul/matmul_tap.h"

namespace cachalot {

class ImportanceCollector final : public MatmulTap {
 public:
  void OnMatrix(const PackedMatrix& matrix, const std::string& name, int32_t idx, int32_t count) override;
  void OnRows(const MatmulGroup& group) override;

  struct Sums {
    std::vector<float> squares;  // [matrices, columns]
    std::vector<float> counts;   // [matrices]: rows
    int64_t columns = 0;
  };
  // By tensor name as GGUF has it, ascending.
  std::map<std::string, Sums> Take() const;
  // A row with a value that is no finite number was seen, in this tensor ("": none).
  const std::string& bad_tensor() const { return bad_tensor_; }

 private:
  struct Slice {
    std::string name;
    int32_t idx = 0, count = 1;
  };
  struct Matrix {
    std::vector<Slice> slices;
    std::vector<double> squares;
    int64_t rows = 0;
  };
  std::map<const std::byte*, Matrix> matrices_;
  std::string bad_tensor_;
};

// As GGUF (general.type "imatrix"), which `quantize --imatrix` and llama.cpp read.
Status WriteImportance(const std::string& path, const ImportanceCollector& collector, const std::string& dataset,
                       int64_t num_chunks, int64_t chunk_tokens);

}  // namespace cachalot
