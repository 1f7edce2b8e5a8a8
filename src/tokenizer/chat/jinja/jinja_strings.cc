#include "tokenizer/chat/jinja/jinja_strings.h"

#include <algorithm>

#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {

bool StrBuilder::Grow(size_t bytes) {
  if (full_ || !rt_.arena.Fits(static_cast<int64_t>(text_.size() + bytes))) {
    full_ = true;
    return false;
  }
  return true;
}

void StrBuilder::AddRange(size_t begin, size_t end) {
  if (begin == end) return;
  if (!ranges_.empty() && ranges_.back().end == begin) {
    ranges_.back().end = static_cast<uint32_t>(end);
  } else {
    ranges_.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  }
}

void StrBuilder::Add(const String* s, size_t begin, size_t end) {
  if (!Grow(end - begin)) return;
  const size_t base = text_.size();
  text_.append(s->data + begin, end - begin);
  if (s->num_ranges == 0) return;
  const auto user = s->user();
  auto it =
      std::partition_point(user.begin(), user.end(), [&](const ByteRange& r) { return r.end <= begin; });
  for (; it != user.end() && it->begin < end; ++it) {
    AddRange(base + std::max<size_t>(it->begin, begin) - begin,
             base + std::min<size_t>(it->end, end) - begin);
  }
}

void StrBuilder::Add(std::string_view text, bool user) {
  if (!Grow(text.size())) return;
  const size_t base = text_.size();
  text_.append(text);
  if (user) AddRange(base, text_.size());
}

void StrBuilder::AddCode(uint32_t code, bool user) {
  char bytes[4];
  Add(std::string_view(bytes, EncodeUtf8(code, bytes)), user);
}

void StrBuilder::SpreadUser() {
  if (ranges_.empty()) return;
  ranges_.clear();
  AddRange(0, text_.size());
}

Status StrBuilder::status() const {
  if (full_) return rt_.Room(rt_.arena.max_bytes() + 1);
  return Status::Ok();
}

Result<const String*> StrBuilder::Finish(bool markup) {
  RETURN_IF_ERROR(status());
  ASSIGN_OR_RETURN(char* data, rt_.NewText(static_cast<int64_t>(text_.size())));
  std::copy(text_.begin(), text_.end(), data);  // (an empty text may have no data to copy from)
  ByteRange* ranges = nullptr;
  if (!ranges_.empty()) {
    RETURN_IF_ERROR(rt_.Room(static_cast<int64_t>(ranges_.size() * sizeof(ByteRange))));
    ranges = rt_.arena.NewArray<ByteRange>(ranges_.size());
    std::copy(ranges_.begin(), ranges_.end(), ranges);
  }
  return rt_.arena.New<String>(String{data, static_cast<uint32_t>(text_.size()),
                                      static_cast<uint32_t>(ranges_.size()), ranges, -1, markup});
}

const String* BorrowText(Runtime& rt, std::string_view text, bool user, bool markup) {
  const auto size = static_cast<uint32_t>(text.size());
  const ByteRange* range = user && size > 0 ? rt.arena.New<ByteRange>(ByteRange{0, size}) : nullptr;
  return rt.arena.New<String>(String{text.data(), size, range != nullptr ? 1u : 0u, range, -1, markup});
}

Result<const String*> CopyText(Runtime& rt, std::string_view text, bool user) {
  ASSIGN_OR_RETURN(char* data, rt.NewText(static_cast<int64_t>(text.size())));
  std::copy(text.begin(), text.end(), data);
  return BorrowText(rt, std::string_view(data, text.size()), user);
}

const String* Substring(Runtime& rt, const String* s, size_t begin, size_t end) {
  if (begin == 0 && end == s->size) return s;
  String* out = rt.arena.New<String>(
      String{s->data + begin, static_cast<uint32_t>(end - begin), 0, nullptr, -1, s->markup});
  if (s->num_chars == s->size) out->num_chars = out->size;  // ASCII stays ASCII
  const auto user = s->user();
  const auto first =
      std::partition_point(user.begin(), user.end(), [&](const ByteRange& r) { return r.end <= begin; });
  const auto last =
      std::partition_point(first, user.end(), [&](const ByteRange& r) { return r.begin < end; });
  if (first == last) return out;
  ByteRange* ranges = rt.arena.NewArray<ByteRange>(static_cast<size_t>(last - first));
  ByteRange* to = ranges;
  for (auto it = first; it != last; ++it) {
    *to++ = {static_cast<uint32_t>(std::max<size_t>(it->begin, begin) - begin),
             static_cast<uint32_t>(std::min<size_t>(it->end, end) - begin)};
  }
  out->ranges = ranges;
  out->num_ranges = static_cast<uint32_t>(to - ranges);
  return out;
}

