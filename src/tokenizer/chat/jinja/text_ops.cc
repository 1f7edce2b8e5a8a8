#include "tokenizer/chat/jinja/text_ops.h"

#include <algorithm>

#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

// A capital sigma at the end of a word becomes a final one.
bool IsFinalSigma(std::string_view text, size_t pos) {
  size_t at = pos;
  bool cased_before = false;
  while (at > 0) {
    at = PreviousUtf8(text, at);
    size_t size;
    const uint32_t code = DecodeUtf8(text, at, &size);
    if (IsCaseIgnorable(code)) continue;
    cased_before = IsCased(code);
    break;
  }
  if (!cased_before) return false;
  at = pos + 2;  // the sigma itself
  while (at < text.size()) {
    size_t size;
    const uint32_t code = DecodeUtf8(text, at, &size);
    at += size;
    if (!IsCaseIgnorable(code)) return !IsCased(code);
  }
  return true;
}

int LowerAt(std::string_view text, size_t pos, uint32_t code, uint32_t out[3]) {
  constexpr uint32_t kSigma = 0x3A3;
  if (code == kSigma) {
    out[0] = IsFinalSigma(text, pos) ? 0x3C2 : 0x3C3;
    return 1;
  }
  return ToLower(code, out);
}

bool InChars(const String* chars, uint32_t code) {
  if (chars == nullptr) return IsSpace(code);
  for (size_t pos = 0; pos < chars->size;) {
    size_t size;
    if (DecodeUtf8(chars->view(), pos, &size) == code) return true;
    pos += size;
  }
  return false;
}

size_t SkipSpaces(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t size;
    if (!IsSpace(DecodeUtf8(text, pos, &size))) break;
    pos += size;
  }
  return pos;
}

size_t SkipWord(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t size;
    if (IsSpace(DecodeUtf8(text, pos, &size))) break;
    pos += size;
  }
  return pos;
}

// Going backwards from `end`.
size_t SkipBack(std::string_view text, size_t end, bool spaces) {
  while (end > 0) {
    const size_t previous = PreviousUtf8(text, end);
    size_t size;
    if (IsSpace(DecodeUtf8(text, previous, &size)) != spaces) break;
    end = previous;
  }
  return end;
}

Status AddPiece(Runtime& rt, const String* s, size_t begin, size_t end, std::vector<Value>* out) {
  RETURN_IF_ERROR(rt.Room(static_cast<int64_t>((out->size() + 1) * sizeof(Value))));
  RETURN_IF_ERROR(rt.Step());
  out->push_back(Value::Str(Substring(rt, s, begin, end)));
  return Status::Ok();
}

}  // namespace

Result<const String*> ChangeCase(Runtime& rt, const String* s, CaseMode mode) {
  RETURN_IF_ERROR(rt.Work(s->size >> 3));
  const std::string_view text = s->view();
  StrBuilder out(rt);
  UserCursor user(s);
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    size_t size;
    const uint32_t code = DecodeUtf8(text, pos, &size);
    uint32_t mapped[3] = {code, 0, 0};
    int n = 1;
    switch (mode) {
      case CaseMode::kUpper:
        n = ToUpper(code, mapped);
        break;
      case CaseMode::kLower:
        n = LowerAt(text, pos, code, mapped);
        break;
      case CaseMode::kFold:
        n = ToFold(code, mapped);
        break;
      case CaseMode::kCapitalize:
        n = pos == 0 ? ToTitle(code, mapped) : LowerAt(text, pos, code, mapped);
        break;
      case CaseMode::kTitle:
        n = after_cased ? LowerAt(text, pos, code, mapped) : ToTitle(code, mapped);
        break;
      case CaseMode::kSwap:
        if (IsUpper(code))
          n = LowerAt(text, pos, code, mapped);
        else if (IsLower(code))
          n = ToUpper(code, mapped);
        break;
    }
    after_cased = IsCased(code);
    const bool from_user = user.At(pos);
    for (int i = 0; i < n; ++i) out.AddCode(mapped[i], from_user);
    pos += size;
  }
  return out.Finish(s->markup);
}

