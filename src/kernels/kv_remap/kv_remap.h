// KvRemap: quantised keys and values into pages of plain F16 or BF16, the layout that foreign attention kernels read.
//
// A tensor holds one kind of vector (keys, values, or MLA's rotary part). Its rows are named by an outer index (a block of a
// cache, or a sequence), a head and a token; each is decoded, turned back where it was rotated, given its mean, and rounded.
// No NaN and no infinity comes out: what is no number is 0, and what is too large for the type becomes its largest value.
// The caller has checked that the planes' strides stay within memory; page tables are checked here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/exec_context.h"

namespace cachalot {

class Status;

inline constexpr int32_t kMaxRemapDim = 1024;
inline constexpr int32_t kRemapChunk = 8;  // values that surely share a scale

enum class KvRemapCode : uint8_t {
  kInt4,      // unsigned, (code - zero) · scale; byte i holds value 2 i in its low half, 2 i + 1 in its high half
  kInt6,      // the same of six bits: four values in three bytes, the first one in the lowest bits
  kInt4Unit,  // the order of quant/kv_code.h
  kInt6Unit,
  kInt8,      // signed
  kE4M3,
  kF16,
  kBF16,
};

enum class KvRemapScale : uint8_t {
  kOne,      // one for the tensor: KvRemapTensor::scale
  kF32,
  kF16,
  kBF16,
  kF32Zero,  // F32 whose four lowest bits are the zero point
};

struct KvRemapPlane {
  const std::byte* data = nullptr;
  int64_t outer = 0;  // strides in bytes
  int64_t head = 0;
  int64_t token = 0;
};

struct KvRemapTensor {
  KvRemapCode code = KvRemapCode::kF16;
  KvRemapScale scale_type = KvRemapScale::kOne;
  int32_t dim = 0;       // 1 … kMaxRemapDim
  int32_t group = 0;     // values that share a scale: a multiple of 8, or at least dim
  int32_t rotation = 1;  // quant/kv_rotate.h
  float scale = 1;
  float zero = 0;
  KvRemapPlane main;
  KvRemapPlane high;     // kInt6Unit
  KvRemapPlane scales;
  const float* mean = nullptr;  // [num_heads, dim] or null
  int64_t mean_head = 0;        // stride in values
  uint16_t* out = nullptr;
  int64_t out_page = 0;  // strides in values
  int64_t out_head = 0;
  int64_t out_token = 0;
};

// Which pages hold a sequence. Without indptr: sequence b is the page b, all of whose tokens are there.
struct KvRemapTable {
  const int32_t* indptr = nullptr;     // [batch + 1]
  const int32_t* indices = nullptr;    // [num_indices]
  const int32_t* last_page = nullptr;  // [batch], tokens of the last page: 1 … page_tokens
  int64_t num_indices = 0;
  int64_t num_pages = 0;               // that there are: an index is below
  int32_t page_tokens = 0;
};

inline constexpr int kMaxRemapTensors = 2;

struct KvRemapParams {
  KvRemapTensor tensors[kMaxRemapTensors];
  int32_t num_tensors = 0;
  int32_t batch = 0;
  int32_t num_heads = 0;
  bool to_bf16 = false;  // else F16
  KvRemapTable from;     // with an indptr only if `to` has one
  KvRemapTable to;       // the same lengths; without indptr of `from`, at most its page_tokens each
  int32_t* fault = nullptr;  // CUDA, device memory: becomes 1 where a table is not as it must be; may be null
};

// CPU: kInvalidArgument when a table is not as it must be; then nothing is written.
Status KvRemap(const ExecContext& ctx, const KvRemapParams& params);

// Bytes of a row of the main plane, of the high plane, and of all its scales.
int64_t KvRemapMainBytes(KvRemapCode code, int32_t dim);
int64_t KvRemapHighBytes(KvRemapCode code, int32_t dim);
int64_t KvRemapScaleSize(KvRemapScale type);  // of one; 0 for kOne

}  // namespace cachalot
