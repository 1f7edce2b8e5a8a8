// Qwen's syntax: <tool_call>, a JSON object, </tool_call>. A tag inside one of the object's strings is text,
// except for a closing tag on a line of its own: JSON has no line breaks there, so the string never ended.
#include "tokenizer/chat/call_splitter.h"
#include "tokenizer/chat/object_call.h"

namespace cachalot {
namespace {

class HermesSplitter final : public CallSplitter {
 public:
  explicit HermesSplitter(AnswerWriter* writer) : CallSplitter(writer), call_(writer, nullptr) {}

  const std::vector<std::string>& tags() const override {
    static const std::vector<std::string> tags = {"<tool_call>", "\n<tool_call>", "</tool_call>"};
    return tags;
  }

  void Byte(char c) override {
    if (where_ == kContent) return Content(c);
    if (where_ == kBehind) {
      // One bracket too many is the commonest mistake.
      if (IsJsonSpace(c) || c == '}' || c == ']') return Markup(std::string_view(&c, 1));
      where_ = kContent;
      return Content(c);
    }
    const ObjectCall::State state = call_.Push(c);
    if (state == ObjectCall::State::kOpen) return;
    if (!call_.begun()) {
      where_ = kContent;
      return ContentOf(call_.TakeHeld());
    }
    where_ = kBehind;
    after_markup_ = true;
    if (state == ObjectCall::State::kBroken) Byte(c);
  }

  void Tag(size_t tag, std::string_view text) override {
    const bool closes = tag == kClose;
    if (where_ == kCall && call_.in_string() && !(closes && call_.after_newline())) {
      for (const char c : text) Byte(c);
      return;
    }
    if (where_ == kCall) CloseCall();
    Markup(text);
    where_ = closes ? kContent : kCall;
    call_.Reset();
  }

 private:
  bool IsText(std::string_view) const override {
    return where_ == kContent ? !after_markup_ : where_ == kCall && call_.in_string();
  }

  void End() override {
    if (where_ != kCall) return;
    if (call_.begun()) call_.Cut();
    else Markup(call_.TakeHeld());
  }

  enum Where { kContent, kCall, kBehind };
  static constexpr size_t kClose = 2;

  void CloseCall() {
    if (call_.begun()) call_.Close();
    else ContentOf(call_.TakeHeld());
  }

  Where where_ = kContent;
  ObjectCall call_;
};

}  // namespace

std::unique_ptr<CallSplitter> MakeHermesSplitter(AnswerWriter* writer) {
  return std::make_unique<HermesSplitter>(writer);
}

}  // namespace cachalot
