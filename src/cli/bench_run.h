// One measurement of `bench`: a number of equal sequences through an engine, timed, with the bytes that were
// moved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/session.h"

namespace cachalot {

struct BenchCase {
  int32_t threads = 0;
  int32_t batch = 1;
  int32_t prompt = 0;    // tokens of each sequence's prompt; 0: generation is measured
  int32_t generate = 0;  // tokens that each sequence generates after a prompt of one token and `depth` more
  int32_t depth = 0;
};

struct BenchSample {
  double seconds = 0.0;
  double processor_seconds = 0.0;  // of all threads
  int64_t tokens = 0;       // over all sequences
  int64_t moved_bytes = 0;  // weights and KV cache read from memory
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;
  int64_t sampling_rows = 0;  // sequences times steps

  double tokens_per_step() const { return sampling_rows > 0 ? static_cast<double>(tokens) / static_cast<double>(sampling_rows) : 0; }
  double acceptance() const { return draft_tokens > 0 ? static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens) : 0; }

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  double bytes_per_second() const { return static_cast<double>(moved_bytes) / seconds; }
};

// A different text for each sequence, the same in every repeat.
std::vector<int32_t> MadeUpPrompt(int32_t length, int32_t sequence, int32_t vocab_size);

// Steps that `depth` and the prompts of a batch take before all of it generates, at most.
int32_t WarmUpSteps(const BenchCase& bench, int32_t step_tokens);

// Generation under one setting of the GPU's kernels after the other, within one batch of sequences, `rounds` times over:
// samples of each setting (device/cuda/cuda_tune.h). The cache grows meanwhile, for all alike. Prompts likewise, each time anew,
// behind a round that warms up. kUnsupported without a GPU.
Result<std::vector<std::vector<BenchSample>>> MeasureTunes(Session& session, const BenchCase& bench,
                                                           std::span<const std::string> settings, int32_t rounds,
                                                           const StopOnInterrupt& stop);
// Tokens that a sequence generates before a setting is measured: a graph is captured in them.
inline constexpr int32_t kTuneWarmUp = 4;

// How many tokens are drafted: so many as pay, or always `most`. 0: none.
struct DraftDepth {
  int32_t most = 0;
  bool always = false;
  bool anew = false;  // every time by an engine that has learned nothing of drafts
};

// Generation by an engine for each of the depths, all over one model, in turn, `rounds` times over, and a first time to warm
// up: samples of each case and depth. Each round begins with another depth. An engine gets one case after the other: what it
// learned of drafts at one batch size it has at the next. What the model needs to draft is there for all. Their prefix caches
// must find nothing.
Result<std::vector<std::vector<std::vector<BenchSample>>>> MeasureDrafts(Session& session, std::span<const BenchCase> cases,
                                                                         std::span<const DraftDepth> depths, int32_t rounds,
                                                                         const StopOnInterrupt& stop);

// A prompt is timed until its first token is there; generation while all sequences generate. kCancelled on Ctrl-C.
Result<BenchSample> Measure(Session& session, const BenchCase& bench, const StopOnInterrupt& stop);

}  // namespace cachalot
