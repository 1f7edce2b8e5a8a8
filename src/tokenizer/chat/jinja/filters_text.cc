// Filters on text.
#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/filters.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/json_dump.h"
#include "tokenizer/chat/jinja/text_of.h"
#include "tokenizer/chat/jinja/text_ops.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

Result<Value> Wrap(Result<const String*> s) {
  RETURN_IF_ERROR(s.status());
  return Value::Str(*s);
}

template <CaseMode kMode>
Result<Value> Case(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("filter", args));
  ASSIGN_OR_RETURN(const String* s, SoftTextOf(rt, input));
  return Wrap(ChangeCase(rt, s, kMode));
}

bool SeparatesWords(uint32_t code) {
  return code == '-' || code == '(' || code == '{' || code == '[' || code == '<' || IsSpace(code);
}

Result<Value> Title(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("title", args));
  ASSIGN_OR_RETURN(const String* s, TextOf(rt, input));
  StrBuilder out(rt);
  size_t pos = 0;
  while (pos < s->size) {
    const size_t begin = pos;
    size_t size;
    const bool separator = SeparatesWords(DecodeUtf8(s->view(), pos, &size));
    const size_t second = pos + size;
    while (pos < s->size && SeparatesWords(DecodeUtf8(s->view(), pos, &size)) == separator) pos += size;
    if (separator) {
      out.Add(s, begin, pos);
      continue;
    }
    ASSIGN_OR_RETURN(const String* first, ChangeCase(rt, Substring(rt, s, begin, second), CaseMode::kUpper));
    ASSIGN_OR_RETURN(const String* rest, ChangeCase(rt, Substring(rt, s, second, pos), CaseMode::kLower));
    out.Add(first);
    out.Add(rest);
    RETURN_IF_ERROR(out.status());
  }
  return Wrap(out.Finish());
}

Result<Value> Trim(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("trim", {"chars"}, 0, args));
  ASSIGN_OR_RETURN(const String* s, SoftTextOf(rt, input));
  const String* chars = nullptr;
  if (!Absent(a[0])) {
    ASSIGN_OR_RETURN(chars, TextArg("trim", a[0]));
  }
  return Wrap(StripText(rt, s, chars, true, true));
}

Result<Value> Replace(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("replace", {"old", "new", "count"}, 2, args));
  ASSIGN_OR_RETURN(const String* s, TextOf(rt, input));
  ASSIGN_OR_RETURN(const String* from, TextOf(rt, a[0]));
  ASSIGN_OR_RETURN(const String* to, TextOf(rt, a[1]));
  int64_t count = -1;
  if (!Absent(a[2])) {
    ASSIGN_OR_RETURN(count, IndexArg("replace", a[2]));
  }
  return Wrap(ReplaceText(rt, s, from, to, count));
}

Result<Value> Center(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("center", {"width"}, 0, args));
  ASSIGN_OR_RETURN(const String* s, SoftTextOf(rt, input));
  int64_t width = 80;
  if (Given(a[0])) {
    ASSIGN_OR_RETURN(width, IndexArg("center", a[0]));
  }
  return Wrap(CenterText(rt, s, width, BorrowText(rt, " ", false)));
}

Result<Value> Indent(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("indent", {"width", "first", "blank"}, 0, args));
  ASSIGN_OR_RETURN(const String* s, TextArg("indent", input));
  const String* indention;
  if (a[0].is_string()) {
    indention = a[0].s;
  } else {
    Int width = 4;
    if (Given(a[0])) {
      ASSIGN_OR_RETURN(width, IntArg("indent", a[0]));
    }
    ASSIGN_OR_RETURN(indention, RepeatText(rt, BorrowText(rt, " ", false), width));
  }
  if (s->markup && !indention->markup) indention = WithMarkup(rt, indention, true);
  // A newline is added first, so that text that ends with one keeps it.
  ASSIGN_OR_RETURN(const String* text, ConcatText(rt, s, BorrowText(rt, "\n", false, s->markup)));
  ASSIGN_OR_RETURN(const std::vector<Value> lines, SplitLines(rt, text, false));
  StrBuilder out(rt);
  for (size_t i = 0; i < lines.size(); ++i) {
    const String* line = lines[i].s;
    if (i > 0) out.Add("\n", false);
    if (i == 0 ? Truth(a[1]) : Truth(a[2]) || line->size > 0) out.Add(indention);
    out.Add(line);
    RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(indention->size) + line->size));
    RETURN_IF_ERROR(out.status());
  }
  return Wrap(out.Finish(s->markup));
}

