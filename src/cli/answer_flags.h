// The flags that say how answers come apart, and the printer that shows the parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/conversation.h"
#include "cli/flag_set.h"
#include "cli/session.h"
#include "tokenizer/chat/answer_parser.h"

namespace cachalot {

enum class ShowReasoning { kShow, kHide, kSeparate };

struct AnswerFlags {
  std::string reasoning = "show";  // show, hide, separate
  int32_t reasoning_budget = -1;
  std::string tools_file;
  std::string tool_call_parser = "auto";

  void Declare(FlagSet* flags);
  // Reads the tools, and tells the session what was said.
  Status Apply(Session* session) const;
  ShowReasoning mode() const;
};

// --tool-call-parser, which serve has too.
void DeclareToolCallParser(FlagSet* flags, std::string* name);

// Prints an answer as it comes: the content on standard output, calls as name(arguments), reasoning as the mode
// says: before the content (dimmed with colour, else between its tags), on standard error, or not at all.
class AnswerPrinter {
 public:
  AnswerPrinter(Output* output, AnswerFormat format, ShowReasoning mode, bool color);

  Status Push(std::string_view text);
  Status Finish();  // ends the last line

  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  struct Call {
    std::string name, arguments;
  };
  const std::vector<Call>& calls() const { return calls_; }
  // All of it, for a conversation that goes on.
  Conversation::Answer answer() const;

 private:
  Status Print(const std::vector<AnswerEvent>& events);
  Status Print(const AnswerEvent& event);
  Status Reasoning(const std::string& text);
  Status EndReasoning();
  Status Write(std::string_view text);

  Output& output_;
  AnswerParser parser_;
  const ShowReasoning mode_;
  const bool color_;
  bool in_reasoning_ = false;
  bool line_open_ = false;
  bool call_open_ = false;
  std::string content_, reasoning_;
  std::vector<Call> calls_;
};

}  // namespace cachalot
