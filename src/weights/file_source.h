// Weights from files: GGUF or safetensors, mapped (default) or read tensor by tensor (--no-mmap).
#pragma once

#include <memory>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "weights/tensor_source.h"

namespace cachalot {

struct FileSourceOptions {
  bool use_mmap = true;
};

Result<std::unique_ptr<TensorSource>> MakeGgufSource(std::shared_ptr<const GgufFile> file, FileSourceOptions options);
Result<std::unique_ptr<TensorSource>> MakeSafetensorsSource(std::shared_ptr<const SafetensorsFolder> folder,
                                                            FileSourceOptions options);

}  // namespace cachalot
