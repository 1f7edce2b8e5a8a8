// The two ends of MlaExpand on the GPU; the matmul between them is the caller's. Pure copies and conversions, a block a row.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/value.cuh"
#include "kernels/common/kv_codes.cuh"
#include "kernels/common/paged_kv.cuh"
#include "kernels/mla_expand/mla_expand_cuda.h"

namespace cachalot {
namespace {

// Four values of a 16-bit or F32 type at a time where everything is a multiple of four, else one.
template <typename T, int kWidth>
struct Pack {
  T value[kWidth];
};
template <typename T>
struct alignas(4 * sizeof(T)) Pack<T, 4> {
  T value[4];
};

template <typename T, int kWidth>
__device__ __forceinline__ Pack<float, kWidth> LoadF32(const T* from) {
  const Pack<T, kWidth> in = *reinterpret_cast<const Pack<T, kWidth>*>(from);
  Pack<float, kWidth> out;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) out.value[i] = ToF32(in.value[i]);
  return out;
}
template <typename T, int kWidth>
__device__ __forceinline__ void StoreF32(const Pack<float, kWidth>& in, T* to) {
  Pack<T, kWidth> out;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) FromF32(in.value[i], &out.value[i]);
  *reinterpret_cast<Pack<T, kWidth>*>(to) = out;
}

constexpr int kGatherThreads = 160;  // 576 values in fours
constexpr int kAssembleThreads = 256;

template <typename T, int kWidth>
__global__ void GatherKernel(CudaMlaGatherParams p) {
  const int64_t row = blockIdx.x;
  const PagedKv& kv = p.latent;
  const CudaMlaRow from = p.rows[row];
  float* dst = p.dst + row * kv.k_dim;
  if (from.slot < 0) {
    for (int i = threadIdx.x * kWidth; i < kv.k_dim; i += kGatherThreads * kWidth) {
      StoreF32<float, kWidth>(Pack<float, kWidth>{}, dst + i);
    }
    return;
  }
  const T* src = reinterpret_cast<const T*>(BlockOf(kv, from.slot, from.position)) +
                 int64_t{from.position % kv.block_tokens} * kv.k_dim;
  for (int i = threadIdx.x * kWidth; i < kv.k_dim; i += kGatherThreads * kWidth) {
    StoreF32<float, kWidth>(LoadF32<T, kWidth>(src + i), dst + i);
  }
}

// Out of a quantised cache: as the model meant them (DecodeKvKey).
__global__ __launch_bounds__(32) void GatherCodesKernel(const __grid_constant__ CudaMlaGatherParams p, const __grid_constant__ CodePlanes planes,
                                                        const __grid_constant__ CodeSinks sinks) {
  __shared__ float x[kMaxKvDim + kKvUnit];
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x), dim = planes.key.dim;
  const PagedKv& kv = p.latent;
  const CudaMlaRow from = p.rows[row];
  float* dst = p.dst + row * kv.k_dim;
  if (from.slot < 0) {
    for (int d = lane; d < kv.k_dim; d += 32) dst[d] = 0;
    return;
  }
  const std::byte* region = RegionOf(kv, planes, sinks, from.slot, from.position, 0);
  const bool sink = from.position < kv.sink_tokens;
  const int64_t token = from.position % kv.block_tokens;
  for (int d = lane; d < dim; d += 32) x[d] = StoredValue(sink ? sinks.planes.key : planes.key, region, token, d);
  RotateByWarp(x, dim, planes.rotation, lane);
  const float inverse = 1.0f / static_cast<float>(planes.rotation);  // a power of two
  for (int d = lane; d < dim; d += 32) dst[d] = __fadd_rn(__fmul_rn(x[d], inverse), kv.key_mean == nullptr ? 0.0f : kv.key_mean[d]);
  const auto* exact = reinterpret_cast<const uint16_t*>(region + (sink ? sinks.planes.exact : planes.exact)) + token * planes.exact_dim;
  for (int d = lane; d < planes.exact_dim; d += 32) dst[dim + d] = BF16BitsToF32(exact[d]);
}

