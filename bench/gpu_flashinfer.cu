// FlashInfer's host functions plan and launch; what they need of the cache's layout is here.
#include "gpu_flashinfer.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

namespace cachalot {
namespace {

constexpr int kDim = 128;
constexpr size_t kFloatBytes = size_t{256} << 20, kIntBytes = size_t{16} << 20;

using DecodeParams = flashinfer::BatchDecodeParams<half, half, half, int32_t>;
using PrefillParams = flashinfer::BatchPrefillPagedParams<half, half, half, int32_t>;
using Variant = flashinfer::DefaultAttention</*custom mask*/ false, /*window*/ false, /*soft cap*/ false, /*alibi*/ false>;
constexpr auto kNoRope = flashinfer::PosEncodingMode::kNone;

void Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "FlashInfer, %s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T* Upload(const std::vector<T>& values) {
  T* data = nullptr;
  Check(cudaMalloc(&data, values.size() * sizeof(T)), "cudaMalloc");
  Check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return data;
}

template <typename T>
T* At(void* base, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

}  // namespace

struct FlashInferDecode::State {
  FlashInferShape shape;
  bool tensor_cores = false;
  void *floats = nullptr, *ints = nullptr, *host_ints = nullptr;
  int32_t *indices = nullptr, *indptr = nullptr, *last = nullptr, *q_indptr = nullptr;
  flashinfer::DecodePlanInfo decode;
  flashinfer::PrefillPlanInfo prefill;
};

FlashInferDecode::FlashInferDecode(const FlashInferShape& shape, const std::vector<int32_t>& blocks, bool tensor_cores,
                                   void* stream_handle)
    : state_(std::make_unique<State>()) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  State& s = *state_;
  s.shape = shape;
  s.tensor_cores = tensor_cores;
  const int pages = (shape.context + shape.block_tokens - 1) / shape.block_tokens;
  std::vector<int32_t> indptr(shape.num_seqs + 1), q_indptr(shape.num_seqs + 1);
  for (int i = 0; i <= shape.num_seqs; ++i) indptr[i] = i * pages;
  std::iota(q_indptr.begin(), q_indptr.end(), 0);
  s.indices = Upload(blocks);
  s.indptr = Upload(indptr);
  s.q_indptr = Upload(q_indptr);
  s.last = Upload(std::vector<int32_t>(shape.num_seqs, shape.context - (pages - 1) * shape.block_tokens));
  Check(cudaMalloc(&s.floats, kFloatBytes), "cudaMalloc");
  Check(cudaMalloc(&s.ints, kIntBytes), "cudaMalloc");
  Check(cudaMallocHost(&s.host_ints, kIntBytes), "cudaMallocHost");
  if (tensor_cores) {
    Check(flashinfer::PrefillPlan<int32_t>(s.floats, kFloatBytes, s.ints, s.host_ints, kIntBytes, s.prefill, q_indptr.data(),
                                           indptr.data(), shape.num_seqs, shape.num_seqs, shape.num_q_heads,
                                           shape.num_kv_heads, kDim, kDim, shape.block_tokens, false, sizeof(half), -1, -1,
                                           false, 0, stream),
          "PrefillPlan");
    if (s.prefill.cta_tile_q != 16) {
      std::fprintf(stderr, "FlashInfer plans tiles of %lld rows\n", static_cast<long long>(s.prefill.cta_tile_q));
      std::exit(1);
    }
  } else {
    const auto plan = [&](auto estimate) {
      Check(flashinfer::DecodePlan<kDim, kNoRope, Variant, DecodeParams>(s.floats, kFloatBytes, s.ints, s.host_ints, kIntBytes,
                                                                         s.decode, indptr.data(), shape.num_seqs,
                                                                         shape.num_q_heads, shape.block_tokens, false, stream,
                                                                         estimate),
            "DecodePlan");
    };
    DISPATCH_GQA_GROUP_SIZE(shape.num_q_heads / shape.num_kv_heads, kGroup, {
      plan(flashinfer::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<kGroup, kDim, kNoRope, Variant, DecodeParams>);
    });
  }
  Check(cudaStreamSynchronize(stream), "plan");
}

