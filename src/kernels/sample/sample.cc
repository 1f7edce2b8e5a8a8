// SampleRow: the order of the steps is in sample.h; here is how they are done without sorting the vocabulary.
//
// top-k and top-p leave a short list; what is left is drawn by inverting the cumulative distribution in the
// order of the token ids. Sums are in double.
#include "kernels/sample/sample.h"

#include <cmath>

#include "kernels/sample/sample_primitives.h"
#include "kernels/sample/select_top.h"

namespace cachalot {
namespace {

struct IsaRow {
  Isa isa;
  const SamplePrimitives* primitives;
};
constexpr IsaRow kIsaRows[] = {{Isa::kAvx2, &kSamplePrimitivesAvx2}, {Isa::kRef, &kSamplePrimitivesRef}};

const SamplePrimitives& PrimitivesFor(Isa isa) {
  for (const IsaRow& row : kIsaRows) {
    if (row.isa <= isa) return *row.primitives;
  }
  return kSamplePrimitivesRef;
}

// The denominator of a softmax: largest + log(sum of exp(logit - largest)). A row without any logit above
// -infinity counts as uniform.
struct LogSum {
  float largest;
  double log_sum;
  double LogprobOf(float logit) const {
    if (largest == kLowestLogit) return -log_sum;
    if (std::isnan(logit)) return kLowestLogit;
    return (logit == largest ? 0.0 : double{logit} - largest) - log_sum;
  }
};

LogSum LogSumOf(const SamplePrimitives& primitives, const float* logits, int32_t vocab) {
  const float largest = primitives.find_largest(logits, vocab).logit;
  if (largest == kLowestLogit) return {largest, std::log(static_cast<double>(vocab))};
  return {largest, std::log(primitives.sum_weights(logits, vocab, largest, 1.0f))};
}

bool HasPenalty(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

void ApplyBiasAndPenalties(const SampleRowParams& params) {
  const SamplingParams& sampling = params.sampling;
  for (const LogitBias& bias : params.bias) {
    if (bias.token_id >= 0 && bias.token_id < params.vocab) params.logits[bias.token_id] += bias.bias;
  }
  if (!HasPenalty(sampling)) return;
  for (const TokenCount& count : params.counts) {
    if (count.token_id < 0 || count.token_id >= params.vocab) continue;
    float& logit = params.logits[count.token_id];
    if (count.in_prompt > 0 || count.in_output > 0) {
      logit = logit > 0 ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
    }
    if (count.in_output > 0) {
      logit -= sampling.frequency_penalty * static_cast<float>(count.in_output) + sampling.presence_penalty;
    }
  }
}

// How many of the sorted list's first tokens top-p keeps: the fewest whose weights reach top_p of `total`, 0
// when even all of them do not.
int32_t TopPCount(const TokenLogit* list, const float* weights, int32_t count, double top_p, double total) {
  const double target = top_p * total;
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    sum += weights[i];
    if (sum >= target) return i + 1;
  }
  return 0;
}

// Sampling at one temperature. `largest` is that of the row and finite or +infinity.
struct Sampler {
  const SamplePrimitives& primitives;
  const float* logits;
  int32_t vocab;
  const SamplingParams& sampling;
  float largest;
  float inverse_temperature;
  double uniform;
  Workspace* workspace;

  // The token in whose part of [0, total) the draw falls; weights below min_p do not count. The last token
  // with a weight takes what rounding leaves over.
  template <typename IdOf>
  int32_t Draw(const float* weights, int32_t count, IdOf id_of) const {
    const float least = std::min(sampling.min_p, 1.0f);  // the best token's weight is 1: it always stays
    double total = 0;
    for (int32_t i = 0; i < count; ++i) total += weights[i] >= least ? weights[i] : 0.0f;
    const double target = uniform * total;
    double sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < count; ++i) {
      if (!(weights[i] >= least) || weights[i] == 0.0f) continue;
      sum += weights[i];
      last = i;
      if (sum > target) break;
    }
    return id_of(last);
  }

  int32_t DrawFromAll() const {
    float* weights = workspace->Take<float>(vocab);
    primitives.weights(logits, vocab, largest, inverse_temperature, weights);
    return Draw(weights, vocab, [](int32_t i) { return i; });
  }

  int32_t DrawFromList(TokenLogit* list, int32_t count) const {
    std::sort(list, list + count,
              [](const TokenLogit& a, const TokenLogit& b) { return a.token_id < b.token_id; });
    float* weights = WeightsOf(list, count);
    return Draw(weights, count, [&](int32_t i) { return list[i].token_id; });
  }

  float* WeightsOf(const TokenLogit* list, int32_t count) const {
    float* weights = workspace->Take<float>(count);
    float* values = workspace->Take<float>(count);
    for (int32_t i = 0; i < count; ++i) values[i] = list[i].logit;
    primitives.weights(values, count, largest, inverse_temperature, weights);
    return weights;
  }

  int32_t Run() const {
    const bool use_top_k = sampling.top_k > 0 && sampling.top_k < vocab, use_top_p = sampling.top_p < 1.0f;
    if (!use_top_k && !use_top_p) return DrawFromAll();
    TokenLogit* list = workspace->Take<TokenLogit>(vocab);
    if (use_top_k) {
      int32_t count = SelectTop(primitives, logits, vocab, sampling.top_k, list);
      if (use_top_p) count = CutByTopP(list, count, 0);
      return DrawFromList(list, count);
    }
    // Nobody knows how many tokens make up top_p of the whole: try with few first, as most distributions are
    // steep.
    const double total = primitives.sum_weights(logits, vocab, largest, inverse_temperature);
    for (int64_t k = 256;; k *= 8) {
      const int32_t wanted = static_cast<int32_t>(std::min<int64_t>(k, vocab));
      const int32_t held = SelectTop(primitives, logits, vocab, wanted, list);
      const int32_t count = CutByTopP(list, held, total);
      if (count > 0) return DrawFromList(list, count);
      if (held < wanted || wanted == vocab) return DrawFromList(list, held);
    }
  }