Result<Value> Truncate(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("truncate", {"length", "killwords", "end", "leeway"}, 0, args));
  int64_t length = 255;
  int64_t leeway = 5;
  const String* end = BorrowText(rt, "...", false);
  if (Given(a[0])) {
    ASSIGN_OR_RETURN(length, IndexArg("truncate", a[0]));
  }
  if (Given(a[2])) {
    ASSIGN_OR_RETURN(end, TextArg("truncate", a[2]));
  }
  if (!Absent(a[3])) {
    ASSIGN_OR_RETURN(leeway, IndexArg("truncate", a[3]));
  }
  if (length < NumChars(end))
    return InvalidArgument("truncate: expected length >= {}, got {}", NumChars(end), length);
  if (leeway < 0) return InvalidArgument("truncate: expected leeway >= 0, got {}", leeway);
  const std::optional<int64_t> size = LengthOf(input);
  if (!size) return TypeError("object of type '{}' has no len()", TypeName(input));
  if (*size <= length + leeway) return input;
  ASSIGN_OR_RETURN(const String* s, TextArg("truncate", input));
  ASSIGN_OR_RETURN(const String* kept, PickChars(rt, s, 0, 1, length - NumChars(end)));
  if (!Truth(a[1])) {
    const size_t space = kept->view().rfind(' ');
    if (space != std::string_view::npos) kept = Substring(rt, kept, 0, space);
  }
  if (kept->markup != end->markup) {
    ASSIGN_OR_RETURN(kept, EscapeHtml(rt, kept));
    ASSIGN_OR_RETURN(end, EscapeHtml(rt, end));
  }
  return Wrap(ConcatText(rt, kept, end));
}

Result<Value> WordCount(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("wordcount", args));
  ASSIGN_OR_RETURN(const String* s, TextOf(rt, input));
  RETURN_IF_ERROR(rt.Work(s->size >> 3));
  int64_t words = 0;
  bool inside = false;
  for (size_t pos = 0; pos < s->size;) {
    size_t size;
    const uint32_t code = DecodeUtf8(s->view(), pos, &size);
    const bool word = code == '_' || IsAlnum(code);
    if (word && !inside) ++words;
    inside = word;
    pos += size;
  }
  return Value::Integer(words);
}

Result<Value> ToText(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("string", args));
  return Wrap(SoftTextOf(rt, input));
}

Result<Value> Safe(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("safe", args));
  ASSIGN_OR_RETURN(const String* s, TextOf(rt, input));
  return Value::Str(WithMarkup(rt, s, true));
}

Result<Value> Escape(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("escape", args));
  ASSIGN_OR_RETURN(const String* s, SoftTextOf(rt, input));
  return Wrap(EscapeHtml(rt, s));
}

Result<Value> ForceEscape(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("forceescape", args));
  ASSIGN_OR_RETURN(const String* s, TextOf(rt, input));
  return Wrap(EscapeHtml(rt, s));
}

Result<Value> Format(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const String* s, SoftTextOf(rt, input));
  if (!args.positional.empty() && !args.keywords.empty()) {
    return InvalidArgument("can't handle positional and keyword arguments at the same time");
  }
  Value values;
  if (args.keywords.empty()) {
    ASSIGN_OR_RETURN(values, MakeSequence(rt, Kind::kTuple, args.positional));
  } else {
    DictBuilder dict(rt);
    for (const Keyword& k : args.keywords) {
      RETURN_IF_ERROR(dict.Set(Value::Str(BorrowText(rt, k.name, k.name_from_user)), k.value).status());
    }
    ASSIGN_OR_RETURN(values, dict.Finish());
  }
  return Wrap(FormatPercent(rt, s, values));
}

Result<Value> Join(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("join", {"d", "attribute"}, 0, args));
  ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Make(rt, a[1]));
  StrBuilder separator(rt);
  if (Given(a[0])) RETURN_IF_ERROR(AddText(rt, a[0], &separator));
  ASSIGN_OR_RETURN(const String* between, separator.Finish());
  ASSIGN_OR_RETURN(Iterator * iterator, MakeIterator(rt, input));
  StrBuilder out(rt);
  Value item;
  for (bool first = true;; first = false) {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
    if (!more) break;
    if (!first) out.Add(between);
    ASSIGN_OR_RETURN(const Value value, path.Get(rt, item));
    RETURN_IF_ERROR(rt.Bytes(between->size));
    RETURN_IF_ERROR(AddText(rt, value, &out));
  }
  return Wrap(out.Finish());
}

