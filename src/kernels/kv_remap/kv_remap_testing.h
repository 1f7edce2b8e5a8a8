// Cases of KvRemap for tests: a source of random codes with gaps, tables of shuffled pages, poisoned output, and what should
// come out by the plain formulas. The tests of the CPU and of the GPU share them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/common/testing.h"
#include "kernels/kv_remap/kv_remap.h"
#include "tensor/float_convert.h"

namespace cachalot {

inline constexpr KvRemapCode kRemapCodes[] = {KvRemapCode::kInt4, KvRemapCode::kInt6, KvRemapCode::kInt4Unit, KvRemapCode::kInt6Unit,
                                              KvRemapCode::kInt8, KvRemapCode::kE4M3, KvRemapCode::kF16,      KvRemapCode::kBF16};
inline constexpr KvRemapScale kRemapScales[] = {KvRemapScale::kOne, KvRemapScale::kF32, KvRemapScale::kF16, KvRemapScale::kBF16,
                                                KvRemapScale::kF32Zero};

struct RemapShape {
  KvRemapCode code = KvRemapCode::kInt8;
  KvRemapScale scale = KvRemapScale::kOne;
  int32_t dim = 64;
  bool to_bf16 = false;
  int32_t heads = 2;
  std::vector<int32_t> lengths = {5, 5};  // from_page and to_page 0: all as the longest
  int32_t from_page = 0;                  // 0: without a table
  int32_t to_page = 0;
  bool nhd = false;
  bool rotated = false;                   // by as much as fits, and with a mean
};

struct RemapTestTable {
  std::vector<int32_t> indptr, indices, last_page;
  int32_t num_pages = 0, page_tokens = 0;
  bool given = false;
  KvRemapTable View() const;
};

class RemapCase {
 public:
  static RemapCase Random(TestRng* rng, const RemapShape& shape);
  static RemapCase OneRow(KvRemapCode code, int32_t dim, float zero);  // scale 1
  void SetRow(std::span<const uint8_t> main, std::span<const uint8_t> high, std::span<const uint8_t> scales);

  std::string Name() const;
  KvRemapParams Params();  // in host memory
  std::vector<uint16_t> Run(Isa isa) {
    Poison();
    const TestContext context(isa);
    const Status status = KvRemap(context, Params());
    CHECK(status.ok()) << status.ToString();
    return Result();
  }
  void Poison();
  std::vector<uint16_t> Result();  // `out` without its guards
  // By the formulas, where the output lies; NaN where nothing is written.
  std::vector<float> Want() const;
  // "" when `got` is `want` rounded, and poison where that is NaN.
  std::string FirstWrong(std::span<const uint16_t> got, std::span<const float> want) const;
  bool Intact() const { return intact_; }
  bool Untouched() const;

  RemapTestTable from, to;
  std::vector<std::byte> main, high, scales;  // whole planes
  std::vector<float> mean;
  std::vector<uint16_t> out;
  KvRemapTensor tensor;  // strides; pointers are set by Params
  RemapShape shape;

 private:
  bool intact_ = true;
};

}  // namespace cachalot
