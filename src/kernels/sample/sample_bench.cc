// SampleRow over a vocabulary of 150,000, one thread. Bytes: the row, once.
#include "kernels/common/bench.h"
#include "kernels/common/testing.h"
#include "kernels/sample/sample.h"

namespace cachalot {
namespace {

constexpr int32_t kVocab = 150000;

void Run(benchmark::State& state, const SamplingParams& sampling, int32_t num_top_logprobs) {
  TestContext ctx(BestIsa());
  TestRng rng(1);
  std::vector<float> logits = rng.NormalVector(kVocab, 3.0f);
  std::vector<TokenLogprob> top(std::max(num_top_logprobs, 0));
  SampleRowParams params{
      .logits = logits.data(), .vocab = kVocab, .sampling = sampling, .num_top_logprobs = num_top_logprobs};
  BenchAgainstRoofs(state, 0, 4.0 * kVocab, [&] {
    ++params.position;
    benchmark::DoNotOptimize(SampleRow(ctx, params, top));
  });
}

const bool kRegistered = [] {
  const std::pair<const char*, SamplingParams> cases[] = {
      {"greedy", {}},
      {"temperature", {.temperature = 1}},
      {"top-k-40", {.temperature = 1, .top_k = 40}},
      {"top-k-40-top-p", {.temperature = 1, .top_k = 40, .top_p = 0.95f}},
      {"top-p-0.9", {.temperature = 1, .top_p = 0.9f}},
      {"top-p-0.9-flat", {.temperature = 4, .top_p = 0.9f}},
      {"min-p", {.temperature = 1, .min_p = 0.05f}},
  };
  for (const auto& [name, sampling] : cases) {
    Register(fmt::format("Sample/{}", name),
             [sampling = sampling](benchmark::State& state) { Run(state, sampling, -1); });
  }
  Register("Sample/greedy-20-logprobs", [](benchmark::State& state) { Run(state, {}, 20); });
  return true;
}();

}  // namespace
}  // namespace cachalot
