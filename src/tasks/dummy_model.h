// `dummy`: writes a model with generated weights to a file or folder.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tasks/dummy_gguf.h"

namespace cachalot {

struct DummyRequest {
  std::string spec;
  int32_t layers = 0;      // 0: the model's own
  std::string type = {};   // "": the spec's own
  std::string vocab = {};  // a GGUF file or a folder to take the vocabulary from; "": a generated one
  std::string out;         // *.gguf is a file, anything else a folder
};

struct DummyReport {
  DType type = DType::kBF16;
  int32_t layers = 0;
  int32_t vocab_size = 0;
};

Result<DummyReport> WriteDummy(const DummyRequest& request, const WriteProgress& progress);

}  // namespace cachalot
