#include "tokenizer/chat/call_splitter.h"

#include <utility>

#include "tokenizer/chat/tag_matcher.h"

namespace cachalot {

void CallSplitter::Content(char c) {
  const std::string_view text(&c, 1);
  if (after_markup_ && IsJsonSpace(c)) return writer_.Markup(text);
  after_markup_ = false;
  writer_.Content(text);
}

void CallSplitter::ContentOf(std::string_view text) {
  TagMatcher matcher(tags());
  const auto on_text = [&](std::string_view piece) {
    for (const char c : piece) Content(c);
  };
  for (const char c : text) matcher.Push(c, on_text, [&](size_t, std::string_view tag) { Markup(tag); });
  on_text(matcher.TakeHeld());
}

void TaggedArguments::Begin() {
  any_ = wrote_ = is_json_ = ended_ = false;
  tail_.clear();
  scanner_ = {};
}

void TaggedArguments::Byte(char c) {
  const std::string_view text(&c, 1);
  if (ended_ || (!any_ && IsJsonSpace(c))) return writer_.Markup(text);
  if (!any_) is_json_ = c == '{';
  any_ = true;
  // A fence cannot be part of JSON outside its strings.
  if ((IsJsonSpace(c) || c == '`') && tail_.size() < AnswerParser::kMaxHeldBytes) {
    tail_ += c;
  } else {
    writer_.Arguments(std::exchange(tail_, ""));
    writer_.Arguments(text);
    wrote_ = true;
  }
  if (is_json_) ended_ = scanner_.Push(c) != JsonScanner::Step::kMore;
}

void TaggedArguments::End() {
  writer_.Markup(tail_);
  tail_.clear();
  if (!wrote_) writer_.Arguments("{}", "");
}

void TaggedArguments::Cut() {
  if (in_string()) writer_.Arguments(tail_);
  else writer_.Markup(tail_);
  tail_.clear();
}

namespace {

class PlainSplitter final : public CallSplitter {
 public:
  explicit PlainSplitter(AnswerWriter* writer) : CallSplitter(writer) {}
  const std::vector<std::string>& tags() const override { return tags_; }
  void Byte(char c) override { Content(c); }
  void Tag(size_t, std::string_view) override {}

 private:
  bool IsText(std::string_view) const override { return true; }
  void End() override {}

  const std::vector<std::string> tags_;
};

}  // namespace

std::unique_ptr<CallSplitter> MakePlainSplitter(AnswerWriter* writer) {
  return std::make_unique<PlainSplitter>(writer);
}

}  // namespace cachalot
