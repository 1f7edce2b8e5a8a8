#include "cli/line_editor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "cli/console.h"

namespace cachalot {
namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l";
constexpr int kSequenceMilliseconds = 50;

// The terminal hands over single bytes while this lives.
class RawMode {
 public:
  RawMode() {
    if (::tcgetattr(STDIN_FILENO, &saved_) != 0) return;
    termios raw = saved_;
    raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    active_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
    if (active_) PrintNote(kPasteOn);
  }
  ~RawMode() {
    if (!active_) return;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_);
    PrintNote(kPasteOff);
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

 private:
  termios saved_{};
  bool active_ = false;
};

int ReadByte(bool wait) {
  if (!wait) {
    pollfd ready{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kSequenceMilliseconds) <= 0) return -1;
  }
  unsigned char byte = 0;
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n == 1) return byte;
    if (n == 0 || errno != EINTR) return -1;
  }
}

int TerminalColumns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string OnScreen(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (c == '\n')
      shown += "\r\n";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      shown += ' ';
    else
      shown += c;
  }
  return shown;
}

}  // namespace

Key KeyDecoder::Read(std::string* text) {
  text->clear();
  const int byte = next_(true);
  switch (byte) {
    case -1:
    case 4:
      return Key::kEndOfFile;
    case 1:
      return Key::kHome;
    case 2:
      return Key::kLeft;
    case 3:
      return Key::kInterrupt;
    case 5:
      return Key::kEnd;
    case 6:
      return Key::kRight;
    case 8:
    case 127:
      return Key::kBackspace;
    case 11:
      return Key::kCutToEnd;
    case 12:
      return Key::kClearScreen;
    case '\r':
    case '\n':
      return Key::kEnter;
    case 14:
      return Key::kDown;
    case 16:
      return Key::kUp;
    case 21:
      return Key::kCutToHome;
    case 23:
      return Key::kCutWord;
    case 25:
      return Key::kPaste;
    case 27:
      return Escape();
    case '\t':
      *text = "    ";
      return Key::kText;
    default:
      break;
  }
  if (byte < 0x20) return Key::kNone;
  *text += static_cast<char>(byte);
  const int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
  for (int i = 0; i < more; ++i) {
    const int next = next_(false);
    if (next < 0) break;
    *text += static_cast<char>(next);
  }
  return Key::kText;
}

Key KeyDecoder::Escape() {
  const int kind = next_(false);
  switch (kind) {
    case '\r':
    case '\n':
      return Key::kNewline;
    case 'b':
      return Key::kWordLeft;
    case 'f':
      return Key::kWordRight;
    case 127:
      return Key::kCutWord;
    case '[':
    case 'O':
      break;
    default:
      return Key::kNone;
  }
  std::string parameters;
  int last = next_(false);
  while (last >= 0x20 && last < 0x40 && parameters.size() < 16) {
    parameters += static_cast<char>(last);
    last = next_(false);
  }
  const bool with_modifier = parameters.find(';') != std::string::npos;
  switch (last) {
    case 'A':
      return Key::kUp;
    case 'B':
      return Key::kDown;
    case 'C':
      return with_modifier ? Key::kWordRight : Key::kRight;
    case 'D':
      return with_modifier ? Key::kWordLeft : Key::kLeft;
    case 'H':
      return Key::kHome;
    case 'F':
      return Key::kEnd;
    case '~':
      if (parameters == "1" || parameters == "7") return Key::kHome;
      if (parameters == "4" || parameters == "8") return Key::kEnd;
      if (parameters == "3") return Key::kDelete;
      if (parameters == "200") return Key::kPasteBegin;
      return Key::kNone;
    default:
      return Key::kNone;
  }
}

std::string KeyDecoder::ReadPaste() {
  constexpr std::string_view kEnd = "\x1b[201~";
  std::string text;
  for (int byte = next_(true); byte >= 0; byte = next_(true)) {
    text += static_cast<char>(byte);
    if (text.ends_with(kEnd)) {
      text.resize(text.size() - kEnd.size());
      break;
    }
  }
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      clean += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      clean += text[i];
    }
  }
  return clean;
}

ScreenPlace PlaceAfter(std::string_view text, ScreenPlace from, int num_columns) {
  ScreenPlace place = from;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '\n') {
      ++place.row;
      place.column = 0;
      ++i;
      continue;
    }
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
      ++i;
      continue;
    }
    const CodePoint code_point = CodePointAt(text, i);
    i += static_cast<size_t>(code_point.bytes);
    const int columns = ColumnsOf(code_point.value);
    if (place.column + columns > num_columns) {
      ++place.row;
      place.column = 0;
    }
    place.column += columns;
  }
  return place;
}

LineEditor::LineEditor() : is_terminal_(::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0) {}

