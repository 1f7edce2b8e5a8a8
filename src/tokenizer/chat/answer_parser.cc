#include "tokenizer/chat/answer_parser.h"

#include <algorithm>
#include <utility>

#include "tokenizer/chat/answer_writer.h"
#include "tokenizer/chat/call_splitter.h"
#include "tokenizer/chat/tag_matcher.h"

namespace cachalot {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

std::unique_ptr<CallSplitter> MakeSplitter(const AnswerFormat& format, AnswerWriter* writer) {
  switch (format.tools) {
    case ToolSyntax::kNone:
      return MakePlainSplitter(writer);
    case ToolSyntax::kHermes:
      return MakeHermesSplitter(writer);
    case ToolSyntax::kLlama:
      return MakeLlamaSplitter(writer, format.tool_names);
    case ToolSyntax::kMistral:
      return MakeMistralSplitter(writer);
    case ToolSyntax::kDeepSeekV3:
      return MakeDeepSeekSplitter(writer, /*typed=*/true);
    case ToolSyntax::kDeepSeekV31:
      return MakeDeepSeekSplitter(writer, /*typed=*/false);
    case ToolSyntax::kDeepSeekV32:
      return MakeDsmlSplitter(writer);
  }
  return MakePlainSplitter(writer);
}

// </think>, and with it what the template prints before it.
std::vector<std::string> CloseTags(const ReasoningSpace& space) {
  std::vector<std::string> tags;
  for (size_t i = 0; i <= space.before_close.size(); ++i) {
    tags.push_back(space.before_close.substr(i) + std::string(kClose));
    if (!space.printed) return {std::string(kClose)};
  }
  return tags;
}

}  // namespace

struct AnswerParser::State {
  explicit State(AnswerFormat format_in)
      : format(std::move(format_in)),
        writer(format.keep_raw),
        splitter(MakeSplitter(format, &writer)),
        close_tags(CloseTags(format.space)),
        tags(splitter->tags()) {
    phase = !format.split_reasoning ? kAnswer : format.in_reasoning ? kBeginning : kStart;
  }

  // kStart: a <think> may come. kBeginning: white space of the reasoning. kBehind: white space after it.
  enum Phase { kStart, kBeginning, kReasoning, kBehind, kAnswer };

  void Byte(char c) {
    switch (phase) {
      case kStart:
        return Start(c);
      case kBeginning:
        if (IsPadding(c, format.space.after_open)) return writer.Markup(std::string_view(&c, 1));
        phase = kReasoning;
        [[fallthrough]];
      case kReasoning:
        close_tags.Push(c, [this](std::string_view text) { Reasoning(text); },
                        [this](size_t, std::string_view tag) {
                          writer.Markup(std::exchange(held, ""));
                          writer.Markup(tag);
                          phase = kBehind;
                          padding = 0;
                        });
        return;
      case kBehind:
        if (IsPadding(c, format.space.after_close)) return writer.Markup(std::string_view(&c, 1));
        phase = kAnswer;
        [[fallthrough]];
      case kAnswer:
        tags.Push(c, [this](std::string_view text) { for (const char each : text) splitter->Byte(each); },
                  [this](size_t tag, std::string_view text) { splitter->Tag(tag, text); });
    }
  }

  void End() {
    const std::string rest = std::exchange(held, "");
    switch (phase) {
      case kStart:
        phase = kAnswer;
        for (const char c : rest) Byte(c);
        break;
      case kBeginning:
      case kReasoning: {
        writer.Reasoning(rest);
        writer.Reasoning(close_tags.TakeHeld());
        break;
      }
      case kBehind:
      case kAnswer:
        break;
    }
    splitter->Finish(tags.TakeHeld());
  }

  void Start(char c) {
    held += c;
    const size_t begin = std::min(held.find_first_not_of(" \t\r\n"), held.size());
    const std::string_view rest = std::string_view(held).substr(begin);
    if (rest == kOpen) {
      writer.Markup(std::exchange(held, ""));
      phase = kBeginning;
      padding = 0;
    } else if (!kOpen.starts_with(rest) || held.size() >= kMaxSpaceBytes) {
      phase = kAnswer;
      for (const char each : std::exchange(held, "")) Byte(each);
    }
  }

  bool IsPadding(char c, const std::string& printed) {
    if (!format.space.printed) return IsJsonSpace(c);
    return padding < printed.size() && printed[padding++] == c;
  }

  // White space that may stand before the closing tag is held back.
  void Reasoning(std::string_view text) {
    if (format.space.printed) return writer.Reasoning(text);
    for (const char c : text) {
      held += c;
      if (!IsJsonSpace(c) || held.size() >= kMaxSpaceBytes) writer.Reasoning(std::exchange(held, ""));
    }
  }

  static constexpr size_t kMaxSpaceBytes = 4096;

  const AnswerFormat format;
  AnswerWriter writer;
  const std::unique_ptr<CallSplitter> splitter;
  TagMatcher close_tags;
  TagMatcher tags;
  Phase phase = kStart;
  std::string held;    // kStart: white space and a part of the tag; kReasoning: white space
  size_t padding = 0;  // bytes of it seen
};

AnswerParser::AnswerParser(AnswerFormat format) : state_(std::make_unique<State>(std::move(format))) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;

void AnswerParser::Push(std::string_view text, std::vector<AnswerEvent>* events) {
  state_->writer.WriteTo(events);
  for (const char c : text) state_->Byte(c);
}

void AnswerParser::Finish(std::vector<AnswerEvent>* events) {
  state_->writer.WriteTo(events);
  state_->End();
}

}  // namespace cachalot
