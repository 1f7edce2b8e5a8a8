// Python's str methods.
#include <algorithm>

#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/methods.h"
#include "tokenizer/chat/jinja/text_of.h"
#include "tokenizer/chat/jinja/text_ops.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

Result<Value> Wrap(Result<const String*> s) {
  RETURN_IF_ERROR(s.status());
  return Value::Str(*s);
}
Result<Value> WrapList(Runtime& rt, Result<std::vector<Value>> items) {
  RETURN_IF_ERROR(items.status());
  return MakeSequence(rt, Kind::kList, *items);
}

// None or not given: nullptr.
Result<const String*> OptionalText(std::string_view function, const Value& v) {
  if (Absent(v)) return static_cast<const String*>(nullptr);
  return TextArg(function, v);
}

template <CaseMode kMode>
Result<Value> Case(Runtime& rt, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("str method", args));
  return Wrap(ChangeCase(rt, self.s, kMode));
}

template <bool kLeft, bool kRight>
Result<Value> Strip(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("strip", {""}, 0, args));
  ASSIGN_OR_RETURN(const String* chars, OptionalText("strip", a[0]));
  return Wrap(StripText(rt, self.s, chars, kLeft, kRight));
}

template <bool kFromRight>
Result<Value> Split(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("split", {"sep", "maxsplit"}, 0, args));
  ASSIGN_OR_RETURN(const String* separator, OptionalText("split", a[0]));
  int64_t max_split = -1;
  if (Given(a[1])) {
    ASSIGN_OR_RETURN(max_split, IndexArg("split", a[1]));
  }
  return WrapList(rt, kFromRight ? SplitTextRight(rt, self.s, separator, max_split)
                                 : SplitText(rt, self.s, separator, max_split));
}

Result<Value> StrSplitLines(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("splitlines", {"keepends"}, 0, args));
  return WrapList(rt, SplitLines(rt, self.s, Truth(a[0])));
}

// [begin, end) in bytes of the characters that optional start and stop arguments leave; false when start lies
// behind the end, where not even "" is found.
Result<bool> Window(Runtime& rt, const String* s, const Value& start, const Value& stop, size_t* begin,
                    size_t* end) {
  *begin = 0;
  *end = s->size;
  if (Absent(start) && Absent(stop)) return true;
  RETURN_IF_ERROR(rt.Bytes(s->size));
  const int64_t chars = NumChars(s);
  int64_t from = 0;
  int64_t to = chars;
  if (!Absent(start)) {
    ASSIGN_OR_RETURN(from, IndexArg("slice", start));
    if (from < 0) from = std::max<int64_t>(from + chars, 0);
  }
  if (!Absent(stop)) {
    ASSIGN_OR_RETURN(to, IndexArg("slice", stop));
    if (to < 0) to = std::max<int64_t>(to + chars, 0);
    to = std::min(to, chars);
  }
  if (from > to) return false;
  *begin = CharOffset(s, from);
  *end = CharOffset(s, to);
  return true;
}

template <bool kLast, bool kMustFind>
Result<Value> Find(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("find", {"", "", ""}, 1, args));
  ASSIGN_OR_RETURN(const String* needle, TextArg("find", a[0]));
  size_t begin, end;
  ASSIGN_OR_RETURN(const bool inside, Window(rt, self.s, a[1], a[2], &begin, &end));
  size_t found = std::string_view::npos;
  if (inside) {
    const std::string_view text = self.s->view().substr(0, end);
    RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(end - begin)));
    if (kLast) {
      ASSIGN_OR_RETURN(found, FindLastText(rt, text, needle->view(), end));
      if (found != text.npos && found < begin) found = text.npos;
    } else {
      found = FindText(text, needle->view(), begin);
    }
  }
  if (found == std::string_view::npos) {
    if (kMustFind) return InvalidArgument("substring not found");
    return Value::Integer(-1);
  }
  return Value::Integer(CharIndex(self.s, found));
}

Result<Value> Count(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("count", {"", "", ""}, 1, args));
  ASSIGN_OR_RETURN(const String* needle, TextArg("count", a[0]));
  size_t begin, end;
  ASSIGN_OR_RETURN(const bool inside, Window(rt, self.s, a[1], a[2], &begin, &end));
  if (!inside) return Value::Integer(0);
  RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(end - begin)));
  const std::string_view text = self.s->view().substr(0, end);
  if (needle->size == 0) return Value::Integer(CountUtf8(text.substr(begin)) + 1);
  int64_t count = 0;
  for (size_t pos = FindText(text, needle->view(), begin); pos != text.npos;
       pos = FindText(text, needle->view(), pos + needle->size)) {
    ++count;
  }
  return Value::Integer(count);
}

