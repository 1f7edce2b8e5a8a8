// Llama 3's syntax has no markup of its own: an answer that begins with a JSON object whose "name" is one of
// the tools is a call; further ones may follow behind a semicolon. <|python_tag|> may stand in front of the
// object, or of name.call(key="value", …), which is how the built-in tools are called.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tokenizer/chat/call_splitter.h"
#include "tokenizer/chat/object_call.h"

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;

bool IsNameByte(char c, bool first) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (!first && c >= '0' && c <= '9');
}

// Reads name.call(key="value", …).
class PythonCall {
 public:
  explicit PythonCall(std::string_view text) : text_(text) {}

  bool Read() {
    Space();
    if (!Name(&name)) return false;
    behind_name = !text_.empty();
    cut = std::string_view(".call(").starts_with(text_);
    if (!Take(".call(")) return false;
    named = true;
    Space();
    while (!Take(")")) {
      std::string key;
      cut = text_.empty();
      if (!arguments.empty() && !Take(",")) return false;
      Space();
      cut = text_.empty();
      if (!Name(&key)) return false;
      Space();
      cut = text_.empty();
      if (!Take("=")) return false;
      Space();
      cut = text_.find_first_of(",)") == text_.npos;
      Json value;
      if (!Value(&value)) return false;
      arguments[key] = std::move(value);
      Space();
    }
    Space();
    return text_.empty();
  }

  std::string name;
  Json arguments = Json::object();
  // Where it is none:
  bool cut = false;          // it may be the beginning of one
  bool named = false;        // the name is whole
  bool behind_name = false;  // and something follows

 private:
  void Space() {
    while (!text_.empty() && IsJsonSpace(text_[0])) text_.remove_prefix(1);
  }
  bool Take(std::string_view what) {
    if (!text_.starts_with(what)) return false;
    text_.remove_prefix(what.size());
    return true;
  }
  bool Name(std::string* out) {
    size_t n = 0;
    while (n < text_.size() && IsNameByte(text_[n], n == 0)) ++n;
    *out = text_.substr(0, n);
    text_.remove_prefix(n);
    return n > 0;
  }
  bool Value(Json* out) {
    if (text_.empty()) return false;
    std::string text;
    if (const char quote = text_[0]; quote == '"' || quote == '\'') {
      size_t i = 1;
      for (; i < text_.size() && text_[i] != quote; ++i) {
        if (text_[i] == '\\' && i + 1 < text_.size()) {
          const char next = text_[++i];
          text += next == 'n' ? '\n' : next == 't' ? '\t' : next;
        } else {
          text += text_[i];
        }
      }
      cut = i >= text_.size();
      if (cut) return false;
      text_.remove_prefix(i + 1);
      *out = text;
      return true;
    }
    const size_t end = text_.find_first_of(",)");
    if (end == text_.npos) return false;
    text = text_.substr(0, end);
    text_.remove_prefix(end);
    while (!text.empty() && IsJsonSpace(text.back())) text.pop_back();
    if (text == "True") text = "true";
    if (text == "False") text = "false";
    if (text == "None") text = "null";
    *out = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    return !out->is_discarded() && out->is_primitive();
  }

  std::string_view text_;
};

class LlamaSplitter final : public CallSplitter {
 public:
  LlamaSplitter(AnswerWriter* writer, std::vector<std::string> names)
      : CallSplitter(writer), names_(std::move(names)), call_(writer, &names_) {}

  const std::vector<std::string>& tags() const override {
    static const std::vector<std::string> tags = {"<|python_tag|>"};
    return tags;
  }

  void Byte(char c) override {
    switch (where_) {
      case kContent:
        return Content(c);
      case kBetween:
        if (IsJsonSpace(c) || c == ';' || c == ',') return Markup(std::string_view(&c, 1));
        if (c != '{') {
          where_ = kContent;
          return Content(c);
        }
        call_.Reset();
        where_ = kObject;
        return Object(c);
      case kObject:
        return Object(c);
      case kBehindTag:
        if (IsJsonSpace(c)) return Markup(std::string_view(&c, 1));
        where_ = c == '{' ? kObject : kPython;
        return Byte(c);
      case kPython:
        held_ += c;
        if (held_.size() >= AnswerParser::kMaxHeldBytes) DropPython();
        return;
    }
  }

  void Tag(size_t, std::string_view text) override {
    if (where_ == kObject && call_.in_string()) {
      for (const char c : text) Byte(c);
      return;
    }
    if (where_ == kObject && call_.begun()) call_.Close();
    else if (where_ == kObject) ContentOf(call_.TakeHeld());
    else if (where_ == kPython) EndPython();
    Markup(text);
    call_.Reset();
    where_ = kBehindTag;
  }

 private:
  bool IsText(std::string_view) const override {
    switch (where_) {
      case kContent:
        return !after_markup_;
      case kObject:
        return call_.in_string() || (!call_.begun() && !call_.may_begin());
      case kPython:
        return true;
      default:
        return false;
    }
  }

  void End() override {
    if (where_ == kPython) return CutPython();
    if (where_ != kObject) return;
    if (call_.begun()) call_.Cut();
    else if (call_.may_begin()) Markup(call_.TakeHeld());
    else ContentOf(call_.TakeHeld());  // other JSON
  }

  enum Where { kContent, kObject, kBetween, kBehindTag, kPython };

  void Object(char c) {
    const ObjectCall::State state = call_.Push(c);
    if (state == ObjectCall::State::kOpen) return;
    if (!call_.begun()) {
      where_ = kContent;
      return ContentOf(call_.TakeHeld());
    }
    where_ = kBetween;
    after_markup_ = true;
    if (state == ObjectCall::State::kBroken) Byte(c);
  }

  void EndPython() {
    PythonCall call(held_);
    if (!call.Read()) return DropPython();
    writer_.CallName(call.name, held_);
    writer_.Arguments(call.arguments.dump(-1, ' ', false, Json::error_handler_t::replace), "");
    writer_.CallEnd();
    held_.clear();
    after_markup_ = true;
  }

  // Of a call that was cut off the arguments that are whole are there.
  void CutPython() {
    PythonCall call(held_);
    const bool is_whole = call.Read();
    if (is_whole || !call.cut) return EndPython();
    if (!call.named) {
      const auto may_be = [&call](const std::string& name) { return name.starts_with(call.name); };
      if (call.behind_name || std::any_of(names_.begin(), names_.end(), may_be)) return Markup(std::exchange(held_, ""));
      return DropPython();
    }
    std::string arguments = call.arguments.empty() ? "" : call.arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (!arguments.empty()) arguments.pop_back();
    writer_.CallName(call.name, std::exchange(held_, ""));
    writer_.Arguments(arguments, "");
  }

  void DropPython() {
    where_ = kContent;
    ContentOf(std::exchange(held_, ""));
  }

  const std::vector<std::string> names_;
  Where where_ = kObject;  // until the first byte says otherwise
  ObjectCall call_;
  std::string held_;
};

}  // namespace

std::unique_ptr<CallSplitter> MakeLlamaSplitter(AnswerWriter* writer, std::vector<std::string> names) {
  return std::make_unique<LlamaSplitter>(writer, std::move(names));
}

}  // namespace cachalot
