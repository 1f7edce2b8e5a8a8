// What golden tests share: a model opened in one of many ways, prompts through an engine, and the comparison of logits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "golden/golden_case.h"

namespace cachalot {

// The one place for how far logits may be from the reference's (whose deviation is about 1.4).
inline constexpr float kReferenceTolerance = 2e-3f;
inline constexpr float kOptimisedTolerance = 2e-2f;

struct Outcome {
  std::vector<float> logits;       // of the prompt, [tokens, vocab]
  std::vector<int32_t> generated;
  std::vector<float> generated_logits;
  std::vector<std::vector<int32_t>> experts;  // of each step: tokens sent to each expert (at depth 0)
};

struct Variant {
  std::string isa = "ref";
  int32_t chunk = 512;
  int32_t num_others = 0;          // sequences beside it, of other lengths
  bool deterministic = false;
  MlaForm mla_form = MlaForm::kByCost;
  int64_t mla_piece_tokens = 0;
  std::string kv_type = "f32";
  int32_t kv_sinks = -1;           // as KvOptions has it
  std::string device = "cpu";
  bool gpu_exact = true;
  bool gpu_graphs = true;
  int32_t gpu_depth = 1;
  int32_t gpu_layers = -1;
  int64_t kv_tokens = 0;           // 0: enough for all
  bool prefix_cache = false;
  bool swap = false;               // preempted sequences move to the host
};

class GoldenHarness {
 public:
  static Result<std::unique_ptr<GoldenHarness>> Open(const GoldenCase& golden, const Variant& variant);
  // all_logits: also of every generated token (a step with logits is no graph launch on a GPU).
  Result<Outcome> Generate(const GoldenCase& golden, size_t prompt_tokens, int32_t max_tokens, bool all_logits = true);
  ModelBundle& bundle() { return bundle_; }
  Engine& engine() { return *engine_; }

 private:
  ModelBundle bundle_;
  std::unique_ptr<Engine> engine_;
  int32_t num_others_ = 0;
};

// NaN if there is one.
float MaxDifference(const std::vector<float>& a, const std::vector<float>& b);
int32_t ArgMax(const float* logits, int32_t vocab);
// The gap between the two best logits.
float Margin(const float* logits, int32_t vocab);
double CosineOf(const float* a, const float* b, size_t count);

}  // namespace cachalot
