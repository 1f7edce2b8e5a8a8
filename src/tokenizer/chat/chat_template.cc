#include "tokenizer/chat/chat_template.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "tokenizer/chat/chat_caps.h"
#include "tokenizer/chat/chat_input.h"
#include "tokenizer/chat/jinja/interpreter.h"
#include "tokenizer/chat/jinja/jinja_program.h"
#include "tokenizer/chat/jinja/json_dump.h"

namespace cachalot {
namespace {

using jinja::Value;

constexpr int kMaxKeys = 4096;  // of one JSON object
constexpr int kMaxJsonDepth = 200;
constexpr int64_t kProbeSteps = 200'000;

// What chat_template_kwargs may not replace.
constexpr std::string_view kReserved[] = {"messages", "tools", "bos_token", "eos_token"};

struct TooLarge {};

// Messages may quote the request or the template (raise_exception): one line, of bounded length.
Status OneLine(const Status& status) {
  constexpr size_t kLongest = 900;
  std::string text = "chat template: ";
  for (const char c : status.message()) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    text += control ? ' ' : c;
  }
  if (text.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end;  // not inside a character
    text = text.substr(0, end) + "…";
  }
  return Status(status.code(), text);
}

Value TrustedText(jinja::Runtime& rt, std::string_view text) {
  return Value::Str(jinja::BorrowText(rt, text, false));
}

Status DefineInput(jinja::Runtime& rt, jinja::Interpreter* interpreter, const ChatInput& input,
                   const ChatTemplateCaps& caps) {
  ASSIGN_OR_RETURN(const Value messages,
                   MessagesValue(rt, *input.messages, input.adapt_messages ? &caps : nullptr));
  interpreter->Define("messages", messages);
  Value tools = Value::None();
  if (input.tools != nullptr && !(input.adapt_messages && input.tools->empty())) {
    ASSIGN_OR_RETURN(tools, jinja::FromJson(rt, *input.tools, true));
  }
  interpreter->Define("tools", tools);
  Value documents = Value::None();
  if (input.documents != nullptr) {
    ASSIGN_OR_RETURN(documents, jinja::FromJson(rt, *input.documents, true));
  }
  interpreter->Define("documents", documents);
  interpreter->Define("add_generation_prompt", Value::Bool(input.add_generation_prompt));
  if (input.extra == nullptr || input.extra->is_null()) return Status::Ok();
  if (!input.extra->is_object())
    return InvalidArgument("chat_template_kwargs: must be an object, not a {}", input.extra->type_name());
  for (auto it = input.extra->begin(); it != input.extra->end(); ++it) {
    if (std::find(std::begin(kReserved), std::end(kReserved), it.key()) != std::end(kReserved)) {
      return InvalidArgument("chat_template_kwargs: '{}' cannot be set there", it.key());
    }
    ASSIGN_OR_RETURN(const Value value, jinja::FromJson(rt, it.value(), true));
    interpreter->Define(it.key(), value);
  }
  return Status::Ok();
}

Result<RenderedPrompt> RenderProgram(const jinja::Program& program, std::string_view bos,
                                     std::string_view eos, const ChatTemplateLimits& limits,
                                     const ChatTemplateCaps& caps, const ChatInput& input) {
  if (input.messages == nullptr) return InvalidArgument("messages: missing");
  try {
    jinja::Runtime rt(limits);
    rt.now_unix_seconds = input.now_unix_seconds;
    jinja::Interpreter interpreter(program, rt);
    if (!bos.empty()) interpreter.Define("bos_token", TrustedText(rt, bos));
    if (!eos.empty()) interpreter.Define("eos_token", TrustedText(rt, eos));
    RETURN_IF_ERROR(DefineInput(rt, &interpreter, input, caps));
    jinja::StrBuilder out(rt);
    RETURN_IF_ERROR(interpreter.Run(&out));
    RenderedPrompt prompt;
    prompt.text = out.text();
    prompt.user_ranges.reserve(out.ranges().size());
    for (const jinja::ByteRange& r : out.ranges()) prompt.user_ranges.emplace_back(r.begin, r.end);
    return prompt;
  } catch (const std::bad_alloc&) {
    return Exhausted("out of memory");
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument("{}", e.what());
  }
}

}  // namespace

Result<ChatJson> ParseChatJson(std::string_view text) {
  std::vector<int> keys;  // of the objects that are open
  const auto watch = [&](int depth, ChatJson::parse_event_t event, ChatJson&) {
    if (event == ChatJson::parse_event_t::object_start) keys.push_back(0);
    if (event == ChatJson::parse_event_t::object_end) keys.pop_back();
    if (event == ChatJson::parse_event_t::key && ++keys.back() > kMaxKeys) throw TooLarge();
    if (depth > kMaxJsonDepth) throw TooLarge();
    return true;
  };
  try {
    return ChatJson::parse(text, watch);
  } catch (const TooLarge&) {
    return Exhausted("JSON: an object has more than {} keys, or values are nested deeper than {}", kMaxKeys,
                     kMaxJsonDepth);
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument("JSON: {}", e.what());
  } catch (const std::bad_alloc&) {
    return Exhausted("JSON: out of memory");
  }
}

bool EndsInsideThink(const RenderedPrompt& prompt) {
  const size_t begin = prompt.user_ranges.empty() ? 0 : static_cast<size_t>(prompt.user_ranges.back().second);
  const std::string_view tail = std::string_view(prompt.text).substr(begin);
  const size_t open = tail.rfind("<think>");
  const size_t close = tail.rfind("</think>");
  return open != tail.npos && (close == tail.npos || close < open);
}

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source, std::string_view bos_text,
                                                          std::string_view eos_text,
                                                          ChatTemplateLimits limits) {
  try {
    std::unique_ptr<ChatTemplate> out(new ChatTemplate());
    Result<std::unique_ptr<const jinja::Program>> program = jinja::Program::Parse(source, limits);
    if (!program.ok()) return OneLine(program.status());
    out->program_ = std::move(program).value();
    out->bos_text_ = bos_text;
    out->eos_text_ = eos_text;
    out->limits_ = limits;
    ChatTemplateLimits probe_limits = limits;
    probe_limits.max_steps = std::min(limits.max_steps, kProbeSteps);
    out->caps_ = ProbeCaps([&](const ChatInput& input) {
      ChatInput raw = input;
      raw.adapt_messages = false;
      return RenderProgram(*out->program_, bos_text, eos_text, probe_limits, out->caps_, raw);
    });
    out->caps_.mentions_enable_thinking =
        out->program_->Reads("enable_thinking") || out->program_->Reads("thinking");
    return out;
  } catch (const std::bad_alloc&) {
    return Exhausted("chat template: out of memory");
  }
}

Result<RenderedPrompt> ChatTemplate::Render(const ChatInput& input) const {
  Result<RenderedPrompt> prompt = RenderProgram(*program_, bos_text_, eos_text_, limits_, caps_, input);
  if (!prompt.ok()) return OneLine(prompt.status());
  return prompt;
}

std::string_view ChatMlTemplate() {
  return "{%- for message in messages %}"
         "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
         "{%- endfor %}"
         "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
}

}  // namespace cachalot
