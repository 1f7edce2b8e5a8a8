// An answer taken apart, for tests.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/chat/answer_parser.h"

namespace cachalot {

struct ParsedAnswer {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::string raw;                                          // of all parts, in order
  int num_ended = 0;                                        // calls that had their end
  bool operator==(const ParsedAnswer&) const = default;

  void Add(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      raw += event.raw;
      switch (event.part) {
        case AnswerEvent::kReasoning: reasoning += event.text; break;
        case AnswerEvent::kContent: content += event.text; break;
        case AnswerEvent::kMarkup: break;
        case AnswerEvent::kCallName: calls.emplace_back(event.text, ""); break;
        case AnswerEvent::kCallArguments: calls.back().second += event.text; break;
        case AnswerEvent::kCallEnd: ++num_ended; break;
      }
    }
  }
};

// The text, cut into the given pieces.
inline ParsedAnswer ParseAnswer(AnswerFormat format, const std::vector<std::string_view>& pieces) {
  format.keep_raw = true;
  AnswerParser parser(std::move(format));
  ParsedAnswer parsed;
  std::vector<AnswerEvent> events;
  for (const std::string_view piece : pieces) {
    events.clear();
    parser.Push(piece, &events);
    parsed.Add(events);
  }
  events.clear();
  parser.Finish(&events);
  parsed.Add(events);
  return parsed;
}

}  // namespace cachalot
