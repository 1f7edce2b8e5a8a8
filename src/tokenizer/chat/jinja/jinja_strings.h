// Making strings: every way of building text keeps which bytes came from the request.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

// Text that grows. Once it passes the memory limit it stops growing, and status() and Finish() say so.
class StrBuilder {
 public:
  explicit StrBuilder(Runtime& rt) : rt_(rt) {}

  void Add(const String* s) { Add(s, 0, s->size); }
  void Add(const String* s, size_t begin, size_t end);
  void Add(std::string_view text, bool user);
  void AddCode(uint32_t code, bool user);
  // All that was added so far becomes the request's if any of it is.
  void SpreadUser();

  size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }
  const std::vector<ByteRange>& ranges() const { return ranges_; }
  Status status() const;
  // A copy in the arena.
  Result<const String*> Finish(bool markup = false);

 private:
  bool Grow(size_t bytes);
  void AddRange(size_t begin, size_t end);

  Runtime& rt_;
  std::string text_;
  std::vector<ByteRange> ranges_;
  bool full_ = false;
};

// Says for ascending byte positions of one string whether they came from the request.
class UserCursor {
 public:
  explicit UserCursor(const String* s) : ranges_(s->user()) {}
  bool At(size_t pos) {
    while (next_ < ranges_.size() && ranges_[next_].end <= pos) ++next_;
    return next_ < ranges_.size() && ranges_[next_].begin <= pos;
  }

 private:
  std::span<const ByteRange> ranges_;
  size_t next_ = 0;
};

// A string over memory that outlives the render.
const String* BorrowText(Runtime& rt, std::string_view text, bool user, bool markup = false);
Result<const String*> CopyText(Runtime& rt, std::string_view text, bool user);
// Bytes [begin, end) without copying.
const String* Substring(Runtime& rt, const String* s, size_t begin, size_t end);
// Extends `a` in place when it is the text that was made last: a chain of + copies every byte once.
Result<const String*> ConcatText(Runtime& rt, const String* a, const String* b);
const String* WithMarkup(Runtime& rt, const String* s, bool markup);
// The five characters of HTML as entities; a Markup string as it is.
Result<const String*> EscapeHtml(Runtime& rt, const String* s);

inline bool HasUser(const String* s) {
  return s->num_ranges > 0;
}
int64_t NumChars(const String* s);
// Byte offset of the character number `index` (0 … NumChars).
size_t CharOffset(const String* s, int64_t index);
// The number of characters in front of a byte offset.
int64_t CharIndex(const String* s, size_t offset);

}  // namespace cachalot::jinja
