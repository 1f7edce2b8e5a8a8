#include "tokenizer/known_tokens.h"

#include <algorithm>
#include <iterator>

namespace cachalot {
namespace {

constexpr std::string_view kEndTexts[] = {
    "<|im_end|>",       // ChatML: Qwen, SmolLM
    "<|endoftext|>",    // GPT-2, Qwen, SmolLM
    "<|eot_id|>",       // Llama 3
    "<|eom_id|>",       // Llama 3.1: a tool call awaits its answer
    "<|end_of_text|>",  // Llama 3, Granite
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",        // DeepSeek
    "<end_of_turn>",  // Gemma
    "<|return|>",
    "<|call|>",
    "<end_of_utterance>",
};

// Besides everything in <|…|> and <｜…｜>.
constexpr std::string_view kMarkup[] = {
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<bos>",
    "<eos>",
    "<mask>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tool_result>",
    "</tool_result>",
    "<function_results>",
    "</function_results>",
    "｜DSML｜",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CONTENT]",
    "[CALL_ID]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
};

bool Between(std::string_view text, std::string_view begin, std::string_view end) {
  return text.size() > begin.size() + end.size() && text.starts_with(begin) && text.ends_with(end);
}

}  // namespace

std::span<const std::string_view> KnownEndTexts() {
  return kEndTexts;
}

bool LooksLikeMarkup(std::string_view text) {
  return Between(text, "<|", "|>") || Between(text, "<｜", "｜>") ||
         std::find(std::begin(kMarkup), std::end(kMarkup), text) != std::end(kMarkup);
}

}  // namespace cachalot