template <bool kAtEnd>
Result<Value> Affix(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind(kAtEnd ? "endswith" : "startswith", {"", "", ""}, 1, args));
  size_t begin, end;
  ASSIGN_OR_RETURN(const bool inside, Window(rt, self.s, a[1], a[2], &begin, &end));
  std::span<const Value> choices(a.data(), 1);
  if (a[0].is(Kind::kTuple)) choices = a[0].items();
  const std::string_view text = self.s->view().substr(0, end).substr(std::min(begin, end));
  for (const Value& choice : choices) {
    ASSIGN_OR_RETURN(const String* affix, TextArg("startswith first arg", choice));
    RETURN_IF_ERROR(rt.Bytes(affix->size));
    if (inside && (kAtEnd ? text.ends_with(affix->view()) : text.starts_with(affix->view())))
      return Value::Bool(true);
  }
  return Value::Bool(false);
}

Result<Value> Replace(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("replace", {"", "", ""}, 2, args));
  ASSIGN_OR_RETURN(const String* from, TextArg("replace", a[0]));
  ASSIGN_OR_RETURN(const String* to, TextArg("replace", a[1]));
  if (self.s->markup) {
    ASSIGN_OR_RETURN(to, EscapeHtml(rt, to));
  }
  int64_t count = -1;
  if (Given(a[2])) {
    ASSIGN_OR_RETURN(count, IndexArg("replace", a[2]));
  }
  return Wrap(ReplaceText(rt, self.s, from, to, count));
}

Result<Value> Join(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("join", {""}, 1, args));
  if (!IsIterable(a[0])) return TypeError("can only join an iterable");
  ASSIGN_OR_RETURN(Iterator * iterator, MakeIterator(rt, a[0]));
  StrBuilder out(rt);
  Value item;
  for (bool first = true;; first = false) {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
    if (!more) break;
    if (!first) out.Add(self.s);
    const String* text;
    if (self.s->markup) {
      ASSIGN_OR_RETURN(text, SoftTextOf(rt, item));
      ASSIGN_OR_RETURN(text, EscapeHtml(rt, text));
    } else {
      ASSIGN_OR_RETURN(text, TextArg("join: sequence item", item));
    }
    out.Add(text);
    RETURN_IF_ERROR(rt.Bytes(text->size));
    RETURN_IF_ERROR(out.status());
  }
  return Wrap(out.Finish(self.s->markup));
}

enum class Side { kLeft, kRight, kCenter };
template <Side kSide>
Result<Value> Pad(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("center", {"", ""}, 1, args));
  ASSIGN_OR_RETURN(const int64_t width, IndexArg("center", a[0]));
  const String* fill = BorrowText(rt, " ", false);
  if (Given(a[1])) {
    ASSIGN_OR_RETURN(fill, TextArg("center", a[1]));
    if (self.s->markup) {
      ASSIGN_OR_RETURN(fill, EscapeHtml(rt, fill));
    }
    if (NumChars(fill) != 1) return TypeError("The fill character must be exactly one character long");
  }
  const int64_t padding = width - NumChars(self.s);
  if (padding <= 0) return self;
  if (kSide == Side::kCenter) return Wrap(CenterText(rt, self.s, width, fill));
  return Wrap(
      PadText(rt, self.s, kSide == Side::kRight ? padding : 0, kSide == Side::kLeft ? padding : 0, fill));
}

Result<Value> ZFill(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("zfill", {""}, 1, args));
  ASSIGN_OR_RETURN(const int64_t width, IndexArg("zfill", a[0]));
  const int64_t padding = width - NumChars(self.s);
  if (padding <= 0) return self;
  const bool sign = self.s->size > 0 && (self.s->data[0] == '+' || self.s->data[0] == '-');
  StrBuilder out(rt);
  if (sign) out.Add(self.s, 0, 1);
  RETURN_IF_ERROR(rt.Room(padding));
  out.Add(std::string(static_cast<size_t>(padding), '0'), false);
  out.Add(self.s, sign ? 1 : 0, self.s->size);
  return Wrap(out.Finish(self.s->markup));
}

