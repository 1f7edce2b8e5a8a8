// Element types. Block-quantised types keep `block_size` values in `block_bytes` bytes; plain ones are blocks of one.
// Byte layouts of the quantised blocks: quant/<format>.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace cachalot {

enum class DType : uint8_t {
  kF32, kF16, kBF16, kF64, kI8, kU8, kI16, kI32, kI64, kBool,
  kFP8E4M3,  // OCP E4M3 (±448, no infinity); 128x128 block scales travel beside it
  kFP8E5M2,
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ8_1,
  kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kQ8_K,
  kIQ2_XXS, kIQ2_XS, kIQ3_XXS, kIQ1_S, kIQ4_NL, kIQ3_S, kIQ2_S, kIQ4_XS, kIQ1_M,
  kTQ1_0, kTQ2_0, kMXFP4, kNVFP4, kQ1_0,
};
inline constexpr int kNumDTypes = static_cast<int>(DType::kQ1_0) + 1;

struct DTypeInfo {
  DType dtype;
  const char* name;     // as people write it: "F16", "Q4_K"
  int32_t block_size;   // values in a block
  int32_t block_bytes;
  int32_t ggml_type;    // the number in a GGUF file, -1 when GGUF has none
};

const DTypeInfo& GetDTypeInfo(DType dtype);
inline const char* DTypeName(DType dtype) { return GetDTypeInfo(dtype).name; }
inline bool IsQuantized(DType dtype) { return GetDTypeInfo(dtype).block_size > 1; }
// The type of a GGUF file's type number; a number that no known GGUF version uses is kUnsupported.
Result<DType> DTypeFromGgml(uint32_t ggml_type);
// "f16", "F16", "q4_0", …; kInvalidArgument names the choices.
Result<DType> ParseDType(std::string_view name);

// Bytes of `count` values; count must be a multiple of the block size (CHECKed).
int64_t DTypeBytes(DType dtype, int64_t count);

}  // namespace cachalot