Result<const String*> StripText(Runtime& rt, const String* s, const String* chars, bool left, bool right) {
  const std::string_view text = s->view();
  size_t begin = 0;
  size_t end = text.size();
  const int64_t cost = chars == nullptr ? 0 : chars->size >> 3;
  while (left && begin < end) {
    RETURN_IF_ERROR(rt.Work(cost));
    size_t size;
    if (!InChars(chars, DecodeUtf8(text, begin, &size))) break;
    begin += size;
  }
  while (right && end > begin) {
    RETURN_IF_ERROR(rt.Work(cost));
    const size_t previous = PreviousUtf8(text, end);
    size_t size;
    if (!InChars(chars, DecodeUtf8(text, previous, &size))) break;
    end = previous;
  }
  RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(text.size() - (end - begin))));
  return Substring(rt, s, begin, end);
}

Result<std::vector<Value>> SplitText(Runtime& rt, const String* s, const String* separator,
                                     int64_t max_split) {
  const std::string_view text = s->view();
  RETURN_IF_ERROR(rt.Bytes(s->size));
  std::vector<Value> out;
  if (separator == nullptr) {
    size_t pos = SkipSpaces(text, 0);
    while (pos < text.size()) {
      const size_t end = max_split-- == 0 ? text.size() : SkipWord(text, pos);
      RETURN_IF_ERROR(AddPiece(rt, s, pos, end, &out));
      pos = SkipSpaces(text, end);
    }
    return out;
  }
  if (separator->size == 0) return InvalidArgument("empty separator");
  size_t pos = 0;
  for (;;) {
    const size_t found = max_split-- == 0 ? text.npos : FindText(text, separator->view(), pos);
    if (found == text.npos) break;
    RETURN_IF_ERROR(AddPiece(rt, s, pos, found, &out));
    pos = found + separator->size;
  }
  RETURN_IF_ERROR(AddPiece(rt, s, pos, text.size(), &out));
  return out;
}