  // total 0: that of the list (top-p after top-k is a part of what top-k left).
  int32_t CutByTopP(const TokenLogit* list, int32_t count, double total) const {
    const WorkspaceScope scope(workspace);
    const float* weights = WeightsOf(list, count);
    const bool of_list = total == 0;
    for (int32_t i = 0; of_list && i < count; ++i) total += weights[i];
    const int32_t kept = TopPCount(list, weights, count, sampling.top_p, total);
    return kept == 0 && of_list ? count : kept;
  }
};

}  // namespace

SampleRowResult SampleRow(const ExecContext& ctx, const SampleRowParams& params,
                          std::span<TokenLogprob> top) {
  CHECK(params.vocab > 0 && params.logits != nullptr) << "SampleRow over a vocabulary of " << params.vocab;
  CHECK(static_cast<int64_t>(top.size()) >= params.num_top_logprobs)
      << "room for " << top.size() << " of " << params.num_top_logprobs << " log-probabilities";
  const SamplePrimitives& primitives = PrimitivesFor(ctx.isa);
  const WorkspaceScope scope(ctx.workspace);

  // Log-probabilities are of the unmodified logits, the chosen token's too: they need a copy when these will
  // change.
  const bool wants_logprobs = params.num_top_logprobs >= 0;
  const float* unmodified = params.logits;
  LogSum log_sum{};
  if (wants_logprobs) {
    log_sum = LogSumOf(primitives, params.logits, params.vocab);
    if (!params.bias.empty() || (!params.counts.empty() && HasPenalty(params.sampling))) {
      float* copy = ctx.workspace->Take<float>(params.vocab);
      std::copy_n(params.logits, params.vocab, copy);
      unmodified = copy;
    }
    const WorkspaceScope list_scope(ctx.workspace);
    const int32_t wanted = std::min(params.num_top_logprobs, params.vocab);
    if (wanted > 0) {
      TokenLogit* list = ctx.workspace->Take<TokenLogit>(SelectTopEntries(params.vocab, wanted));
      const int32_t held = SelectTop(primitives, unmodified, params.vocab, wanted, list);
      for (int32_t i = 0; i < params.num_top_logprobs; ++i) {
        top[i] = i < held
                     ? TokenLogprob{list[i].token_id, static_cast<float>(log_sum.LogprobOf(list[i].logit))}
                     : TokenLogprob{-1, kLowestLogit};
      }
    }
  }

  ApplyBiasAndPenalties(params);
  const TokenLogit best = primitives.find_largest(params.logits, params.vocab);
  SampleRowResult result;
  result.token_id = best.token_id;
  const float temperature = params.sampling.temperature;
  if (temperature > 0 && best.logit != kLowestLogit) {
    // Bounded, so that no product with it is a NaN, however small or large the temperature.
    using Limits = std::numeric_limits<float>;
    const double inverse = std::clamp(1.0 / temperature, double{Limits::min()}, double{Limits::max()});
    const Sampler sampler{primitives,
                          params.logits,
                          params.vocab,
                          params.sampling,
                          best.logit,
                          static_cast<float>(inverse),
                          UniformAt(params.sampling.seed, params.position),
                          ctx.workspace};
    result.token_id = sampler.Run();
  }
  if (wants_logprobs) result.logprob = static_cast<float>(log_sum.LogprobOf(unmodified[result.token_id]));
  return result;
}

int64_t SampleWorkspaceBytes(int32_t vocab) {
  // The copy of the logits, the list, and the weights and values of the list, or the weights of all.
  const int64_t row = Workspace::Padded(vocab * int64_t{sizeof(float)});
  return 3 * row + Workspace::Padded(vocab * int64_t{sizeof(TokenLogit)});
}

float LogprobOf(std::span<const float> logits, int32_t token_id) {
  CHECK(token_id >= 0 && static_cast<size_t>(token_id) < logits.size())
      << "token " << token_id << " of " << logits.size();
  const LogSum log_sum = LogSumOf(kSamplePrimitivesRef, logits.data(), static_cast<int32_t>(logits.size()));
  return static_cast<float>(log_sum.LogprobOf(logits[token_id]));
}

void TopLogprobs(std::span<const float> logits, std::span<TokenLogprob> top) {
  const int32_t vocab = static_cast<int32_t>(logits.size());
  const LogSum log_sum = LogSumOf(kSamplePrimitivesRef, logits.data(), vocab);
  // A sorted list by insertion: top is short.
  size_t held = 0;
  for (int32_t i = 0; i < vocab && !top.empty(); ++i) {
    if (!(logits[i] > (held == top.size() ? logits[top.back().token_id] : kLowestLogit))) continue;
    const TokenLogprob entry{i, static_cast<float>(log_sum.LogprobOf(logits[i]))};
    size_t at = held < top.size() ? held++ : held - 1;
    for (; at > 0 && logits[i] > logits[top[at - 1].token_id]; --at) top[at] = top[at - 1];
    top[at] = entry;
  }
  for (; held < top.size(); ++held) top[held] = {-1, kLowestLogit};
}

double UniformAt(uint64_t seed, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  // The seed is mixed on its own first: neighbouring seeds must not give shifted copies of one sequence.
  const uint64_t bits = mix(mix(seed + kGolden) + kGolden * (static_cast<uint64_t>(position) + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace cachalot
