#include "golden/golden_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace cachalot {

Result<std::unique_ptr<GoldenHarness>> GoldenHarness::Open(const GoldenCase& golden, const Variant& variant) {
  auto harness = std::make_unique<GoldenHarness>();
  ModelOptions options;
  options.path = golden.folder;
  options.isa = variant.isa;
  options.kv.type = variant.kv_type;
  options.kv.sinks = variant.kv_sinks;
  options.num_threads = 2;
  options.max_seqs = 1 + variant.num_others;
  options.max_step_tokens = 512;
  options.max_logit_rows = 512;
  options.deterministic = variant.deterministic;
  options.mla_form = variant.mla_form;
  options.mla_piece_tokens = variant.mla_piece_tokens;
  options.device = variant.device;
  options.gpu_exact = variant.gpu_exact;
  options.gpu_graphs = variant.gpu_graphs;
  options.gpu_depth = variant.gpu_depth;
  options.gpu_layers = variant.gpu_layers;
  options.kv_tokens = variant.kv_tokens;
  options.swap_tokens = variant.swap ? 4096 : 0;
  ASSIGN_OR_RETURN(harness->bundle_, OpenModel(options));
  EngineOptions engine_options;
  engine_options.prefill_chunk = variant.chunk;
  engine_options.enable_prefix_caching = variant.prefix_cache;
  if (variant.swap) engine_options.preemption = PreemptionMode::kSwap;
  ASSIGN_OR_RETURN(harness->engine_, Engine::Create(harness->bundle_.runtime.get(), nullptr, engine_options));
  harness->num_others_ = variant.num_others;
  return harness;
}

Result<Outcome> GoldenHarness::Generate(const GoldenCase& golden, size_t prompt_tokens, int32_t max_tokens, bool all_logits) {
  Outcome run;
  Status error;
  Request request;
  request.prompt_ids.assign(golden.tokens.begin(), golden.tokens.begin() + static_cast<int64_t>(prompt_tokens));
  request.max_tokens = max_tokens;
  request.all_logits = all_logits;
  const size_t prompt_logits = prompt_tokens * static_cast<size_t>(golden.vocab);
  for (int32_t i = 0; i < num_others_; ++i) {
    Request other;
    const int64_t begin = 3 * (i + 1);
    other.prompt_ids.assign(golden.tokens.begin() + begin, golden.tokens.begin() + begin + 5 + 11 * i);
    other.max_tokens = 20;
    ASSIGN_OR_RETURN(const uint64_t id, engine_->Submit(std::move(other), [](const RequestOutput&) {}));
    (void)id;
  }
  ASSIGN_OR_RETURN(const uint64_t id, engine_->Submit(std::move(request), [&](const RequestOutput& output) {
    for (float logit : output.logits) {
      (run.logits.size() < prompt_logits ? run.logits : run.generated_logits).push_back(logit);
    }
    run.generated.insert(run.generated.end(), output.token_ids.begin(), output.token_ids.end());
    if (output.finished && output.finish_reason == FinishReason::kError) error = output.error;
  }));
  (void)id;
  while (engine_->HasWork()) {
    RETURN_IF_ERROR(engine_->Step());
    run.experts.push_back(engine_->last_result().expert_counts);
  }
  if (!error.ok()) return error;
  return run;
}

float MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN is the worst of all, and stays
    if (std::isnan(difference)) return difference;
  }
  return worst;
}

int32_t ArgMax(const float* logits, int32_t vocab) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
}

float Margin(const float* logits, int32_t vocab) {
  const int32_t best = ArgMax(logits, vocab);
  float second = -INFINITY;
  for (int32_t i = 0; i < vocab; ++i) {
    if (i != best) second = std::max(second, logits[i]);
  }
  return logits[best] - second;
}

double CosineOf(const float* a, const float* b, size_t count) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < count; ++i) {
    dot += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return dot / std::sqrt(aa * bb);
}

}  // namespace cachalot
