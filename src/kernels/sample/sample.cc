// SampleRow: the order of the steps is in sample.h; here is how they are done without sorting the vocabulary.
//
// top-k and top-p leave a short list; what is left is drawn by inverting the cumulative distribution in the
// order of the token ids. Sums are in double.
#include "kernels/sample/sample.h"

#include <cmath>
#include <numbers>

#include "kernels/sample/draw.h"
#include "kernels/sample/nucleus.h"
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

// How many of the sorted list's first tokens top-p keeps: the fewest whose weights reach the target; 0 when
// all of them do not.
int32_t TopPCount(const float* weights, int32_t count, double target) {
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    sum += weights[i];
    if (sum >= target) return i + 1;
  }
  return 0;
}

// Sampling at one temperature from a row whose largest logit is above -infinity. Its weight is 1.
struct Sampler {
  const SamplePrimitives& primitives;
  const float* logits;
  int32_t vocab;
  const SamplingParams& sampling;
  float largest;
  float inverse_temperature;
  double uniform;
  Workspace* workspace;

  int32_t Run() const {
    if (sampling.top_k > 0 && sampling.top_k < vocab) return DrawFromTopK();
    return sampling.top_p < 1.0f ? DrawFromTopP() : DrawFromAll();
  }

  // min-p is relative to the best token's weight, which is 1: that token always stays.
  int32_t Draw(const float* weights, int32_t count) const {
    double* block_sums = workspace->Take<double>(DrawScratchDoubles(count));
    return DrawIndex(weights, count, std::min(sampling.min_p, 1.0f), uniform, block_sums);
  }

  float* WeightsOfAll() const {
    float* weights = workspace->Take<float>(vocab);
    primitives.weights(logits, vocab, largest, inverse_temperature, weights);
    return weights;
  }

  int32_t DrawFromAll() const { return Draw(WeightsOfAll(), vocab); }

  float* WeightsOfList(const TokenLogit* list, int32_t count) const {
    float* weights = workspace->Take<float>(count);
    for (int32_t i = 0; i < count; ++i) weights[i] = list[i].logit;
    primitives.weights(weights, count, largest, inverse_temperature, weights);
    return weights;
  }

  int32_t DrawFromList(TokenLogit* list, int32_t count) const {
    std::sort(list, list + count,
              [](const TokenLogit& a, const TokenLogit& b) { return a.token_id < b.token_id; });
    return list[Draw(WeightsOfList(list, count), count)].token_id;
  }

  int32_t DrawFromTopK() const {
    TokenLogit* list = workspace->Take<TokenLogit>(SelectTopEntries(vocab, sampling.top_k));
    int32_t count = SelectTop(primitives, logits, vocab, sampling.top_k, list);
    if (sampling.top_p < 1.0f) {  // a part of what top-k left
      const WorkspaceScope scope(workspace);
      const float* weights = WeightsOfList(list, count);
      double total = 0;
      for (int32_t i = 0; i < count; ++i) total += weights[i];
      const int32_t kept = TopPCount(weights, count, sampling.top_p * total);
      if (kept > 0) count = kept;
    }
    return DrawFromList(list, count);
  }

  // Most distributions are steep: the first few tokens are tried before the row is looked at as a whole.
  int32_t DrawFromTopP() const {
    constexpr int32_t kFew = 256;
    const double target =
        sampling.top_p * primitives.sum_weights(logits, vocab, largest, inverse_temperature);
    TokenLogit* list = workspace->Take<TokenLogit>(vocab);
    if (kFew < vocab) {
      const WorkspaceScope scope(workspace);
      const int32_t held = SelectTop(primitives, logits, vocab, kFew, list);
      const int32_t kept = TopPCount(WeightsOfList(list, held), held, target);
      if (kept > 0) return DrawFromList(list, kept);
    }
    float* weights = WeightsOfAll();
    double* bin_mass = workspace->Take<double>(kNucleusBins);
    const auto rate =
        static_cast<float>(std::min(inverse_temperature * std::numbers::log2e, double{kLargestRate}));
    const TokenLogit cut = NucleusCut(logits, weights, vocab, largest, rate, target, bin_mass, list);
    for (int32_t i = 0; i < vocab; ++i) {
      if (Better(cut, {logits[i], i})) weights[i] = 0;
    }
    return Draw(weights, vocab);
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
  // The copy of the logits, a list of tokens, the weights of the list or of all, bins and block sums.
  const int64_t row = Workspace::Padded(vocab * int64_t{sizeof(float)});
  const int64_t list = Workspace::Padded(vocab * int64_t{sizeof(TokenLogit)});
  const int64_t sums = Workspace::Padded(DrawScratchDoubles(vocab) * int64_t{sizeof(double)});
  return 2 * row + list + sums + Workspace::Padded(kNucleusBins * int64_t{sizeof(double)});
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
