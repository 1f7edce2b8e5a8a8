// The two ends of MlaExpand on the GPU; the matmul between them is the caller's. Pure copies and conversions.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/value.cuh"
#include "kernels/common/paged_kv.cuh"
#include "kernels/mla_expand/mla_expand_cuda.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void GatherKernel(CudaMlaGatherParams p) {
  const int64_t t = blockIdx.x;
  const PagedKv& kv = p.latent;
  const T* src = reinterpret_cast<const T*>(BlockOf(kv, p.slot, t)) + t % kv.block_tokens * kv.k_dim;
  for (int i = threadIdx.x; i < kv.k_dim; i += kThreads) p.dst[t * kv.k_dim + i] = ToF32(src[i]);
}

template <typename T>
__global__ void AssembleKernel(CudaMlaAssembleParams p) {
  const int64_t t = blockIdx.x;
  const PagedKv& out = p.out;
  const int64_t b = t / out.block_tokens, in_block = t % out.block_tokens;
  T* block = reinterpret_cast<T*>(out.data + b * out.block_bytes);
  const float* product = p.products + t * p.num_heads * (p.nope_dim + p.v_dim);
  const float* rope = p.latents + t * (p.lora + p.rope_dim) + p.lora;
  if (in_block == 0 && threadIdx.x == 0) p.out_block_table[b] = static_cast<int32_t>(b);
  const int width = p.nope_dim + p.rope_dim + p.v_dim;
  for (int i = threadIdx.x; i < p.num_heads * width; i += kThreads) {
    const int head = i / width, d = i % width;
    const float* from = product + head * (p.nope_dim + p.v_dim);
    T* key = block + head * out.k_head_stride + in_block * out.k_dim;
    if (d < p.nope_dim) {
      FromF32(from[d], key + d);
    } else if (d < p.nope_dim + p.rope_dim) {
      FromF32(rope[d - p.nope_dim], key + d);
    } else {
      const int v = d - p.nope_dim - p.rope_dim;
      FromF32(from[p.nope_dim + v],
              block + out.v_offset + head * out.v_head_stride + in_block * out.v_token_stride + v);
    }
  }
}

}  // namespace

CudaStatus CudaMlaGather(const CudaExec& exec, const CudaMlaGatherParams& params) {
  if (params.kv_len == 0) return nullptr;
  const auto grid = static_cast<unsigned>(params.kv_len);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  switch (params.latent.dtype) {
    case DType::kF32:
      GatherKernel<float><<<grid, kThreads, 0, stream>>>(params);
      break;
    case DType::kF16:
      GatherKernel<__half><<<grid, kThreads, 0, stream>>>(params);
      break;
    case DType::kBF16:
      GatherKernel<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(params);
      break;
    default:
      return CudaFail(CudaFault::kUnsupported, "mla_gather: no KV cache of type number %d",
                      static_cast<int>(params.latent.dtype));
  }
  return CudaLaunched("mla_gather of %d tokens of %d values", params.kv_len, params.latent.k_dim);
}

CudaStatus CudaMlaAssemble(const CudaExec& exec, const CudaMlaAssembleParams& params) {
  if (params.kv_len == 0) return nullptr;
  if (params.out.k_dim != params.nope_dim + params.rope_dim || params.out.v_dim != params.v_dim) {
    return CudaFail(CudaFault::kInvalid, "mla_assemble: keys of %d for %d + %d, values of %d for %d", params.out.k_dim,
                    params.nope_dim, params.rope_dim, params.out.v_dim, params.v_dim);
  }
  const auto grid = static_cast<unsigned>(params.kv_len);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  switch (params.out.dtype) {
    case DType::kF32:
      AssembleKernel<float><<<grid, kThreads, 0, stream>>>(params);
      break;
    case DType::kF16:
      AssembleKernel<__half><<<grid, kThreads, 0, stream>>>(params);
      break;
    case DType::kBF16:
      AssembleKernel<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(params);
      break;
    default:
      return CudaFail(CudaFault::kUnsupported, "mla_assemble: no KV cache of type number %d",
                      static_cast<int>(params.out.dtype));
  }
  return CudaLaunched("mla_assemble of %d tokens, %d heads of %d + %d, %d", params.kv_len, params.num_heads,
                      params.nope_dim, params.rope_dim, params.v_dim);
}

}  // namespace cachalot
