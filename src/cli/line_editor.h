// Reads lines: from a terminal with editing, history and pasting of several lines, from anything else as they
// come. Invariant: outside Read the terminal is as it was before.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/edit_buffer.h"

namespace cachalot {

enum class Key {
  kText,
  kEnter,
  kNewline,
  kInterrupt,
  kEndOfFile,
  kLeft,
  kRight,
  kUp,
  kDown,
  kWordLeft,
  kWordRight,
  kHome,
  kEnd,
  kBackspace,
  kDelete,
  kCutWord,
  kCutToEnd,
  kCutToHome,
  kPaste,
  kClearScreen,
  kPasteBegin,
  kNone,
};

// Turns the bytes of a terminal into keys. next(): the next byte, or -1 when none comes (end of input; within
// an escape sequence also when none comes soon).
class KeyDecoder {
 public:
  // wait: false within a sequence.
  using NextByte = std::function<int(bool wait)>;
  explicit KeyDecoder(NextByte next) : next_(std::move(next)) {}

  // With kText, `text` is one UTF-8 character (or a stray byte). kEndOfFile at the end of input and for
  // Ctrl-D.
  Key Read(std::string* text);
  // The pasted text after kPasteBegin, up to the end mark; line ends become "\n".
  std::string ReadPaste();

 private:
  Key Escape();

  NextByte next_;
};

class StopOnInterrupt;

class LineEditor {
 public:
  enum class Outcome { kLine, kEndOfFile, kInterrupted };

  // Whether standard input is a terminal.
  LineEditor();

  bool is_terminal() const { return is_terminal_; }
  // A Ctrl-C that came when no line was read, and that nobody has cleared, ends the next one. `stop` outlives this.
  void TakeInterrupts(StopOnInterrupt* stop) { stop_ = stop; }
  // `prompt` is shown on a terminal only; it may hold colour sequences.
  Outcome Read(std::string_view prompt, std::string* line);
  void Remember(const std::string& line) { buffer_.Remember(line); }

 private:
  Outcome ReadPlain(std::string* line);
  Outcome Edit(std::string_view prompt, std::string* line);
  // Applies a key that edits; false: not one of those.
  bool Apply(Key key, const std::string& text);
  void Refresh(std::string_view prompt);

  bool is_terminal_;
  StopOnInterrupt* stop_ = nullptr;
  EditBuffer buffer_;
  int cursor_row_ = 0;   // of the terminal cursor, below the prompt's row
  std::string pending_;  // read but not yet handed out (no terminal)
  bool at_end_ = false;
};

// Where text ends up in a terminal of this many columns when it begins at `column`: rows below, and the
// column.
struct ScreenPlace {
  int row = 0;
  int column = 0;
};
// Escape sequences (colours) take no place.
ScreenPlace PlaceAfter(std::string_view text, ScreenPlace from, int num_columns);

}  // namespace cachalot
