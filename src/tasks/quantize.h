// A GGUF file or a Hugging Face folder to a GGUF file in other types. Memory: the chunk being written (8 MiB, or one row if that is larger), a row
// of F32 a thread, and the importance matrix; it does not grow with the model. The output appears whole or
// not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tasks/quantize_recipe.h"

namespace cachalot {

struct QuantizeRequest {
  std::string in;                 // a GGUF file, or a folder with config.json and safetensors files
  std::string out;
  QuantizeChoices choices = {};
  std::string importance = {};    // a file, or ""
  bool allow_requantize = false;  // values that have been quantised before, of which some quality is gone
  int32_t num_threads = 0;        // 0: as many as physical cores
};

struct QuantizedTensor {
  std::string name;
  DType from = DType::kF32, to = DType::kF32;
  int64_t from_bytes = 0, to_bytes = 0;
  bool weighted = false;  // the importance matrix has it
};
struct QuantizeReport {
  std::vector<QuantizedTensor> tensors;
  int64_t from_bytes = 0, to_bytes = 0;
  std::vector<std::string> warnings;  // a line each: what was most likely not meant
};

// What would be done, without reading a weight.
Result<QuantizeReport> PlanQuantize(const QuantizeRequest& request);

// Called now and then with the bytes written so far and in all; false stops the work (kCancelled).
using QuantizeProgress = std::function<bool(int64_t done_bytes, int64_t total_bytes)>;
// Told what PlanQuantize would say, before anything is written.
using QuantizePlanned = std::function<void(const QuantizeReport& report)>;
Result<QuantizeReport> Quantize(const QuantizeRequest& request, const QuantizeProgress& progress, const QuantizePlanned& planned = nullptr);

}  // namespace cachalot