Result<const String*> ConcatText(Runtime& rt, const String* a, const String* b) {
  if (b->size == 0 && a->markup == b->markup) return a;
  if (a->size == 0 && a->markup == b->markup) return b;
  const int64_t size = int64_t{a->size} + b->size;
  const char* data = a->data;
  RETURN_IF_ERROR(rt.Room(b->size));
  // b never lies behind a's end in the pool: the pool's last text is a itself.
  if (size < (int64_t{1} << 31) && rt.arena.GrowText(a->data + a->size, b->size)) {
    RETURN_IF_ERROR(rt.Bytes(b->size));
    std::copy_n(b->data, b->size, const_cast<char*>(a->data) + a->size);
  } else {
    ASSIGN_OR_RETURN(char* copy, rt.NewText(size));
    std::copy_n(a->data, a->size, copy);
    std::copy_n(b->data, b->size, copy + a->size);
    data = copy;
  }
  const uint32_t num_ranges = a->num_ranges + b->num_ranges;
  RETURN_IF_ERROR(rt.Room(num_ranges * static_cast<int64_t>(sizeof(ByteRange))));
  RETURN_IF_ERROR(rt.Work(num_ranges >> 3));
  ByteRange* ranges = rt.arena.NewArray<ByteRange>(num_ranges);
  uint32_t n = 0;
  for (const ByteRange& r : a->user()) ranges[n++] = r;
  for (const ByteRange& r : b->user()) {
    const ByteRange moved{r.begin + a->size, r.end + a->size};
    if (n > 0 && ranges[n - 1].end == moved.begin) {
      ranges[n - 1].end = moved.end;
    } else {
      ranges[n++] = moved;
    }
  }
  return rt.arena.New<String>(
      String{data, static_cast<uint32_t>(size), n, n > 0 ? ranges : nullptr, -1, a->markup || b->markup});
}

const String* WithMarkup(Runtime& rt, const String* s, bool markup) {
  if (s->markup == markup) return s;
  String* out = rt.arena.New<String>(*s);
  out->markup = markup;
  return out;
}

Result<const String*> EscapeHtml(Runtime& rt, const String* s) {
  if (s->markup) return s;
  StrBuilder out(rt);
  UserCursor user(s);
  size_t plain = 0;
  for (size_t i = 0; i < s->size; ++i) {
    std::string_view entity;
    switch (s->data[i]) {
      case '&':
        entity = "&amp;";
        break;
      case '<':
        entity = "&lt;";
        break;
      case '>':
        entity = "&gt;";
        break;
      case '\'':
        entity = "&#39;";
        break;
      case '"':
        entity = "&#34;";
        break;
      default:
        continue;
    }
    out.Add(s, plain, i);
    out.Add(entity, user.At(i));
    plain = i + 1;
  }
  if (plain == 0) return WithMarkup(rt, s, true);
  out.Add(s, plain, s->size);
  return out.Finish(true);
}

int64_t NumChars(const String* s) {
  if (s->num_chars < 0) s->num_chars = CountUtf8(s->view());
  return s->num_chars;
}

size_t CharOffset(const String* s, int64_t index) {
  if (NumChars(s) == s->size) return static_cast<size_t>(index);
  size_t pos = 0;
  for (int64_t i = 0; i < index; ++i) {
    size_t size;
    DecodeUtf8(s->view(), pos, &size);
    pos += size;
  }
  return pos;
}

int64_t CharIndex(const String* s, size_t offset) {
  if (NumChars(s) == s->size) return static_cast<int64_t>(offset);
  return CountUtf8(s->view().substr(0, offset));
}

}  // namespace cachalot::jinja
