// AnswerWriter: collects the parts of an answer, joining neighbours of one kind.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/chat/answer_parser.h"

namespace cachalot {

class AnswerWriter {
 public:
  explicit AnswerWriter(bool keep_raw) : keep_raw_(keep_raw) {}
  void WriteTo(std::vector<AnswerEvent>* events) { events_ = events; }

  void Reasoning(std::string_view text) { Append(AnswerEvent::kReasoning, text, text); }
  void Content(std::string_view text) { Append(AnswerEvent::kContent, text, text); }
  void Markup(std::string_view raw) {
    if (keep_raw_) Append(AnswerEvent::kMarkup, "", raw);
  }
  void CallName(std::string_view name, std::string_view raw) {
    events_->push_back({AnswerEvent::kCallName, std::string(name), std::string(keep_raw_ ? raw : "")});
  }
  void Arguments(std::string_view text) { Append(AnswerEvent::kCallArguments, text, text); }
  void Arguments(std::string_view text, std::string_view raw) { Append(AnswerEvent::kCallArguments, text, raw); }
  void CallEnd() { events_->push_back({AnswerEvent::kCallEnd, "", ""}); }

 private:
  void Append(AnswerEvent::Part part, std::string_view text, std::string_view raw) {
    if (text.empty() && raw.empty()) return;
    if (events_->empty() || events_->back().part != part) events_->push_back({part, "", ""});
    events_->back().text += text;
    if (keep_raw_) events_->back().raw += raw;
  }

  const bool keep_raw_;
  std::vector<AnswerEvent>* events_ = nullptr;
};

}  // namespace cachalot
