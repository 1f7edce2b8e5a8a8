// DeepSeek's syntax. V3 and R1: begin, "function", sep, the name on a line, the arguments in a fence of
// ```json, end. V3.1: begin, the name, sep, the arguments, end. The tags are tokens of their own, which no
// text contains by chance, so they count wherever they stand.
#include <utility>

#include "tokenizer/chat/call_splitter.h"

namespace cachalot {
namespace {

constexpr size_t kMaxHeaderBytes = 1024;

class DeepSeekSplitter final : public CallSplitter {
 public:
  DeepSeekSplitter(AnswerWriter* writer, bool typed) : CallSplitter(writer), typed_(typed), arguments_(writer) {}

  const std::vector<std::string>& tags() const override {
    static const std::vector<std::string> tags = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
                                                  "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"};
    return tags;
  }

  void Byte(char c) override {
    switch (where_) {
      case kContent:
        return Content(c);
      case kHeader:
        header_ += c;
        if (header_.size() > kMaxHeaderBytes) DropHeader();
        return;
      case kName:
        header_ += c;
        if (c == '\n') return EndName();
        if (header_.size() > kMaxHeaderBytes) DropHeader();
        return;
      case kFence:
        return Fence(c);
      case kArguments:
        return arguments_.Byte(c);
    }
  }

  void Tag(size_t tag, std::string_view text) override {
    if (tag == kSep && where_ == kHeader) {
      if (typed_) {
        type_bytes_ = header_.size() + text.size();
        header_ += text;
        where_ = kName;
        return;
      }
      const auto [begin, size] = Trimmed(header_);
      if (size > 0) {
        Begin(begin, size);
        Markup(text);
        where_ = kArguments;
        arguments_.Begin();
        return;
      }
    }
    Close();
    Markup(text);
    if (tag == kBegin) where_ = kHeader;
  }

 private:
  bool IsText(std::string_view) const override {
    return where_ == kContent ? !after_markup_ : where_ == kArguments && arguments_.in_string();
  }

  void End() override {
    if (where_ == kArguments) {
      arguments_.Cut();
      if (arguments_.complete()) writer_.CallEnd();
    } else {
      Markup(header_);  // up to a part of the name, or of the fence
    }
  }

  enum Where { kContent, kHeader, kName, kFence, kArguments };
  static constexpr size_t kBegin = 0, kSep = 1;

  static std::pair<size_t, size_t> Trimmed(std::string_view text) {
    size_t begin = 0, end = text.size();
    while (begin < end && IsJsonSpace(text[begin])) ++begin;
    while (end > begin && IsJsonSpace(text[end - 1])) --end;
    return {begin, end - begin};
  }

  // The name is that part of the header.
  void Begin(size_t begin, size_t size) {
    const std::string header = std::exchange(header_, "");
    writer_.Markup(std::string_view(header).substr(0, begin));
    const std::string_view name = std::string_view(header).substr(begin, size);
    writer_.CallName(name, name);
    writer_.Markup(std::string_view(header).substr(begin + size));
  }

  void EndName() {
    const auto [begin, size] = Trimmed(std::string_view(header_).substr(type_bytes_));
    if (size == 0) return;  // an empty line before it
    Begin(type_bytes_ + begin, size);
    where_ = kFence;
    arguments_.Begin();
  }

  // ```json; without it the arguments begin here.
  void Fence(char c) {
    if (header_.empty() && IsJsonSpace(c)) return writer_.Markup(std::string_view(&c, 1));
    const bool whole = header_.starts_with("```");
    const bool more = whole ? c >= 'a' && c <= 'z' : c == '`';
    if (more && header_.size() < kMaxHeaderBytes) {
      header_ += c;
      return;
    }
    const std::string fence = std::exchange(header_, "");
    where_ = kArguments;
    if (whole) writer_.Markup(fence);
    else for (const char each : fence) arguments_.Byte(each);
    arguments_.Byte(c);
  }

  void DropHeader() {
    where_ = kContent;
    ContentOf(std::exchange(header_, ""));
  }

  void Close() {
    if (where_ == kHeader || where_ == kName) {
      // A call that ends right behind its name has one.
      const auto [begin, size] = Trimmed(std::string_view(header_).substr(where_ == kName ? type_bytes_ : header_.size()));
      if (size == 0) return DropHeader();
      Begin(type_bytes_ + begin, size);
      writer_.Arguments("{}", "");
      writer_.CallEnd();
    } else if (where_ == kFence || where_ == kArguments) {
      if (where_ == kFence) writer_.Markup(std::exchange(header_, ""));
      arguments_.End();
      writer_.CallEnd();
    }
    if (where_ != kContent) after_markup_ = true;
    where_ = kContent;
  }

  const bool typed_;
  Where where_ = kContent;
  TaggedArguments arguments_;
  std::string header_;     // of a call, up to its arguments
  size_t type_bytes_ = 0;  // of it, those before the name
};

}  // namespace

std::unique_ptr<CallSplitter> MakeDeepSeekSplitter(AnswerWriter* writer, bool typed) {
  return std::make_unique<DeepSeekSplitter>(writer, typed);
}

}  // namespace cachalot
