// Mistral's syntax. Older models write [TOOL_CALLS] and a JSON list of objects, newer ones
// [TOOL_CALLS]name[ARGS]{…} for each call, with [CALL_ID]id before [ARGS] where they were taught to.
#include "tokenizer/chat/call_splitter.h"
#include "tokenizer/chat/object_call.h"

namespace cachalot {
namespace {

constexpr size_t kMaxHeaderBytes = 1024;

class MistralSplitter final : public CallSplitter {
 public:
  explicit MistralSplitter(AnswerWriter* writer)
      : CallSplitter(writer), call_(writer, nullptr), arguments_(writer) {}

  const std::vector<std::string>& tags() const override {
    static const std::vector<std::string> tags = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"};
    return tags;
  }

  void Byte(char c) override {
    const std::string_view text(&c, 1);
    switch (where_) {
      case kContent:
        return Content(c);
      case kBefore:
      case kBetween:
        if (IsJsonSpace(c) || (where_ == kBetween && c == ',')) return Markup(text);
        if (c == '[' && where_ == kBefore) {
          where_ = kBetween;
          return Markup(text);
        }
        if (c == ']' && where_ == kBetween) {
          where_ = kContent;
          return Markup(text);
        }
        if (c == '{') {
          where_ = kObject;
          call_.Reset();
          return Object(c);
        }
        if (where_ == kBefore) {
          where_ = kName;
          header_ = c;
          return;
        }
        where_ = kContent;
        return Content(c);
      case kObject:
        return Object(c);
      case kName:
      case kId:
        header_ += c;
        if (header_.size() > kMaxHeaderBytes) DropHeader();
        return;
      case kArguments:
        return arguments_.Byte(c);
    }
  }

  void Tag(size_t tag, std::string_view text) override {
    if ((where_ == kObject && call_.in_string()) || (where_ == kArguments && tag != kCalls)) {
      for (const char c : text) Byte(c);
      return;
    }
    if (tag == kCallId && where_ == kName) {
      EndName();
      where_ = kId;
      header_ += text;
      return;
    }
    if (tag == kArgs && (where_ == kName || where_ == kId)) {
      if (where_ == kName) EndName();
      writer_.CallName(name_, name_);
      writer_.Markup(std::string_view(header_).substr(name_.size()));
      Markup(text);
      header_.clear();
      where_ = kArguments;
      arguments_.Begin();
      return;
    }
    Close();
    if (tag != kCalls) {
      for (const char c : text) Content(c);  // words like any others, where no call is open
      return;
    }
    Markup(text);
    where_ = kBefore;
  }

 private:
  bool IsText(std::string_view held) const override {
    const bool is_bracket = held == "[";  // which JSON has too
    switch (where_) {
      case kContent:
        return !after_markup_;
      case kObject:
        return call_.in_string() || (is_bracket && call_.in_value());
      case kArguments:
        return arguments_.in_string() || (is_bracket && arguments_.in_object());
      default:
        return false;
    }
  }

  void End() override {
    if (where_ == kObject && call_.begun()) {
      call_.Cut();
    } else if (where_ == kObject) {
      Markup(call_.TakeHeld());
    } else if (where_ == kArguments) {
      arguments_.Cut();
      if (arguments_.complete()) writer_.CallEnd();
    } else {
      Markup(header_);
    }
  }

  enum Where { kContent, kBefore, kBetween, kObject, kName, kId, kArguments };
  static constexpr size_t kCalls = 0, kCallId = 1, kArgs = 2;

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

  void EndName() {
    name_ = header_;
    while (IsJsonSpace(name_.back())) name_.pop_back();
  }

  void DropHeader() {
    where_ = kContent;
    ContentOf(header_);
    header_.clear();
  }

  void Close() {
    if (where_ == kObject) {
      if (call_.begun()) call_.Close();
      else ContentOf(call_.TakeHeld());
    } else if (where_ == kArguments) {
      arguments_.End();
      writer_.CallEnd();
      after_markup_ = true;
    } else if (where_ == kName || where_ == kId) {
      DropHeader();
    }
    where_ = kContent;
  }

  Where where_ = kContent;
  ObjectCall call_;
  TaggedArguments arguments_;
  std::string header_;  // name, and what follows up to the arguments
  std::string name_;
};

}  // namespace

std::unique_ptr<CallSplitter> MakeMistralSplitter(AnswerWriter* writer) {
  return std::make_unique<MistralSplitter>(writer);
}

}  // namespace cachalot
