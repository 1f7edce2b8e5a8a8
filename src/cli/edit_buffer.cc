#include "cli/edit_buffer.h"

#include <algorithm>
#include <cctype>
#include <span>

namespace cachalot {
namespace {

struct Range {
  uint32_t first, last;
};

// Marks, joiners and selectors that add to the character before them.
constexpr Range kZeroWidth[] = {{0x0300, 0x036f},   {0x0483, 0x0489},  {0x0591, 0x05bd}, {0x0610, 0x061a},
                                {0x064b, 0x065f},   {0x0e31, 0x0e31},  {0x0e34, 0x0e3a}, {0x1ab0, 0x1aff},
                                {0x200b, 0x200f},   {0x20d0, 0x20ff},  {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
                                {0x1f3fb, 0x1f3ff}, {0xe0100, 0xe01ef}};
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xac00, 0xd7a3},
                           {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
                           {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

bool In(std::span<const Range> ranges, uint32_t code_point) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return code_point >= range.first && code_point <= range.last;
  });
}

bool IsWordByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80) != 0 || c == '_';
}

}  // namespace

int ColumnsOf(uint32_t code_point) {
  if (In(kZeroWidth, code_point)) return 0;
  return In(kWide, code_point) ? 2 : 1;
}

CodePoint CodePointAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const int bytes = lead >= 0xf0 && lead < 0xf8 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (bytes == 0 || lead >= 0xf8) return {0xfffd, 1};
  uint32_t value = lead & (0xffu >> (bytes + 1));
  for (int i = 1; i < bytes; ++i) {
    const uint8_t next = byte(at + static_cast<size_t>(i));
    if ((next & 0xc0) != 0x80) return {0xfffd, 1};
    value = (value << 6) | (next & 0x3fu);
  }
  return {value, bytes};
}

size_t EditBuffer::After(size_t at) const {
  if (at >= text_.size()) return text_.size();
  at += static_cast<size_t>(CodePointAt(text_, at).bytes);
  while (at < text_.size()) {
    const CodePoint next = CodePointAt(text_, at);
    if (ColumnsOf(next.value) != 0) break;
    at += static_cast<size_t>(next.bytes);
  }
  return at;
}

size_t EditBuffer::Before(size_t at) const {
  size_t before = 0;
  for (size_t i = 0; i < at; i = After(i)) before = i;
  return before;
}

size_t EditBuffer::LineStart(size_t at) const {
  const size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

size_t EditBuffer::LineEnd(size_t at) const {
  return std::min(text_.find('\n', at), text_.size());
}

void EditBuffer::Clear() {
  Set("");
}

void EditBuffer::Set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
  history_at_ = history_.size();
}

void EditBuffer::Insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

bool EditBuffer::Left() {
  if (cursor_ == 0) return false;
  cursor_ = Before(cursor_);
  return true;
}

bool EditBuffer::Right() {
  if (cursor_ == text_.size()) return false;
  cursor_ = After(cursor_);
  return true;
}

void EditBuffer::WordLeft() {
  while (cursor_ > 0 && !IsWordByte(text_[cursor_ - 1])) cursor_ = Before(cursor_);
  while (cursor_ > 0 && IsWordByte(text_[cursor_ - 1])) cursor_ = Before(cursor_);
}

void EditBuffer::WordRight() {
  while (cursor_ < text_.size() && !IsWordByte(text_[cursor_])) cursor_ = After(cursor_);
  while (cursor_ < text_.size() && IsWordByte(text_[cursor_])) cursor_ = After(cursor_);
}

void EditBuffer::Home() {
  cursor_ = LineStart(cursor_);
}
void EditBuffer::End() {
  cursor_ = LineEnd(cursor_);
}

void EditBuffer::Backspace() {
  const size_t end = cursor_;
  if (Left()) text_.erase(cursor_, end - cursor_);
}

void EditBuffer::Delete() {
  text_.erase(cursor_, After(cursor_) - cursor_);
}

void EditBuffer::Cut(size_t begin, size_t end) {
  if (begin == end) return;
  cut_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void EditBuffer::CutWordLeft() {
  const size_t end = cursor_;
  WordLeft();
  Cut(cursor_, end);
}

void EditBuffer::CutToEnd() {
  Cut(cursor_, LineEnd(cursor_));
}
void EditBuffer::CutToHome() {
  Cut(LineStart(cursor_), cursor_);
}
void EditBuffer::Paste() {
  Insert(cut_);
}

void EditBuffer::Remember(const std::string& line) {
  constexpr size_t kMaxLines = 1000;
  if (!line.empty() && (history_.empty() || history_.back() != line)) history_.push_back(line);
  if (history_.size() > kMaxLines) history_.erase(history_.begin());
  history_at_ = history_.size();
}

void EditBuffer::Recall(size_t index) {
  if (history_at_ == history_.size()) typed_ = text_;
  text_ = index == history_.size() ? typed_ : history_[index];
  history_at_ = index;
  cursor_ = text_.size();
}

void EditBuffer::Previous() {
  const size_t start = LineStart(cursor_);
  if (start == 0) {
    if (history_at_ > 0) Recall(history_at_ - 1);
    return;
  }
  const size_t above = LineStart(start - 1);
  cursor_ = std::min(above + (cursor_ - start), start - 1);
  while (cursor_ > above && (text_[cursor_] & 0xc0) == 0x80) --cursor_;
}

void EditBuffer::Next() {
  const size_t end = LineEnd(cursor_);
  if (end == text_.size()) {
    if (history_at_ < history_.size()) Recall(history_at_ + 1);
    return;
  }
  cursor_ = std::min(end + 1 + (cursor_ - LineStart(cursor_)), LineEnd(end + 1));
  while (cursor_ > end + 1 && cursor_ < text_.size() && (text_[cursor_] & 0xc0) == 0x80) --cursor_;
}

}  // namespace cachalot
