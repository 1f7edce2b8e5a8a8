#include "tokenizer/chat/chat_input.h"

#include <nlohmann/json.hpp>

#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/json_dump.h"

namespace cachalot {
namespace {

using jinja::Value;

constexpr int kMessageDepth = 2;  // of a message's fields, for the nesting limit

Value Text(jinja::Runtime& rt, std::string_view text) {
  return Value::Str(jinja::BorrowText(rt, text, true));
}

// A dict in the making: keys here are known to differ.
class Fields {
 public:
  explicit Fields(jinja::Runtime& rt) : rt_(rt) {}
  void Add(std::string_view key, const Value& value) { entries_.push_back({Text(rt_, key), value}); }
  Value Finish() {
    auto* copy = rt_.arena.NewArray<jinja::DictEntry>(entries_.size());
    std::copy(entries_.begin(), entries_.end(), copy);
    return Value::Of(
        rt_.arena.New<jinja::Dict>(jinja::Dict{copy, static_cast<uint32_t>(entries_.size()), nullptr, 0}));
  }

 private:
  jinja::Runtime& rt_;
  std::vector<jinja::DictEntry> entries_;
};

// [{"type": "text", "text": …}, …] as one text.
Result<Value> JoinParts(jinja::Runtime& rt, const ChatJson& parts, size_t message) {
  jinja::StrBuilder out(rt);
  for (size_t i = 0; i < parts.size(); ++i) {
    const ChatJson& part = parts[i];
    if (i > 0) out.Add("\n", true);
    if (part.is_string()) {
      out.Add(part.get_ref<const std::string&>(), true);
      continue;
    }
    const auto text = part.is_object() ? part.find("text") : part.end();
    if (!part.is_object() || text == part.end() || !text->is_string()) {
      std::string type = "unknown";
      if (part.is_object() && part.contains("type") && part["type"].is_string()) type = part["type"];
      return Unsupported(
          "messages[{}].content[{}]: a part of type '{}' is not text, which is all this model takes", message,
          i, type.substr(0, 60));
    }
    out.Add(text->get_ref<const std::string&>(), true);
  }
  ASSIGN_OR_RETURN(const jinja::String* joined, out.Finish());
  return Value::Str(joined);
}

Result<Value> Content(jinja::Runtime& rt, const ChatJson& content, bool is_assistant,
                      const ChatTemplateCaps& caps, size_t message) {
  if (content.is_null()) return is_assistant && !caps.needs_text_content ? Value::None() : Text(rt, "");
  if (content.is_array() && !caps.reads_content_parts) return JoinParts(rt, content, message);
  return jinja::FromJson(rt, content, true, kMessageDepth);
}

// The arguments of a call in the form that the template prints well.
Result<Value> Arguments(jinja::Runtime& rt, const ChatJson& arguments, ToolArgumentsForm form) {
  ASSIGN_OR_RETURN(const Value value, jinja::FromJson(rt, arguments, true, kMessageDepth + 3));
  if (form == ToolArgumentsForm::kObject && value.is_string()) {
    // An answer that was cut off may have left text that is no JSON: it stays text.
    const Result<Value> parsed = jinja::ParseJson(rt, value.s);
    if (parsed.ok() && parsed->is_dict()) return *parsed;
    if (!parsed.ok() && parsed.status().code() == StatusCode::kExhausted) return parsed.status();
  }
  if (form == ToolArgumentsForm::kString && !value.is_string() && !value.is_none()) {
    ASSIGN_OR_RETURN(const jinja::String* text, jinja::DumpJson(rt, value, {}));
    return Value::Str(text);
  }
  return value;
}

Result<Value> ToolCalls(jinja::Runtime& rt, const ChatJson& calls, ToolArgumentsForm form) {
  std::vector<Value> out;
  for (const ChatJson& call : calls) {
    if (!call.is_object()) {
      ASSIGN_OR_RETURN(const Value value, jinja::FromJson(rt, call, true, kMessageDepth + 1));
      out.push_back(value);
      continue;
    }
    Fields fields(rt);
    for (auto it = call.begin(); it != call.end(); ++it) {
      Value value;
      if (it.key() == "function" && it.value().is_object()) {
        Fields function(rt);
        for (auto f = it.value().begin(); f != it.value().end(); ++f) {
          Value part;
          if (f.key() == "arguments") {
            ASSIGN_OR_RETURN(part, Arguments(rt, f.value(), form));
          } else {
            ASSIGN_OR_RETURN(part, jinja::FromJson(rt, f.value(), true, kMessageDepth + 3));
          }
          function.Add(f.key(), part);
        }
        value = function.Finish();
      } else {
        ASSIGN_OR_RETURN(value, jinja::FromJson(rt, it.value(), true, kMessageDepth + 2));
      }
      fields.Add(it.key(), value);
    }
    out.push_back(fields.Finish());
  }
  return jinja::MakeSequence(rt, jinja::Kind::kList, out);
}

Result<Value> Message(jinja::Runtime& rt, const ChatJson& message, const ChatTemplateCaps& caps,
                      size_t index) {
  const auto role = message.find("role");
  const bool is_assistant =
      role != message.end() && role->is_string() && role->get_ref<const std::string&>() == "assistant";
  Fields fields(rt);
  for (auto it = message.begin(); it != message.end(); ++it) {
    const std::string& key = it.key();
    Value value;
    if (key == "content") {
      ASSIGN_OR_RETURN(value, Content(rt, it.value(), is_assistant, caps, index));
    } else if (key == "tool_calls" && (it.value().is_null() || it.value().empty())) {
      continue;
    } else if (key == "tool_calls" && it.value().is_array()) {
      ASSIGN_OR_RETURN(value, ToolCalls(rt, it.value(), caps.tool_arguments));
    } else {
      ASSIGN_OR_RETURN(value, jinja::FromJson(rt, it.value(), true, kMessageDepth));
    }
    fields.Add(key, value);
  }
  if (!message.contains("content")) {
    ASSIGN_OR_RETURN(const Value value, Content(rt, ChatJson(nullptr), is_assistant, caps, index));
    fields.Add("content", value);
  }
  return fields.Finish();
}

}  // namespace

Result<jinja::Value> MessagesValue(jinja::Runtime& rt, const ChatJson& messages,
                                   const ChatTemplateCaps* caps) {
  if (!messages.is_array())
    return InvalidArgument("messages: must be a list, not a {}", messages.type_name());
  if (caps == nullptr) return jinja::FromJson(rt, messages, true);
  std::vector<Value> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) {
      return InvalidArgument("messages[{}]: must be an object, not a {}", i, messages[i].type_name());
    }
    ASSIGN_OR_RETURN(const Value message, Message(rt, messages[i], *caps, i));
    out.push_back(message);
  }
  return jinja::MakeSequence(rt, jinja::Kind::kList, out);
}

}  // namespace cachalot
