// The text of a line while it is edited, with its cursor, what was cut last, and the lines before it.
// Invariant: the text is what was typed, the cursor stands between characters (never inside a UTF-8 sequence,
// nor between a letter and the marks that combine with it).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

// Columns that a code point takes in a terminal: 0, 1 or 2.
int ColumnsOf(uint32_t code_point);
// The code point at `at` and its length in bytes; a byte that is no UTF-8 counts as one U+FFFD.
struct CodePoint {
  uint32_t value = 0;
  int bytes = 1;
};
CodePoint CodePointAt(std::string_view text, size_t at);

class EditBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }

  void Clear();
  void Set(std::string text);
  void Insert(std::string_view text);
  bool Left();
  bool Right();
  void WordLeft();
  void WordRight();
  // Of the line of a text of several lines in which the cursor stands.
  void Home();
  void End();
  void Backspace();
  void Delete();
  void CutWordLeft();
  void CutToEnd();
  void CutToHome();
  void Paste();  // what was cut last

  // Keeps a line for later; one that repeats the last one, or is empty, is not kept.
  void Remember(const std::string& line);
  // In the text of several lines the cursor goes up or down first.
  void Previous();
  void Next();

 private:
  size_t Before(size_t at) const;
  size_t After(size_t at) const;
  size_t LineStart(size_t at) const;
  size_t LineEnd(size_t at) const;
  void Cut(size_t begin, size_t end);
  void Recall(size_t index);

  std::string text_;
  size_t cursor_ = 0;
  std::string cut_;
  std::vector<std::string> history_;
  size_t history_at_ = 0;  // history_.size(): the line being typed
  std::string typed_;      // that line, while an older one is shown
};

}  // namespace cachalot
