// A name for everything that KV contents depend on beside the tokens: two processes whose names are the same may exchange
// KV blocks.
#pragma once

#include <string>

#include "base/status.h"
#include "weights/tensor_source.h"

namespace cachalot {

// How much of the weights is looked at.
enum class WeightsSeen {
  kBeginnings,  // of every tensor: costs next to nothing where they are mapped
  kSmall,       // small tensors whole, others not at all: where reading one is dear
  kAll,         // every byte: for what outlives the process
};

// Every tensor's name, type and shape count, and so much of the weights. kv_types: KvChoice::Name.
Result<std::string> KvIdentity(const std::string& architecture, const TensorSource& source, WeightsSeen seen,
                               const std::string& kv_types, int32_t block_tokens);
// What else the bits depend on, where another process made them: this program, the library of the GPU's kernels, and the model's
// configuration. path: a GGUF file or a folder; "": generated. library: known by its build id, which names all that is in it, or
// by its bytes where it has none; "": none.
Result<std::string> KvOrigin(const std::string& path, const std::string& library);

}  // namespace cachalot