LineEditor::Outcome LineEditor::Read(std::string_view prompt, std::string* line) {
  return is_terminal_ ? Edit(prompt, line) : ReadPlain(line);
}

LineEditor::Outcome LineEditor::ReadPlain(std::string* line) {
  for (;;) {
    const size_t newline = pending_.find('\n');
    if (newline != std::string::npos || (at_end_ && !pending_.empty())) {
      *line = pending_.substr(0, newline);
      pending_.erase(0, newline == std::string::npos ? newline : newline + 1);
      if (line->ends_with('\r')) line->pop_back();
      return Outcome::kLine;
    }
    if (at_end_) return Outcome::kEndOfFile;
    char piece[4096];
    const ssize_t n = ::read(STDIN_FILENO, piece, sizeof(piece));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      at_end_ = true;
    else
      pending_.append(piece, static_cast<size_t>(n));
  }
}

bool LineEditor::Apply(Key key, const std::string& text) {
  switch (key) {
    case Key::kText:
      buffer_.Insert(text);
      return true;
    case Key::kNewline:
      buffer_.Insert("\n");
      return true;
    case Key::kLeft:
      buffer_.Left();
      return true;
    case Key::kRight:
      buffer_.Right();
      return true;
    case Key::kUp:
      buffer_.Previous();
      return true;
    case Key::kDown:
      buffer_.Next();
      return true;
    case Key::kWordLeft:
      buffer_.WordLeft();
      return true;
    case Key::kWordRight:
      buffer_.WordRight();
      return true;
    case Key::kHome:
      buffer_.Home();
      return true;
    case Key::kEnd:
      buffer_.End();
      return true;
    case Key::kBackspace:
      buffer_.Backspace();
      return true;
    case Key::kDelete:
      buffer_.Delete();
      return true;
    case Key::kCutWord:
      buffer_.CutWordLeft();
      return true;
    case Key::kCutToEnd:
      buffer_.CutToEnd();
      return true;
    case Key::kCutToHome:
      buffer_.CutToHome();
      return true;
    case Key::kPaste:
      buffer_.Paste();
      return true;
    case Key::kNone:
      return true;
    default:
      return false;
  }
}

LineEditor::Outcome LineEditor::Edit(std::string_view prompt, std::string* line) {
  const RawMode raw;
  // From here on Ctrl-C is a key.
  if (stop_ != nullptr && stop_->interrupted()) {
    stop_->Clear();
    line->clear();
    return Outcome::kInterrupted;
  }
  KeyDecoder keys(ReadByte);
  buffer_.Clear();
  cursor_row_ = 0;
  Refresh(prompt);
  std::string text;
  for (;;) {
    const Key key = keys.Read(&text);
    if (key == Key::kEndOfFile && !buffer_.text().empty()) {
      buffer_.Delete();
    } else if (key == Key::kPasteBegin) {
      buffer_.Insert(keys.ReadPaste());
    } else if (key == Key::kClearScreen) {
      PrintNote("\x1b[H\x1b[2J");
      cursor_row_ = 0;
    } else if (!Apply(key, text)) {
      *line = buffer_.text();
      buffer_.End();
      while (buffer_.Right()) {
      }
      Refresh(prompt);
      PrintNote("\r\n");
      buffer_.Clear();
      if (key == Key::kEnter) return Outcome::kLine;
      return key == Key::kInterrupt ? Outcome::kInterrupted : Outcome::kEndOfFile;
    }
    Refresh(prompt);
  }
}

// Draws the whole input again from the prompt's row on; small enough to be done for every key.
void LineEditor::Refresh(std::string_view prompt) {
  const int columns = TerminalColumns();
  const ScreenPlace start = PlaceAfter(prompt, {}, columns);
  const ScreenPlace cursor =
      PlaceAfter(std::string_view(buffer_.text()).substr(0, buffer_.cursor()), start, columns);
  const ScreenPlace end = PlaceAfter(buffer_.text(), start, columns);
  std::string out = "\r";
  if (cursor_row_ > 0) out += fmt::format("\x1b[{}A", cursor_row_);
  out += "\x1b[J";
  out += prompt;
  out += OnScreen(buffer_.text());
  // A terminal leaves its cursor in the last column until the next character comes.
  int row = end.row;
  if (end.column == columns) {
    out += "\r\n";
    ++row;
  }
  const ScreenPlace target = cursor.column == columns ? ScreenPlace{cursor.row + 1, 0} : cursor;
  if (row > target.row) out += fmt::format("\x1b[{}A", row - target.row);
  out += "\r";
  if (target.column > 0) out += fmt::format("\x1b[{}C", target.column);
  cursor_row_ = target.row;
  PrintNote(out);
}

}  // namespace cachalot