template <bool kLast>
Result<Value> Partition(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("partition", {""}, 1, args));
  ASSIGN_OR_RETURN(const String* separator, TextArg("partition", a[0]));
  if (separator->size == 0) return InvalidArgument("empty separator");
  RETURN_IF_ERROR(rt.Bytes(self.s->size));
  const String* s = self.s;
  size_t at = FindText(s->view(), separator->view());
  if (kLast) {
    ASSIGN_OR_RETURN(at, FindLastText(rt, s->view(), separator->view(), s->size));
  }
  const String* empty = Substring(rt, s, 0, 0);
  Value parts[3] = {Value::Str(s), Value::Str(empty), Value::Str(empty)};
  if (at != std::string_view::npos) {
    parts[0] = Value::Str(Substring(rt, s, 0, at));
    parts[1] = Value::Str(Substring(rt, s, at, at + separator->size));
    parts[2] = Value::Str(Substring(rt, s, at + separator->size, s->size));
  } else if (kLast) {
    std::swap(parts[0], parts[2]);
  }
  return MakeSequence(rt, Kind::kTuple, parts);
}

template <bool kSuffix>
Result<Value> RemoveAffix(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("removeprefix", {""}, 1, args));
  ASSIGN_OR_RETURN(const String* affix, TextArg("removeprefix", a[0]));
  const std::string_view text = self.s->view();
  if (kSuffix ? !text.ends_with(affix->view()) : !text.starts_with(affix->view())) return self;
  return Value::Str(kSuffix ? Substring(rt, self.s, 0, text.size() - affix->size)
                            : Substring(rt, self.s, affix->size, text.size()));
}

Result<Value> ExpandTabs(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("expandtabs", {"tabsize"}, 0, args));
  int64_t tab = 8;
  if (Given(a[0])) {
    ASSIGN_OR_RETURN(tab, IndexArg("expandtabs", a[0]));
  }
  StrBuilder out(rt);
  UserCursor user(self.s);
  int64_t column = 0;
  for (size_t pos = 0; pos < self.s->size;) {
    size_t size;
    const uint32_t code = DecodeUtf8(self.s->view(), pos, &size);
    if (code == '\t') {
      const int64_t spaces = tab > 0 ? tab - column % tab : 0;
      RETURN_IF_ERROR(rt.Room(spaces));
      RETURN_IF_ERROR(rt.Bytes(spaces));
      out.Add(std::string(static_cast<size_t>(spaces), ' '), user.At(pos));
      column += spaces;
    } else {
      out.Add(self.s, pos, pos + size);
      column = code == '\n' || code == '\r' ? 0 : column + 1;
    }
    pos += size;
  }
  RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(out.size())));
  return Wrap(out.Finish(self.s->markup));
}

Result<Value> Format(Runtime& rt, const Value& self, const Args& args) {
  return Wrap(FormatBraces(rt, self.s, args, nullptr));
}
Result<Value> FormatMap(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("format_map", {""}, 1, args));
  return Wrap(FormatBraces(rt, self.s, Args{}, &a[0]));
}

Result<Value> NotHere(Runtime&, const Value&, const Args&) {
  return Unsupported("the str methods encode, maketrans and translate");
}

constexpr MethodEntry kStringMethods[] = {
    {"capitalize", Case<CaseMode::kCapitalize>},
    {"casefold", Case<CaseMode::kFold>},
    {"center", Pad<Side::kCenter>},
    {"count", Count},
    {"encode", NotHere},
    {"endswith", Affix<true>},
    {"expandtabs", ExpandTabs},
    {"find", Find<false, false>},
    {"format", Format},
    {"format_map", FormatMap},
    {"index", Find<false, true>},
    {"join", Join},
    {"ljust", Pad<Side::kLeft>},
    {"lower", Case<CaseMode::kLower>},
    {"lstrip", Strip<true, false>},
    {"maketrans", NotHere},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", Replace},
    {"rfind", Find<true, false>},
    {"rindex", Find<true, true>},
    {"rjust", Pad<Side::kRight>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<false, true>},
    {"split", Split<false>},
    {"splitlines", StrSplitLines},
    {"startswith", Affix<false>},
    {"strip", Strip<true, true>},
    {"swapcase", Case<CaseMode::kSwap>},
    {"title", Case<CaseMode::kTitle>},
    {"translate", NotHere},
    {"upper", Case<CaseMode::kUpper>},
    {"zfill", ZFill},
};

}  // namespace

MethodFn FindStringMethod(std::string_view name) {
  const auto it = std::lower_bound(std::begin(kStringMethods), std::end(kStringMethods), name,
                                   [](const MethodEntry& e, std::string_view n) { return e.name < n; });
  return it != std::end(kStringMethods) && it->name == name ? it->call : FindStringPredicate(name);
}

}  // namespace cachalot::jinja
