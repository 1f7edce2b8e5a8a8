#include "weights/dummy/vocab_families.h"

namespace cachalot {
namespace {

// Short templates of our own with the turn markers of each family. They know system, user and assistant
// messages.
constexpr char kChatMl[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
constexpr char kLlama3[] =
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
constexpr char kMistral[] =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{% else %}{{ '[INST]' + message['content'] + '[/INST]' }}{% "
    "endif %}"
    "{% endfor %}";
constexpr char kDeepSeekLlm[] =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ 'User: ' + message['content'] + '\\n\\n' }}{% elif message['role'] == 'assistant' %}"
    "{{ 'Assistant: ' + message['content'] + eos_token }}{% else %}{{ message['content'] + '\\n\\n' }}{% "
    "endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";
constexpr char kDeepSeekV3[] =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<｜User｜>' + message['content'] }}{% elif message['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message['content'] + eos_token }}{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}";

std::vector<SpecialToken> Controls(std::initializer_list<const char*> texts) {
  std::vector<SpecialToken> tokens;
  for (const char* text : texts) tokens.push_back({text, true});
  return tokens;
}

void Append(std::vector<SpecialToken>* tokens, std::initializer_list<const char*> texts, bool control) {
  for (const char* text : texts) tokens->push_back({text, control});
}

VocabLayout SmolLm() {
  VocabLayout layout;
  layout.pre = "smollm";
  layout.leading = Controls({"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>",
                             "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>",
                             "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>",
                             "<jupyter_output>", "<jupyter_script>", "<empty_output>"});
  layout.bos = "<|im_start|>";
  layout.eos = layout.pad = "<|im_end|>";
  layout.unk = "<|endoftext|>";
  layout.chat_template = kChatMl;
  return layout;
}

VocabLayout Llama3() {
  VocabLayout layout;
  layout.pre = "llama-bpe";
  layout.base_size = 128000;
  layout.trailing =
      Controls({"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>",
                "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"});
  for (int i = 3; layout.trailing.size() < 256; ++i) {
    layout.trailing.push_back({fmt::format("<|reserved_special_token_{}|>", i), true});
  }
  layout.bos = "<|begin_of_text|>";
  layout.eos = layout.eot = "<|eot_id|>";
  layout.pad = "<|finetune_right_pad_id|>";
  layout.add_bos = true;
  layout.chat_template = kLlama3;
  return layout;
}

VocabLayout R1Llama() {
  VocabLayout layout = Llama3();
  layout.trailing[0].text = layout.bos = "<｜begin▁of▁sentence｜>";
  layout.trailing[1].text = layout.eos = "<｜end▁of▁sentence｜>";
  layout.trailing[11] = {"<｜User｜>", false};
  layout.trailing[12] = {"<｜Assistant｜>", false};
  layout.trailing[13] = {"<think>", false};
  layout.trailing[14] = {"</think>", false};
  layout.trailing[15].text = "<｜▁pad▁｜>";
  layout.eot.clear();
  layout.pad = layout.eos;
  layout.chat_template = kDeepSeekV3;
  return layout;
}

// The real one is a sentencepiece vocabulary; a byte-level one of the same size and with the same markers
// stands for it.
VocabLayout Mistral() {
  VocabLayout layout;
  layout.pre = "gpt-2";
  layout.leading = Controls({"<unk>", "<s>", "</s>", "[INST]", "[/INST]"});
  layout.unk = "<unk>";
  layout.bos = "<s>";
  layout.eos = layout.pad = "</s>";
  layout.add_bos = true;
  layout.chat_template = kMistral;
  return layout;
}

constexpr std::initializer_list<const char*> kQwenVision = {
    "<|quad_start|>", "<|quad_end|>",  "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"};
constexpr std::initializer_list<const char*> kQwenTools = {
    "<tool_call>",    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>",  "<|repo_name|>",  "<|file_sep|>"};

VocabLayout Qwen2() {
  VocabLayout layout;
  layout.pre = "qwen2";
  layout.base_size = 151643;
  layout.trailing = Controls({"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
                              "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"});
  Append(&layout.trailing, kQwenVision, true);
  Append(&layout.trailing, kQwenTools, false);
  layout.bos = layout.pad = "<|endoftext|>";
  layout.eos = "<|im_end|>";
  layout.chat_template = kChatMl;
  return layout;
}

VocabLayout Qwen3() {
  VocabLayout layout = Qwen2();
  Append(&layout.trailing, {"<tool_response>", "</tool_response>", "<think>", "</think>"}, false);
  return layout;
}

VocabLayout R1Qwen() {
  VocabLayout layout;
  layout.pre = "deepseek-r1-qwen";
  layout.base_size = 151643;
  layout.trailing = {{"<｜end▁of▁sentence｜>", true},
                     {"<｜User｜>", false},
                     {"<｜Assistant｜>", false},
                     {"<｜begin▁of▁sentence｜>", true},
                     {"<|EOT|>", false},
                     {"<think>", false},
                     {"</think>", false}};
  Append(&layout.trailing, kQwenVision, true);
  Append(&layout.trailing, kQwenTools, false);
  layout.bos = "<｜begin▁of▁sentence｜>";
  layout.eos = layout.pad = "<｜end▁of▁sentence｜>";
  layout.add_bos = true;
  layout.chat_template = kDeepSeekV3;
  return layout;
}

VocabLayout DeepSeekLlm() {
  VocabLayout layout;
  layout.pre = "deepseek-llm";
  layout.base_size = 100000;
  layout.trailing = Controls({"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"});
  layout.bos = "<｜begin▁of▁sentence｜>";
  layout.eos = layout.pad = "<｜end▁of▁sentence｜>";
  layout.add_bos = true;
  layout.chat_template = kDeepSeekLlm;
  return layout;
}

VocabLayout DeepSeekV3() {
  VocabLayout layout;
  layout.pre = "deepseek-v3";
  layout.leading = Controls({"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"});
  layout.base_size = 128000;
  for (int i = 0; i < 798; ++i) layout.trailing.push_back({fmt::format("<｜place▁holder▁no▁{}｜>", i), true});
  Append(&layout.trailing,
         {"<think>", "</think>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>",
          "<｜Assistant｜>", "<|EOT|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
          "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>",
          "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>"},
         false);
  layout.bos = "<｜begin▁of▁sentence｜>";
  layout.eos = "<｜end▁of▁sentence｜>";
  layout.pad = "<｜▁pad▁｜>";
  layout.add_bos = true;
  layout.chat_template = kDeepSeekV3;
  return layout;
}

}  // namespace

VocabLayout LayoutOf(VocabFamily family) {
  switch (family) {
    case VocabFamily::kSmolLm:
      return SmolLm();
    case VocabFamily::kLlama3:
      return Llama3();
    case VocabFamily::kMistral:
      return Mistral();
    case VocabFamily::kQwen2:
      return Qwen2();
    case VocabFamily::kQwen3:
      return Qwen3();
    case VocabFamily::kR1Qwen:
      return R1Qwen();
    case VocabFamily::kR1Llama:
      return R1Llama();
    case VocabFamily::kDeepSeekLlm:
      return DeepSeekLlm();
    case VocabFamily::kDeepSeekV3:
      return DeepSeekV3();
  }
  return {};
}

}  // namespace cachalot
