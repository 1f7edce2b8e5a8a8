// Sampling: one block a row, everything in the order that sample.h documents. The row is read a few times from L2
// (sample_select.cuh says how often); nothing is sorted but the list of the best log-probabilities.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/sample/sample_cuda.h"
#include "kernels/sample/sample_random.cuh"
#include "kernels/sample/sample_select.cuh"

namespace cachalot {
namespace {

struct LogSum {
  float largest;
  double log_sum;
  __device__ float LogprobOf(float logit) const {
    if (largest == -CUDART_INF_F) return static_cast<float>(-log_sum);
    if (isnan(logit)) return -CUDART_INF_F;
    return static_cast<float>((logit == largest ? 0.0 : double(logit) - largest) - log_sum);
  }
};

// SelectBest's measure for top-k.
__device__ Fixed CountTokens(int32_t, uint32_t, float) { return 1; }

__device__ float ValueAt(const float* logits, int32_t i) {
  return isnan(logits[i]) ? -CUDART_INF_F : logits[i];
}

__device__ LogSum LogSumOf(const float* logits, int32_t vocab, SampleScratch* scratch) {
  const float largest = ValueAt(logits, FindLargest(logits, vocab, scratch));
  if (largest == -CUDART_INF_F) return {largest, log(double(vocab))};
  const WeightOf weight{largest, 1.0f};
  double sum = 0;
  ForTokens(logits, vocab, [&](int32_t, float logit, bool present) {
    if (present) sum += weight(logit);
  });
  __syncthreads();
  return {largest, log(BlockSum(sum, scratch->doubles))};
}

// top [count] best first, -1 where there is none left. `list` [kMaxCudaTopLogprobs].
__device__ void WriteTop(const float* logits, int32_t vocab, const LogSum& log_sum, int32_t count, TokenLogprob* top,
                         unsigned long long* list, SampleScratch* scratch) {
  const KeptTokens kept = SelectBest(logits, vocab, CountTokens, [=](Fixed) -> Fixed { return min(count, vocab); }, scratch);
  __syncthreads();
  if (threadIdx.x == 0) scratch->found = 0;
  __syncthreads();
  ForTokens(logits, vocab, [&](int32_t i, float logit, bool present) {
    const uint32_t key = LogitKey(logit);
    if (!present || key <= kLowestKey || !kept.Has(key, i)) return;
    list[atomicAdd(&scratch->found, 1)] = static_cast<unsigned long long>(key) << 32 | static_cast<uint32_t>(~i);
  });
  __syncthreads();
  const int32_t held = scratch->found;
  const auto mine = static_cast<int32_t>(threadIdx.x);
  if (mine < held) {
    int32_t rank = 0;
    for (int32_t j = 0; j < held; ++j) rank += list[j] > list[mine];
    const auto id = static_cast<int32_t>(~static_cast<uint32_t>(list[mine]));
    top[rank] = {id, log_sum.LogprobOf(logits[id])};
  } else if (mine < count) {
    top[mine] = {-1, -CUDART_INF_F};
  }
  __syncthreads();
}

// The logits that tokens are drawn from: the row itself, or a copy with bias and penalties.
__device__ const float* Modified(const CudaSampleParams& p, const CudaSampleSlot& slot, int32_t row, const float* logits) {
  const SamplingParams& sampling = slot.sampling;
  const bool penalties = slot.counts_row >= 0 && (sampling.repetition_penalty != 1.0f ||
                                                  sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f);
  const int32_t num_suppressed = p.positions[row] < slot.suppressed_until ? slot.num_suppressed : 0;
  if (slot.bias_len == 0 && num_suppressed == 0 && !penalties) return logits;
  float* copy = p.modified + int64_t{row} * p.vocab;
  for (int32_t i = threadIdx.x; i < p.vocab; i += kSampleThreads) copy[i] = logits[i];
  __syncthreads();
  for (int32_t i = threadIdx.x; i < slot.bias_len; i += kSampleThreads) {
    const LogitBias bias = p.bias[slot.bias_begin + i];
    if (bias.token_id >= 0 && bias.token_id < p.vocab) copy[bias.token_id] += bias.bias;
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < num_suppressed; i += kSampleThreads) {
    const int32_t id = p.bias[slot.bias_begin + slot.bias_len + i].token_id;
    if (id >= 0 && id < p.vocab) copy[id] = -CUDART_INF_F;
  }
  __syncthreads();
  if (!penalties) return copy;
  const uint32_t* counts = p.counts + int64_t{slot.counts_row} * p.vocab;
  const int32_t num_in_front = p.num_in_front == nullptr ? 0 : p.num_in_front[row];
  const int32_t* in_front = num_in_front == 0 ? nullptr : p.input_ids + p.input_rows[row] + 1 - num_in_front;
  for (int32_t i = threadIdx.x; i < p.vocab; i += kSampleThreads) {
    uint32_t count = counts[i];
    for (int32_t j = 0; j < num_in_front; ++j) count += in_front[j] == i;
    if (count == 0) continue;
    float logit = copy[i];
    logit = logit > 0 ? __fdiv_rn(logit, sampling.repetition_penalty) : __fmul_rn(logit, sampling.repetition_penalty);
    const uint32_t in_output = count & ~kCountInPrompt;
    if (in_output > 0) {
      logit = __fsub_rn(logit, __fadd_rn(__fmul_rn(sampling.frequency_penalty, static_cast<float>(in_output)),
                                         sampling.presence_penalty));
    }
    copy[i] = logit;
  }
  __syncthreads();
  return copy;
}

// `largest`: the value of token `best`, above -infinity.
__device__ int32_t Draw(const float* logits, int32_t vocab, const SamplingParams& sampling, float largest,
                        int64_t position, SampleScratch* scratch) {
  const double inverse = fmin(fmax(1.0 / double(sampling.temperature), double(1.17549435e-38f)), double(CUDART_MAX_NORMAL_F));
  const WeightOf weight{largest, static_cast<float>(inverse)};
  KeptTokens kept;
  if (sampling.top_k > 0 && sampling.top_k < vocab) {
    kept = SelectBest(logits, vocab, CountTokens, [&](Fixed) -> Fixed { return sampling.top_k; }, scratch);
  }
  if (sampling.top_p < 1.0f) {
    const KeptTokens before = kept;
    const auto measure = [&](int32_t i, uint32_t key, float logit) -> Fixed {
      return before.Has(key, i) ? weight.InFixed(logit) : 0;
    };
    // The fewest whose weights reach top_p of the total; at least one.
    const auto need_of = [&](Fixed total) -> Fixed {
      const double target = ceil(fmax(double(sampling.top_p), 0.0) * double(total));
      return min(max(static_cast<Fixed>(target), Fixed{1}), total);
    };
    kept = SelectBest(logits, vocab, measure, need_of, scratch);
    if (kept.key == before.key) kept.last_tie = min(kept.last_tie, before.last_tie);
  }
  const float least = fminf(sampling.min_p, 1.0f);  // the best token's weight is 1: it always stays
  const auto measure = [&](int32_t i, float logit) -> Fixed {
    if (!kept.Has(LogitKey(logit), i)) return 0;
    return weight(logit) >= least ? weight.InFixed(logit) : 0;
  };
  const Fixed total = SumRow(logits, vocab, measure, scratch);
  const uint64_t uniform = UniformBits(sampling.seed, position);
  const Fixed target = __umul64hi(uniform, total) << 11 | (uniform * total) >> 53;
  return FindCrossing(logits, vocab, measure, target, scratch);
}

__global__ __launch_bounds__(kSampleThreads) void SampleKernel(CudaSampleParams p) {
  __shared__ SampleScratch scratch;
  __shared__ unsigned long long list[kMaxCudaTopLogprobs];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t slot_idx = p.row_slots[row];
  if (slot_idx < 0) {
    if (threadIdx.x == 0) p.token_ids[row] = -1;
    return;
  }
  const CudaSampleSlot slot = p.slots[slot_idx];
  const float* raw = p.logits + row * p.logits_stride;
  const int32_t num_top = p.num_top == nullptr ? -1 : min(p.num_top[row], p.top_stride);
  LogSum log_sum = {0, 0};
  if (num_top >= 0) {
    log_sum = LogSumOf(raw, p.vocab, &scratch);
    if (num_top > 0) {
      WriteTop(raw, p.vocab, log_sum, num_top, p.top + int64_t{row} * p.top_stride, list, &scratch);
    }
  }
  const float* logits = Modified(p, slot, row, raw);
  int32_t token = FindLargest(logits, p.vocab, &scratch);
  const float largest = ValueAt(logits, token);
  if (slot.sampling.temperature > 0 && largest != -CUDART_INF_F) {
    token = Draw(logits, p.vocab, slot.sampling, largest, p.positions[row], &scratch);
  }
  if (threadIdx.x != 0) return;
  p.token_ids[row] = token;
  if (num_top >= 0) p.logprobs[row] = log_sum.LogprobOf(raw[token]);
  if (slot.counts_row >= 0 && p.num_in_front == nullptr) p.counts[int64_t{slot.counts_row} * p.vocab + token] += 1;
}

__global__ void HistoryKernel(CudaSampleHistoryParams p) {
  const int32_t i = static_cast<int32_t>(blockIdx.x) * 256 + static_cast<int32_t>(threadIdx.x);
  if (i >= p.num_tokens) return;
  const int32_t id = p.token_ids[i];
  if (id < 0 || id >= p.vocab) return;
  if (i < p.num_prompt) {
    atomicOr(p.counts + id, kCountInPrompt);
  } else {
    atomicAdd(p.counts + id, 1u);
  }
}

}  // namespace

CudaStatus CudaSampleHistory(const CudaExec& exec, const CudaSampleHistoryParams& params) {
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  if (CudaStatus failure = CudaChecked(
          cudaMemsetAsync(params.counts, 0, static_cast<size_t>(params.vocab) * sizeof(uint32_t), stream),
          "sample_history: cudaMemsetAsync")) {
    return failure;
  }
  if (params.num_tokens == 0) return nullptr;
  HistoryKernel<<<static_cast<unsigned>((params.num_tokens + 255) / 256), 256, 0, stream>>>(params);
  return CudaLaunched("sample_history of %d tokens, vocabulary of %d", params.num_tokens, params.vocab);
}

CudaStatus CudaSample(const CudaExec& exec, const CudaSampleParams& params) {
  if (params.num_rows == 0) return nullptr;
  if (params.vocab <= 0 || params.top_stride > kMaxCudaTopLogprobs) {
    return CudaFail(CudaFault::kInvalid, "sample: vocabulary of %d, %d log-probabilities (at most %d)", params.vocab,
                    params.top_stride, kMaxCudaTopLogprobs);
  }
  LaunchOverlapped(&SampleKernel, params.num_rows, kSampleThreads, 0, exec.stream, params);
  return CudaLaunched("sample of %d rows, vocabulary of %d", params.num_rows, params.vocab);
}

}  // namespace cachalot