template <typename T, int kWidth>
__global__ void AssembleKernel(CudaMlaAssembleParams p) {
  const int64_t row = blockIdx.x;
  const CudaMlaRow to = p.rows[row];
  if (to.slot < 0) return;
  const PagedKv& out = p.out;
  T* block = reinterpret_cast<T*>(out.data + to.block * out.block_bytes);
  const int in_block = to.position % out.block_tokens;
  const float* product = p.products + row * p.num_heads * (p.nope_dim + p.v_dim);
  const float* rope = p.latents + row * (p.lora + p.rope_dim) + p.lora;
  const int key = p.nope_dim + p.rope_dim, width = (key + p.v_dim) / kWidth;
  for (int i = threadIdx.x; i < p.num_heads * width; i += kAssembleThreads) {
    const int head = i / width, d = i % width * kWidth;
    const float* from = product + int64_t{head} * (p.nope_dim + p.v_dim);
    T* keys = block + head * out.k_head_stride + int64_t{in_block} * out.k_dim;
    T* values = block + out.v_offset + head * out.v_head_stride + in_block * out.v_token_stride;
    const float* source = d < p.nope_dim ? from + d : d < key ? rope + (d - p.nope_dim) : from + (d - p.rope_dim);
    StoreF32<T, kWidth>(LoadF32<float, kWidth>(source), d < key ? keys + d : values + (d - key));
  }
}

bool InFours(const PagedKv& kv) {
  const int64_t bytes = kv.dtype == DType::kF32 ? 16 : 8;
  const auto fours = [](int64_t values) { return values % 4 == 0; };
  return fours(kv.k_dim) && fours(kv.v_dim) && fours(kv.k_head_stride) && fours(kv.v_offset) && fours(kv.v_head_stride) &&
         fours(kv.v_token_stride) && kv.block_bytes % bytes == 0 && reinterpret_cast<uintptr_t>(kv.data) % bytes == 0;
}
bool AlignedF32(const float* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// f(T{}) with the cache's type; false when there is no such cache.
template <typename F>
bool WithType(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32:
      f(float{});
      return true;
    case DType::kF16:
      f(__half{});
      return true;
    case DType::kBF16:
      f(__nv_bfloat16{});
      return true;
    default:
      return false;
  }
}

}  // namespace

CudaStatus CudaMlaGather(const CudaExec& exec, const CudaMlaGatherParams& params) {
  if (params.num_rows == 0) return nullptr;
  const auto grid = static_cast<unsigned>(params.num_rows);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  if (params.latent.planes != nullptr) {
    GatherCodesKernel<<<grid, 32, 0, stream>>>(params, CodePlanesOf(*params.latent.planes), CodeSinksOf(params.latent));
    return CudaLaunched("mla_gather of %lld tokens of codes of %d values", static_cast<long long>(params.num_rows), params.latent.k_dim);
  }
  const bool fours = InFours(params.latent) && AlignedF32(params.dst);
  const bool known = WithType(params.latent.dtype, [&](auto value) {
    using T = decltype(value);
    auto* kernel = fours ? &GatherKernel<T, 4> : &GatherKernel<T, 1>;
    kernel<<<grid, kGatherThreads, 0, stream>>>(params);
  });
  if (!known) {
    return CudaFail(CudaFault::kUnsupported, "mla_gather: no KV cache of type number %d",
                    static_cast<int>(params.latent.dtype));
  }
  return CudaLaunched("mla_gather of %lld tokens of %d values", static_cast<long long>(params.num_rows),
                      params.latent.k_dim);
}

CudaStatus CudaMlaAssemble(const CudaExec& exec, const CudaMlaAssembleParams& params) {
  if (params.num_rows == 0) return nullptr;
  if (params.out.k_dim != params.nope_dim + params.rope_dim || params.out.v_dim != params.v_dim) {
    return CudaFail(CudaFault::kInvalid, "mla_assemble: keys of %d for %d + %d, values of %d for %d", params.out.k_dim,
                    params.nope_dim, params.rope_dim, params.out.v_dim, params.v_dim);
  }
  const auto grid = static_cast<unsigned>(params.num_rows);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  const bool fours = InFours(params.out) && AlignedF32(params.latents) && AlignedF32(params.products) &&
                     params.nope_dim % 4 == 0 && params.rope_dim % 4 == 0 && params.lora % 4 == 0;
  const bool known = WithType(params.out.dtype, [&](auto value) {
    using T = decltype(value);
    auto* kernel = fours ? &AssembleKernel<T, 4> : &AssembleKernel<T, 1>;
    kernel<<<grid, kAssembleThreads, 0, stream>>>(params);
  });
  if (!known) {
    return CudaFail(CudaFault::kUnsupported, "mla_assemble: no KV cache of type number %d",
                    static_cast<int>(params.out.dtype));
  }
  return CudaLaunched("mla_assemble of %lld tokens, %d heads of %d + %d, %d", static_cast<long long>(params.num_rows),
                      params.num_heads, params.nope_dim, params.rope_dim, params.v_dim);
}

}  // namespace cachalot
