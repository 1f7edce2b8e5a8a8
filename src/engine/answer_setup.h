// How the answers of a model are read and steered, from its tokenizer and chat template.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/call_guide.h"
#include "engine/model_bundle.h"
#include "engine/reasoning_guide.h"
#include "tokenizer/chat/answer_parser.h"

namespace cachalot {

// How answers come apart; the tools' names and whether the prompt opened <think> are the caller's.
AnswerFormat AnswerFormatOf(const ModelBundle& bundle, bool split_reasoning, bool with_tools);
// Special tokens of the vocabulary that such an answer's text needs.
std::vector<int32_t> ShownIdsOf(const ModelBundle& bundle, const AnswerFormat& format);
// budget: tokens of reasoning, -1: any number.
ReasoningLimits ReasoningLimitsOf(const ModelBundle& bundle, bool inside, int32_t budget);

// The beginning of a tool call as this model writes it: up to the name, or with `name` up to its arguments.
// Text and tokens; the name never becomes a control token.
struct CallOpening {
  std::string text;
  std::vector<int32_t> ids;
  CallRule rule;  // for what follows; off where arguments are not written as JSON
};
// names: of the tools, one of which is called where `name` is empty.
Result<CallOpening> OpenCall(const ModelBundle& bundle, std::string_view name, const std::vector<std::string>& names);

}  // namespace cachalot
