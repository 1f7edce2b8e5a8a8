// A model opened with its engine, and one answer after the other from it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/console.h"
#include "engine/engine.h"
#include "engine/answer_setup.h"
#include "engine/model_bundle.h"
#include "server/api/tool_request.h"

namespace cachalot {

struct GenerationStats {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  double prompt_seconds = 0.0;    // until the first token
  double generate_seconds = 0.0;  // from the first token to the last
  // By MoE layer, averaged over all steps so far (EngineStats); empty for dense models.
  std::vector<double> moe_activation_ratio;
  bool drafted = false;          // there was a drafter
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;
  int64_t steps = 0;             // that brought tokens
};

struct Answer {
  std::string text;
  FinishReason reason = FinishReason::kStop;
  bool interrupted = false;  // by Ctrl-C; the reason is kCancelled
  GenerationStats stats;
};

class Session {
 public:
  // chunk: a prompt advances by at most this many tokens in a step; 0: as many as a step holds.
  static Result<std::unique_ptr<Session>> Open(const ModelOptions& options, int32_t chunk = 0);
  // max_batch_tokens 0: what suits the device; prefill_chunk 0: as much as a step may have.
  static Result<std::unique_ptr<Session>> Open(const ModelOptions& options, EngineOptions engine);
  ~Session();

  ModelBundle& bundle() { return bundle_; }
  Engine& engine() { return *engine_; }
  // As the engine was made with.
  const EngineOptions& engine_options() const { return engine_options_; }
  double load_seconds() const { return load_seconds_; }
  // The tokenizer, or why there is none.
  Result<const Tokenizer*> tokenizer() const;

  // What the model is told that it may call, and how many tokens it may reason (-1: any number).
  void set_tools(ToolRequest tools) { tools_ = std::move(tools); }
  void set_reasoning_budget(int32_t tokens) { reasoning_budget_ = tokens; }

  // A conversation, a JSON list of messages, ready for an answer, and how that comes apart.
  struct ChatPrompt {
    std::vector<int32_t> ids;
    AnswerFormat format;
    ReasoningLimits reasoning;
    std::vector<int32_t> shown_ids;
    // All but max_tokens.
    void MoveTo(Request* request);
  };
  Result<ChatPrompt> MakeChatPrompt(const std::string& messages_json) const;
  // Tokens of a text as it is, with BOS as the model wants it.
  Result<std::vector<int32_t>> TextPrompt(std::string_view text) const;

  // Runs one request. Text is handed over as it comes; an error from `on_output` (a closed output) ends the
  // request and is returned. max_tokens below 0: until the model ends or the context is full.
  Result<Answer> Generate(Request request, const std::function<Status(const RequestOutput&)>& on_output,
                          const StopOnInterrupt& stop);

 private:
  Session() = default;

  ModelBundle bundle_;
  std::unique_ptr<Engine> engine_;
  EngineOptions engine_options_;
  ToolRequest tools_;
  int32_t reasoning_budget_ = -1;
  double load_seconds_ = 0.0;
};

// "prompt 12 tokens, 0.10 s, 120.0 tokens/s; …", two lines for standard error.
std::string StatsText(const GenerationStats& stats);

}  // namespace cachalot
