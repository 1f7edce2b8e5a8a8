// A name for everything that KV contents depend on beside the tokens: two processes whose names are the same may exchange
// KV blocks.
#pragma once

#include <string>

#include "base/status.h"
#include "weights/tensor_source.h"

namespace cachalot {

// Every tensor's name, type and shape count, and of the weights themselves what costs next to nothing: the beginning of
// every tensor that is mapped, and small tensors whole. kv_types: KvChoice::Name.
Result<std::string> KvIdentity(const std::string& architecture, const TensorSource& source, bool mapped,
                               const std::string& kv_types, int32_t block_tokens);

}  // namespace cachalot