Result<std::vector<Value>> SplitTextRight(Runtime& rt, const String* s, const String* separator,
                                          int64_t max_split) {
  const std::string_view text = s->view();
  RETURN_IF_ERROR(rt.Bytes(s->size));
  std::vector<Value> out;
  if (separator == nullptr) {
    size_t end = SkipBack(text, text.size(), true);
    while (end > 0) {
      const size_t begin = max_split-- == 0 ? 0 : SkipBack(text, end, false);
      RETURN_IF_ERROR(AddPiece(rt, s, begin, end, &out));
      end = SkipBack(text, begin, true);
    }
  } else {
    if (separator->size == 0) return InvalidArgument("empty separator");
    size_t end = text.size();
    while (max_split-- != 0) {
      ASSIGN_OR_RETURN(const size_t found, FindLastText(rt, text, separator->view(), end));
      if (found == text.npos) break;
      RETURN_IF_ERROR(AddPiece(rt, s, found + separator->size, end, &out));
      end = found;
    }
    RETURN_IF_ERROR(AddPiece(rt, s, 0, end, &out));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

Result<std::vector<Value>> SplitLines(Runtime& rt, const String* s, bool keep_ends) {
  const std::string_view text = s->view();
  RETURN_IF_ERROR(rt.Bytes(s->size));
  std::vector<Value> out;
  size_t line = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t size;
    const uint32_t code = DecodeUtf8(text, pos, &size);
    if (IsLineBreak(code)) {
      size_t next = pos + size;
      if (code == '\r' && next < text.size() && text[next] == '\n') ++next;
      RETURN_IF_ERROR(AddPiece(rt, s, line, keep_ends ? next : pos, &out));
      line = pos = next;
    } else {
      pos += size;
    }
  }
  if (line < text.size()) RETURN_IF_ERROR(AddPiece(rt, s, line, text.size(), &out));
  return out;
}

Result<const String*> ReplaceText(Runtime& rt, const String* s, const String* old_text,
                                  const String* new_text, int64_t count) {
  const std::string_view text = s->view();
  RETURN_IF_ERROR(rt.Bytes(s->size));
  StrBuilder out(rt);
  size_t copied = 0;
  size_t pos = 0;
  while (count != 0) {
    const size_t found = FindText(text, old_text->view(), pos);
    if (found == text.npos) break;
    RETURN_IF_ERROR(rt.Step());
    RETURN_IF_ERROR(out.status());
    out.Add(s, copied, found);
    out.Add(new_text);
    copied = found + old_text->size;
    pos = copied;
    if (old_text->size == 0) {
      // Between any two characters.
      if (found == text.size()) break;
      size_t size;
      DecodeUtf8(text, found, &size);
      pos = found + size;
    }
    --count;
  }
  if (copied == 0 && out.size() == 0 && pos == 0) return s;
  out.Add(s, copied, text.size());
  return out.Finish(s->markup);
}

Result<const String*> RepeatText(Runtime& rt, const String* s, Int count) {
  if (count <= 0 || s->size == 0) return Substring(rt, s, 0, 0);
  if (count == 1) return s;
  if (count > (Int{1} << 31) / s->size)
    return Exhausted("a string repeated {} times is too long",
                     static_cast<int64_t>(std::min<Int>(count, INT64_MAX)));
  RETURN_IF_ERROR(rt.Room(static_cast<int64_t>(count) * s->size));
  RETURN_IF_ERROR(rt.Work(static_cast<int64_t>(count)));
  StrBuilder out(rt);
  for (Int i = 0; i < count; ++i) out.Add(s);
  return out.Finish(s->markup);
}

Result<const String*> ReverseText(Runtime& rt, const String* s) {
  return PickChars(rt, s, NumChars(s) - 1, -1, NumChars(s));
}

Result<const String*> PadText(Runtime& rt, const String* s, int64_t left, int64_t right, const String* fill) {
  RETURN_IF_ERROR(rt.Room(std::max(left, int64_t{0}) + std::max(right, int64_t{0})));
  RETURN_IF_ERROR(rt.Work((left + right) >> 3));
  StrBuilder out(rt);
  for (int64_t i = 0; i < left; ++i) out.Add(fill);
  out.Add(s);
  for (int64_t i = 0; i < right; ++i) out.Add(fill);
  return out.Finish(s->markup);
}

Result<const String*> CenterText(Runtime& rt, const String* s, int64_t width, const String* fill) {
  const int64_t margin = width - NumChars(s);
  if (margin <= 0) return s;
  const int64_t left = margin / 2 + (margin & width & 1);  // as CPython has it
  return PadText(rt, s, left, margin - left, fill);
}

Result<const String*> PickChars(Runtime& rt, const String* s, int64_t start, int64_t step, int64_t count) {
  if (count <= 0) return Substring(rt, s, 0, 0);
  const int64_t chars = NumChars(s);
  if (step == 1) {
    const size_t begin = CharOffset(s, start);
    RETURN_IF_ERROR(rt.Bytes(chars == s->size ? 0 : s->size));
    return Substring(rt, s, begin, start + count == chars ? s->size : CharOffset(s, start + count));
  }
  RETURN_IF_ERROR(rt.Work((count + s->size) >> 3));
  // Offsets of the characters that are wanted, found in one pass.
  RETURN_IF_ERROR(rt.Room(chars * 4));
  std::vector<uint32_t> offsets(static_cast<size_t>(chars) + 1);
  size_t pos = 0;
  for (int64_t i = 0; i < chars; ++i) {
    offsets[static_cast<size_t>(i)] = static_cast<uint32_t>(pos);
    size_t size;
    DecodeUtf8(s->view(), pos, &size);
    pos += size;
  }
  offsets.back() = s->size;
  StrBuilder out(rt);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(start + i * step);
    out.Add(s, offsets[at], offsets[at + 1]);
  }
  return out.Finish(s->markup);
}

}  // namespace cachalot::jinja