Status Quote(Runtime& rt, const Value& value, bool query, StrBuilder* out) {
  ASSIGN_OR_RETURN(const String* s, TextOf(rt, value));
  UserCursor user(s);
  for (size_t i = 0; i < s->size; ++i) {
    const char c = s->data[i];
    const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !query);
    if (plain) {
      out->Add(s, i, i + 1);
    } else if (c == ' ' && query) {
      out->Add("+", user.At(i));
    } else {
      out->Add(fmt::format("%{:02X}", static_cast<uint8_t>(c)), user.At(i));
    }
  }
  RETURN_IF_ERROR(rt.Work(s->size >> 2));
  return out->status();
}

Result<Value> UrlEncode(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("urlencode", args));
  StrBuilder out(rt);
  if (input.is_string() || !IsIterable(input)) {
    RETURN_IF_ERROR(Quote(rt, input, false, &out));
    return Wrap(out.Finish());
  }
  std::vector<Value> pairs;
  if (input.is_dict()) {
    for (uint32_t i = 0; i < input.dict->size; ++i) {
      const Value pair[2] = {input.dict->entries[i].key, input.dict->entries[i].value};
      ASSIGN_OR_RETURN(const Value tuple, MakeSequence(rt, Kind::kTuple, pair));
      pairs.push_back(tuple);
    }
  } else {
    ASSIGN_OR_RETURN(pairs, ItemsOf(rt, input));
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<Value> pair, ItemsOf(rt, pairs[i]));
    if (pair.size() != 2) return InvalidArgument("urlencode wants pairs, got {} values", pair.size());
    if (i > 0) out.Add("&", false);
    RETURN_IF_ERROR(Quote(rt, pair[0], true, &out));
    out.Add("=", false);
    RETURN_IF_ERROR(Quote(rt, pair[1], true, &out));
  }
  return Wrap(out.Finish());
}

// As Hugging Face redefines it: json.dumps without escaping HTML, and ensure_ascii off.
Result<Value> ToJson(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a,
                   Bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, args));
  JsonStyle style;
  style.ensure_ascii = Truth(a[0]);
  style.sort_keys = Truth(a[3]);
  if (!Absent(a[1])) {
    style.item_separator = ",";
    if (a[1].is_string()) {
      style.indent = std::string(a[1].s->view());
      style.from_user = HasUser(a[1].s);
    } else {
      constexpr Int kWidest = 1000;
      ASSIGN_OR_RETURN(const Int width, IntArg("tojson", a[1]));
      if (width > kWidest)
        return Exhausted("tojson: an indent of more than {} spaces", static_cast<int>(kWidest));
      style.indent = std::string(static_cast<size_t>(std::max<Int>(width, 0)), ' ');
    }
  }
  if (!Absent(a[2])) {
    ASSIGN_OR_RETURN(const std::vector<Value> separators, ItemsOf(rt, a[2]));
    if (separators.size() != 2) return InvalidArgument("tojson: separators must be two strings");
    ASSIGN_OR_RETURN(const String* item, TextArg("tojson", separators[0]));
    ASSIGN_OR_RETURN(const String* key, TextArg("tojson", separators[1]));
    style.from_user = style.from_user || HasUser(item) || HasUser(key);
    style.item_separator = item->view();
    style.key_separator = key->view();
  }
  return Wrap(DumpJson(rt, input, style));
}

// Not of jinja2: some templates (DeepSeek V3.2's) read tool-call arguments that are JSON text with it.
Result<Value> FromJsonText(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("from_json", args));
  ASSIGN_OR_RETURN(const String* s, TextArg("from_json", input));
  return ParseJson(rt, s);
}

constexpr FilterEntry kFilters[] = {
    {"capitalize", Case<CaseMode::kCapitalize>},
    {"center", Center},
    {"e", Escape},
    {"escape", Escape},
    {"forceescape", ForceEscape},
    {"format", Format},
    {"from_json", FromJsonText},
    {"indent", Indent},
    {"join", Join},
    {"lower", Case<CaseMode::kLower>},
    {"replace", Replace},
    {"safe", Safe},
    {"string", ToText},
    {"title", Title},
    {"tojson", ToJson},
    {"trim", Trim},
    {"truncate", Truncate},
    {"upper", Case<CaseMode::kUpper>},
    {"urlencode", UrlEncode},
    {"wordcount", WordCount},
};

}  // namespace

std::span<const FilterEntry> TextFilters() {
  return kFilters;
}

}  // namespace cachalot::jinja
