#include "engine/kv_gate.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/kv_gate_text.h"
#include "engine/logit_kl.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

constexpr int32_t kMaxTokens = 512;   // of the text; of what a model says, the second half counts
constexpr int32_t kLeastTokens = 64;
constexpr int32_t kStepTokens = 128;
constexpr int64_t kMaxTextBytes = 1 << 20;

Result<std::vector<int32_t>> GateTokens(const KvGateOptions& gate, int32_t max_context, const Tokenizer& tokenizer) {
  std::string text = kKvGateText;
  if (!gate.text.empty()) {
    ASSIGN_OR_RETURN(text, ReadTextFile(gate.text, kMaxTextBytes));
  }
  ASSIGN_OR_RETURN(auto tokens, tokenizer.Encode(text, {.add_special = true, .parse_special = false}));
  if (tokens.size() > kMaxTokens) tokens.resize(kMaxTokens);
  if (tokens.size() > static_cast<size_t>(max_context)) tokens.resize(static_cast<size_t>(max_context));
  if (tokens.size() < kLeastTokens) {
    return InvalidArgument("--kv-max-kl: the text that is measured on has {} tokens (of a context of {}), at least {} are needed", tokens.size(),
                           max_context, kLeastTokens);
  }
  return tokens;
}

// The logits of the second half of the text's positions.
Result<std::vector<float>> LogitsWith(const KvChoice& choice, const RuntimeOptions& main, const std::vector<int32_t>& tokens,
                                      KvGateModel* model) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  RuntimeOptions options = main;
  options.max_seqs = 1;
  options.max_step_tokens = options.max_logit_rows = kStepTokens;
  options.max_context = num_tokens + 1;
  options.kv_tokens = num_tokens + 1;
  options.swap_tokens = 0;
  options.drafts = DraftKind::kNone;
  options.max_drafts = 0;
  options.accept_fixed = -1;
  options.kv_dtype = choice.plain;
  options.kv_types = choice.types;
  model->model->SetKvTypes(choice.types, choice.key_means);
  const auto vocab = static_cast<size_t>(model->model->spec().vocab_size);
  ASSIGN_OR_RETURN(auto runtime, Runtime::Create(std::move(model->model), std::move(model->pool), options));
  std::vector<float> logits;
  size_t seen = 0;  // values
  const size_t skipped = tokens.size() / 2 * vocab;
  bool finished = false;
  Status status;
  {
    ASSIGN_OR_RETURN(const auto engine, Engine::Create(runtime.get(), nullptr, {.max_batch_tokens = kStepTokens, .prefill_chunk = kStepTokens}));
    Request request;
    request.prompt_ids = tokens;
    request.all_logits = true;
    RETURN_IF_ERROR(engine->Submit(std::move(request), [&](const RequestOutput& output) {
                            const size_t skip = std::min(output.logits.size(), skipped - std::min(seen, skipped));
                            logits.insert(logits.end(), output.logits.begin() + static_cast<ptrdiff_t>(skip), output.logits.end());
                            seen += output.logits.size();
                            if (!output.error.ok()) status = output.error;
                            finished = output.finished;
                          }).status());
    while (!finished && status.ok()) RETURN_IF_ERROR(engine->Step());
  }
  RETURN_IF_ERROR(status);
  Runtime::Parts parts = Runtime::TakeApart(std::move(runtime));
  model->model = std::move(parts.model);
  model->pool = std::move(parts.pool);
  return logits;
}

Result<double> MeanKl(const std::vector<float>& base, const std::vector<float>& other, size_t vocab) {
  if (base.size() != other.size() || base.empty()) return Internal("{} and {} logits", base.size(), other.size());
  double sum = 0;
  for (size_t at = 0; at < base.size(); at += vocab) sum += LogitKl(std::span(base).subspan(at, vocab), std::span(other).subspan(at, vocab));
  const double mean = sum / static_cast<double>(base.size() / vocab);
  if (!std::isfinite(mean)) return Internal("--kv-max-kl: a logit is no finite number");
  return mean;
}

std::string NameOf(const KvOptions& options, const KvChoice& choice) {
  return choice.mix.empty() ? options.type : fmt::format("{:.3g} bits ({})", options.budget, choice.mix);
}

}  // namespace

std::vector<std::string> KvFallbacks(const std::string& type) {
  const std::vector<std::string> ladder = {"k4v4", "k6v4", "k6v8", "k8v8"};
  const auto at = std::find(ladder.begin(), ladder.end(), type);
  std::vector<std::string> rest(at == ladder.end() ? ladder.end() - 1 : at + 1, ladder.end());
  rest.emplace_back("f16");
  return rest;
}

Result<KvChoice> GateKv(const KvGateOptions& gate, const KvOptions& options, const KvChoice& choice, const RuntimeOptions& runtime,
                        const Tokenizer& tokenizer, KvGateModel* model) {
  const ModelSpec spec = model->model->spec();
  const auto vocab = static_cast<size_t>(spec.vocab_size);
  std::vector<std::string> fallbacks;
  if (gate.fallback == "auto") fallbacks = KvFallbacks(options.type);
  else if (gate.fallback != "refuse") fallbacks = {gate.fallback};
  ASSIGN_OR_RETURN(const auto tokens, GateTokens(gate, runtime.max_context, tokenizer));
  KvChoice exact;
  exact.plain = DType::kBF16;
  ASSIGN_OR_RETURN(const auto base, LogitsWith(exact, runtime, tokens, model));
  KvOptions now = options;
  KvChoice chosen = choice;
  std::string told;  // what was too much
  for (size_t next = 0;; ++next) {
    if (!chosen.types.any_quantised()) break;
    ASSIGN_OR_RETURN(const auto logits, LogitsWith(chosen, runtime, tokens, model));
    ASSIGN_OR_RETURN(const double kl, MeanKl(base, logits, vocab));
    if (kl <= gate.max_kl) {
      if (!told.empty()) told += fmt::format("; going on with {} ({:.6f})", NameOf(now, chosen), kl);
      break;
    }
    told += fmt::format("{}--kv-type {}: a mean KL divergence of {:.6f} nats from BF16 over {} positions", told.empty() ? "" : "; ",
                        NameOf(now, chosen), kl, base.size() / vocab);
    if (next == fallbacks.size()) {
      return Exhausted("{}, and --kv-max-kl allows {} ({})", told, gate.max_kl,
                       fallbacks.empty() ? "--kv-fallback auto would go on with a more exact type" : "nothing is left to fall back to");
    }
    const std::string& type = fallbacks[next];
    now = {.type = type, .sinks = options.sinks};
    if (FindKvFormat(type) != nullptr) now.layers = options.layers, now.calibration = options.calibration;
    ASSIGN_OR_RETURN(chosen, ChooseKv(now, spec));
    chosen.types.sink_tokens = chosen.types.any_quantised() ? choice.types.sink_tokens : 0;
    if (!chosen.types.any_quantised()) told += fmt::format("; going on with {}", type);
  }
  model->model->SetKvTypes(chosen.types, chosen.key_means);
  if (!told.empty()) LOG_WARN("--kv-max-kl {}: {}", gate.max_kl, told);
  return chosen;
}

}  // namespace cachalot
