// Embed: one block a token, one thread a value at a time. Decodes are those of quant/<format>.h, bit for bit.
#include <cuda_fp8.h>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/value.cuh"
#include "kernels/embed/embed_cuda.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct PlainRow {
  const T* row;
  __device__ PlainRow(const CudaEmbedParams& p, int64_t id) : row(static_cast<const T*>(p.table) + id * p.dim) {}
  __device__ float operator()(int64_t i) const { return ToF32(row[i]); }
};

struct Fp8Row {
  const uint8_t* row;
  const float* scales;
  __device__ Fp8Row(const CudaEmbedParams& p, int64_t id)
      : row(static_cast<const uint8_t*>(p.table) + id * p.dim),
        scales(p.block_scales == nullptr ? nullptr
                                         : p.block_scales + id / p.block_scale_rows * ((p.dim + 127) / 128)) {}
  __device__ float operator()(int64_t i) const {
    const float value =
        __half2float(static_cast<__half>(__nv_cvt_fp8_to_halfraw(row[i], __NV_E4M3)));  // exact: E4M3 fits in F16
    return scales == nullptr ? value : __fmul_rn(value, scales[i / 128]);
  }
};

__device__ float F16At(const uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
}

// Blocks of 32 values in `kBytes` bytes; every block size is even, so that the F16 values are aligned.
template <int kBytes>
struct BlockRow {
  const uint8_t* row;
  __device__ BlockRow(const CudaEmbedParams& p, int64_t id)
      : row(static_cast<const uint8_t*>(p.table) + id * (p.dim / 32) * kBytes) {}
  __device__ float operator()(int64_t i) const {
    const uint8_t* block = row + i / 32 * kBytes;
    const int j = static_cast<int>(i % 32);
    const float scale = F16At(block);
    if constexpr (kBytes == 34) {  // Q8_0
      return __fmul_rn(static_cast<float>(static_cast<int8_t>(block[2 + j])), scale);
    } else {
      constexpr int kHeader = kBytes - 16;
      const int q = j < 16 ? block[kHeader + j] & 0xf : block[kHeader + j - 16] >> 4;
      if constexpr (kBytes == 18) return __fmul_rn(static_cast<float>(q - 8), scale);           // Q4_0
      return __fadd_rn(__fmul_rn(static_cast<float>(q), scale), F16At(block + 2));              // Q4_1
    }
  }
};

template <typename Row>
__global__ void EmbedKernel(CudaEmbedParams p) {
  const int64_t token = blockIdx.x;
  const int64_t id = p.token_ids[token];
  float* y = p.y + token * p.y_stride;
  if (id < 0 || id >= p.vocab) {
    for (int64_t i = threadIdx.x; i < p.dim; i += kThreads) y[i] = 0.0f;
    return;
  }
  const Row row(p, id);
  for (int64_t i = threadIdx.x; i < p.dim; i += kThreads) y[i] = row(i);
}

template <typename Row>
CudaStatus Launch(const CudaExec& exec, const CudaEmbedParams& p) {
  EmbedKernel<Row><<<static_cast<unsigned>(p.num_tokens), kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(p);
  return CudaLaunched("embed of %lld tokens, table [%lld, %lld]", static_cast<long long>(p.num_tokens),
                      static_cast<long long>(p.vocab), static_cast<long long>(p.dim));
}

}  // namespace

CudaStatus CudaEmbed(const CudaExec& exec, const CudaEmbedParams& params) {
  if (params.num_tokens == 0) return nullptr;
  switch (params.dtype) {
    case DType::kF32:
      return Launch<PlainRow<float>>(exec, params);
    case DType::kF16:
      return Launch<PlainRow<__half>>(exec, params);
    case DType::kBF16:
      return Launch<PlainRow<__nv_bfloat16>>(exec, params);
    case DType::kFP8E4M3:
      return Launch<Fp8Row>(exec, params);
    case DType::kQ8_0:
      return Launch<BlockRow<34>>(exec, params);
    case DType::kQ4_0:
      return Launch<BlockRow<18>>(exec, params);
    case DType::kQ4_1:
      return Launch<BlockRow<20>>(exec, params);
    default:
      return CudaFail(CudaFault::kUnsupported, "embed: no kernel reads a table of type number %d",
                      static_cast<int>(params.dtype));
  }
}

}  // namespace cachalot