FlashInferDecode::~FlashInferDecode() {
  const State& s = *state_;
  for (void* data : {s.floats, s.ints, static_cast<void*>(s.indices), static_cast<void*>(s.indptr), static_cast<void*>(s.last),
                     static_cast<void*>(s.q_indptr)}) {
    cudaFree(data);
  }
  cudaFreeHost(s.host_ints);
}

void FlashInferDecode::Run(const std::byte* cache, const void* q, void* out, void* stream_handle) const {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const State& s = *state_;
  const FlashInferShape& shape = s.shape;
  auto* keys = reinterpret_cast<half*>(const_cast<std::byte*>(cache));
  half* values = keys + shape.block_bytes / 4;
  const int64_t head = int64_t{shape.block_tokens} * kDim, strides[] = {shape.block_bytes / 2, head, kDim};
  const flashinfer::paged_kv_t<half, int32_t> kv(shape.num_kv_heads, shape.block_tokens, kDim, shape.num_seqs,
                                                 flashinfer::QKVLayout::kHND, keys, values, strides, s.indices, s.indptr,
                                                 s.last);
  const auto fill = [&](auto& params, const auto& plan) {
    params.q = static_cast<half*>(const_cast<void*>(q));
    params.paged_kv = kv;
    params.o = static_cast<half*>(out);
    params.num_qo_heads = shape.num_q_heads;
    params.q_stride_n = shape.num_q_heads * kDim;
    params.q_stride_h = kDim;
    params.window_left = -1;
    params.sm_scale = 0.08838835f;
    params.rope_rcp_scale = params.rope_rcp_theta = 1.0f;
    params.request_indices = At<int32_t>(s.ints, plan.request_indices_offset);
    params.kv_tile_indices = At<int32_t>(s.ints, plan.kv_tile_indices_offset);
    params.o_indptr = At<int32_t>(s.ints, plan.o_indptr_offset);
    params.kv_chunk_size_ptr = At<int32_t>(s.ints, plan.kv_chunk_size_ptr_offset);
    params.padded_batch_size = plan.padded_batch_size;
  };
  half* sums = nullptr;
  float* stats = nullptr;
  if (s.tensor_cores) {
    PrefillParams params;
    fill(params, s.prefill);
    params.q_indptr = s.q_indptr;
    params.group_size = flashinfer::uint_fastdiv(shape.num_q_heads / shape.num_kv_heads);
    params.qo_tile_indices = At<int32_t>(s.ints, s.prefill.qo_tile_indices_offset);
    params.max_total_num_rows = s.prefill.total_num_rows;
    if (s.prefill.split_kv) {
      params.merge_indptr = At<int32_t>(s.ints, s.prefill.merge_indptr_offset);
      sums = At<half>(s.floats, s.prefill.v_offset);
      stats = At<float>(s.floats, s.prefill.s_offset);
    }
    Check((flashinfer::BatchPrefillWithPagedKVCacheDispatched<16, kDim, kDim, kNoRope, false, flashinfer::MaskMode::kNone,
                                                              Variant, PrefillParams>(params, sums, stats, true, stream)),
          "BatchPrefillWithPagedKVCache");
  } else {
    DecodeParams params;
    fill(params, s.decode);
    if (s.decode.split_kv) {
      sums = At<half>(s.floats, s.decode.v_offset);
      stats = At<float>(s.floats, s.decode.s_offset);
    }
    Check((flashinfer::BatchDecodeWithPagedKVCacheDispatched<kDim, kNoRope, Variant, DecodeParams>(params, sums, stats, true,
                                                                                                  stream)),
          "BatchDecodeWithPagedKVCache");
  }
}

}  // namespace cachalot
