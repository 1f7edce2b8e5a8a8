// What a generation looks like in an endpoint's own JSON. A Reply only formats: it sees choices as they grow.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api/generation_params.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {

enum class ReasoningFields { kBoth, kReasoning, kReasoningContent };

struct AnswerToken {
  int32_t token_id = -1;
  float logprob = 0.0f;
  bool known = true;                 // false: the first token of a prompt, which nothing predicted
  std::vector<TopLogprob> top;
};

struct ToolCall {
  std::string id, name, arguments;
  bool ended = false;
};

// A piece of a call: with its first, id and name.
struct ToolCallDelta {
  size_t index = 0;
  ToolCall part;
};

// What an event brought.
struct ChoiceDelta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallDelta> calls;
  std::vector<AnswerToken> tokens;  // with logprobs wanted only
  std::vector<int32_t> token_ids;   // with return_token_ids only
};

struct Choice {
  int32_t prompt_idx = 0;
  int32_t index = 0;                 // in the response
  AnswerParser parser;
  bool primed = false;               // the parser has had what the answer begins with
  std::vector<ToolCall> calls;
  bool leaves_call = false;          // what comes is of a call that may not be made
  std::string content;               // of whole responses only
  std::string reasoning;
  std::vector<AnswerToken> tokens;
  std::vector<float> prompt_logprobs;
  std::vector<TopLogprob> prompt_top;  // GenerationParams::num_prompt_top() for each of prompt_logprobs
  std::vector<int32_t> token_ids;    // of records and with return_token_ids only
  std::string text;                  // of records only
  int64_t text_offset = 0;           // characters of text that the tokens so far make
  int32_t num_tokens = 0;
  int32_t num_reasoning_tokens = 0;
  int32_t num_cached_tokens = 0;
  int64_t queue_us = 0;              // until its first step
  int64_t first_token_us = 0;        // steady clock
  int64_t last_token_us = 0;
  double sum_logprob = 0.0;
  bool cut = false;                  // it has the one call that it may have
  bool begun = false;                // its first chunk is out
  bool finished = false;
  FinishReason finish_reason = FinishReason::kStop;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;
};
std::string UsageJson(const Usage& usage);

// Adds what the parser found to the choice's calls and to the delta. A choice that is cut takes no more. The first call of
// one that had to be a call names one of the tools, or is left out.
void TakeParts(const std::vector<AnswerEvent>& parts, const GenerationParams& params, Choice* choice, ChoiceDelta* delta);

// "stop", "length", "tool_calls" where all calls have ended, with a JSON object as arguments; null while it runs.
std::string FinishReasonJson(const Choice& choice);

// "name": [1, 2, …]
std::string TokenIdsJson(const char* name, std::span<const int32_t> ids);
// "prompt_logprobs": [null, {"17": {"logprob", "rank", "decoded_token"}, …}, …]: of each token of the prompt the best ones
// and itself, as vLLM has it. The rank of a token that is none of the best is null.
std::string PromptLogprobsJson(const GenerationParams& params, const Choice& choice, const Tokenizer& tokenizer);

class Reply {
 public:
  virtual ~Reply() = default;
  // Chunks of a stream: the JSON of one event each, "" for none. `usage`: JSON that goes into it, or "".
  virtual std::string FirstChunk(Choice& choice, const std::string& usage) = 0;
  virtual std::string DeltaChunk(Choice& choice, const ChoiceDelta& delta, const std::string& usage) = 0;
  virtual std::string LastChunk(Choice& choice, const std::string& usage) = 0;
  virtual std::string UsageChunk(const std::string& usage) = 0;
  // A whole response.
  virtual std::string Body(std::vector<Choice*> choices, const std::string& usage) = 0;
  // Whether the first chunk must wait until the whole prompt is computed.
  virtual bool FirstNeedsPrompt() const { return false; }
};

std::unique_ptr<Reply> MakeChatReply(std::string id, int64_t created, const GenerationParams& params, const Tokenizer& tokenizer,
                                     ReasoningFields fields);
std::unique_ptr<Reply> MakeCompletionReply(std::string id, int64_t created, const GenerationParams& params,
                                           const Tokenizer& tokenizer);

}  // namespace cachalot
