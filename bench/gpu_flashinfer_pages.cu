// What of cachalot_kv_pages FlashInfer wants, and its own plan and launch.
#include "gpu_flashinfer_pages.h"

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

namespace cachalot {
namespace {

constexpr int kDim = 128, kGroup = 4;
constexpr size_t kFloatBytes = size_t{64} << 20, kIntBytes = size_t{8} << 20;
constexpr auto kNoRope = flashinfer::PosEncodingMode::kNone;
using Variant = flashinfer::DefaultAttention</*custom mask*/ false, /*window*/ false, /*soft cap*/ false, /*alibi*/ false>;

template <typename T>
T* At(void* base, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

template <typename T>
const char* Decode(const cachalot_kv_pages& pages, const int32_t* indptr_host, int num_q_heads, const void* q, void* out,
                   cudaStream_t stream) {
  using Params = flashinfer::BatchDecodeParams<T, T, T, int32_t>;
  const auto mutable_array = [](const int32_t* data) { return const_cast<int32_t*>(data); };
  const bool hnd = pages.layout == CACHALOT_KV_HND || pages.layout == CACHALOT_KV_VLLM_HND;
  const int64_t token = pages.token_stride, head = pages.head_stride;
  const int64_t strides[] = {static_cast<int64_t>(pages.page_stride), hnd ? head : token, hnd ? token : head};
  const auto layout = hnd ? flashinfer::QKVLayout::kHND : flashinfer::QKVLayout::kNHD;
  auto *keys = static_cast<T*>(pages.keys), *values = static_cast<T*>(pages.values);
  auto *indices = mutable_array(pages.table.indices), *indptr = mutable_array(pages.table.indptr), *last = mutable_array(pages.table.last_page_len);
  using Paged = flashinfer::paged_kv_t<T, int32_t>;
  // Dense pages by the constructor that knows their strides itself.
  const Paged kv = pages.page_stride == 0
                       ? Paged(pages.kv_heads, pages.page_size, kDim, pages.table.batch, layout, keys, values, indices, indptr, last)
                       : Paged(pages.kv_heads, pages.page_size, kDim, pages.table.batch, layout, keys, values, strides, indices, indptr, last);
  void *floats = nullptr, *ints = nullptr, *host_ints = nullptr;
  if (cudaMalloc(&floats, kFloatBytes) != cudaSuccess || cudaMalloc(&ints, kIntBytes) != cudaSuccess ||
      cudaMallocHost(&host_ints, kIntBytes) != cudaSuccess) {
    return "no memory";
  }
  flashinfer::DecodePlanInfo plan;
  std::vector<int32_t> host(indptr_host, indptr_host + pages.table.batch + 1);
  cudaError_t error = flashinfer::DecodePlan<kDim, kNoRope, Variant, Params>(
      floats, kFloatBytes, ints, host_ints, kIntBytes, plan, host.data(), pages.table.batch, num_q_heads, pages.page_size, false, stream,
      flashinfer::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<kGroup, kDim, kNoRope, Variant, Params>);
  if (error == cudaSuccess) {
    Params params;
    params.q = static_cast<T*>(const_cast<void*>(q));
    params.paged_kv = kv;
    params.o = static_cast<T*>(out);
    params.num_qo_heads = num_q_heads;
    params.q_stride_n = num_q_heads * kDim;
    params.q_stride_h = kDim;
    params.window_left = -1;
    params.sm_scale = 0.08838835f;
    params.rope_rcp_scale = params.rope_rcp_theta = 1.0f;
    params.request_indices = At<int32_t>(ints, plan.request_indices_offset);
    params.kv_tile_indices = At<int32_t>(ints, plan.kv_tile_indices_offset);
    params.o_indptr = At<int32_t>(ints, plan.o_indptr_offset);
    params.kv_chunk_size_ptr = At<int32_t>(ints, plan.kv_chunk_size_ptr_offset);
    params.padded_batch_size = plan.padded_batch_size;
    T* sums = plan.split_kv ? At<T>(floats, plan.v_offset) : nullptr;
    float* stats = plan.split_kv ? At<float>(floats, plan.s_offset) : nullptr;
    error = flashinfer::BatchDecodeWithPagedKVCacheDispatched<kDim, kNoRope, Variant, Params>(params, sums, stats, false, stream);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  cudaFree(floats);
  cudaFree(ints);
  cudaFreeHost(host_ints);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* FlashInferDecodePages(const cachalot_kv_pages& pages, const int32_t* indptr_host, int num_q_heads, const void* q, void* out,
                                  void* stream) {
  if (pages.head_dim != kDim || num_q_heads != kGroup * static_cast<int>(pages.kv_heads)) return "heads of 128 in groups of 4 are built";
  const auto on = static_cast<cudaStream_t>(stream);
  if (pages.dtype == CACHALOT_KV_DTYPE_F16) return Decode<half>(pages, indptr_host, num_q_heads, q, out, on);
  return Decode<nv_bfloat16>(pages, indptr_host, num_q_heads, q, out, on);
}

}  // namespace cachalot
