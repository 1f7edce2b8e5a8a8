#include "tokenizer/chat/jinja/text_of.h"

#include "tokenizer/chat/jinja/builtins.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_loop.h"
#include "tokenizer/chat/jinja/jinja_macro.h"
#include "tokenizer/chat/jinja/methods.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

void AddStringRepr(const String* s, StrBuilder* out) {
  const std::string_view text = s->view();
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  UserCursor user(s);
  if (s->markup) out->Add("Markup(", false);
  out->Add(std::string_view(&quote, 1), false);
  for (size_t pos = 0; pos < text.size();) {
    size_t size;
    const uint32_t code = DecodeUtf8(text, pos, &size);
    const bool from_user = user.At(pos);
    char escape[16];
    if (code == static_cast<uint32_t>(quote) || code == '\\') {
      escape[0] = '\\';
      escape[1] = static_cast<char>(code);
      out->Add(std::string_view(escape, 2), from_user);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out->Add(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t", from_user);
    } else if (!IsPrintable(code)) {
      const char* format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
      const int n = std::snprintf(escape, sizeof(escape), format, code);
      out->Add(std::string_view(escape, static_cast<size_t>(n)), from_user);
    } else {
      out->Add(text.substr(pos, size), from_user);
    }
    pos += size;
  }
  out->Add(std::string_view(&quote, 1), false);
  if (s->markup) out->Add(")", false);
}

Status AddItems(Runtime& rt, std::span<const Value> items, StrBuilder* out, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out->Add(", ", false);
    RETURN_IF_ERROR(AddRepr(rt, items[i], out, depth + 1));
  }
  return Status::Ok();
}

Status AddEntries(Runtime& rt, const Dict* dict, StrBuilder* out, int depth) {
  for (uint32_t i = 0; i < dict->size; ++i) {
    if (i > 0) out->Add(", ", false);
    RETURN_IF_ERROR(AddRepr(rt, dict->entries[i].key, out, depth + 1));
    out->Add(": ", false);
    RETURN_IF_ERROR(AddRepr(rt, dict->entries[i].value, out, depth + 1));
  }
  return Status::Ok();
}

Status AddView(Runtime& rt, const Value& value, StrBuilder* out, int depth) {
  out->Add(TypeName(value), false);
  out->Add("([", false);
  ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(rt, value));
  RETURN_IF_ERROR(AddItems(rt, items, out, depth));
  out->Add("])", false);
  return Status::Ok();
}

}  // namespace

Status AddRepr(Runtime& rt, const Value& value, StrBuilder* out, int depth) {
  RETURN_IF_ERROR(rt.Nesting(depth));
  RETURN_IF_ERROR(out->status());
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out->Add("Undefined", false);
      break;
    case Kind::kNone:
      out->Add("None", value.from_user);
      break;
    case Kind::kBool:
      out->Add(value.b ? "True" : "False", value.from_user);
      break;
    case Kind::kInt:
      out->Add(FormatInt(value.i), value.from_user);
      break;
    case Kind::kFloat:
      out->Add(FormatFloat(value.f), value.from_user);
      break;
    case Kind::kString:
      RETURN_IF_ERROR(rt.Bytes(value.s->size));
      AddStringRepr(value.s, out);
      break;
    case Kind::kList:
      out->Add("[", false);
      RETURN_IF_ERROR(AddItems(rt, value.items(), out, depth));
      out->Add("]", false);
      break;
    case Kind::kTuple:
      out->Add("(", false);
      RETURN_IF_ERROR(AddItems(rt, value.items(), out, depth));
      out->Add(value.seq->size == 1 ? ",)" : ")", false);
      break;
    case Kind::kDict:
      out->Add("{", false);
      RETURN_IF_ERROR(AddEntries(rt, value.dict, out, depth));
      out->Add("}", false);
      break;
    case Kind::kRange: {
      const Range& r = *value.range;
      out->Add("range(" + FormatInt(r.start) + ", " + FormatInt(r.stop), value.from_user);
      if (r.step != 1) out->Add(", " + FormatInt(r.step), value.from_user);
      out->Add(")", value.from_user);
      break;
    }
    case Kind::kView:
      RETURN_IF_ERROR(AddView(rt, value, out, depth));
      break;
    case Kind::kNamespace: {
      out->Add("<Namespace {", false);
      for (const Namespace::Attr* a = value.ns->first; a != nullptr; a = a->next) {
        if (a != value.ns->first) out->Add(", ", false);
        RETURN_IF_ERROR(AddRepr(rt, a->key, out, depth + 1));
        out->Add(": ", false);
        RETURN_IF_ERROR(AddRepr(rt, a->value, out, depth + 1));
      }
      out->Add("}>", false);
      break;
    }
    case Kind::kMacro:
      out->Add(value.macro->name.empty() ? std::string("<Macro anonymous>")
                                         : fmt::format("<Macro '{}'>", value.macro->name),
               false);
      break;
    case Kind::kLoop: {
      ASSIGN_OR_RETURN(const int64_t length, value.loop->Length(rt));
      out->Add(fmt::format("<LoopContext {}/{}>", value.loop->index0 + 1, length), false);
      break;
    }
    // Python prints addresses here; ours have none.
    case Kind::kBuiltin:
      out->Add(fmt::format("<function {}>", value.builtin->name), false);
      break;
    case Kind::kMethod:
      out->Add(fmt::format("<method {}>", value.method->name), false);
      break;
    case Kind::kIterator:
    case Kind::kCycler:
    case Kind::kJoiner:
      out->Add(fmt::format("<{} object>", TypeName(value)), false);
      break;
  }
  return out->status();
}

Status AddText(Runtime& rt, const Value& value, StrBuilder* out) {
  if (value.is_string()) {
    RETURN_IF_ERROR(rt.Bytes(value.s->size));
    out->Add(value.s);
    return out->status();
  }
  if (value.is_undefined()) return Status::Ok();
  if (value.is_number() || value.is_none()) return AddRepr(rt, value, out);
  ASSIGN_OR_RETURN(const String* text, ReprOf(rt, value));
  out->Add(text);
  return out->status();
}

Result<const String*> ReprOf(Runtime& rt, const Value& value) {
  StrBuilder out(rt);
  RETURN_IF_ERROR(AddRepr(rt, value, &out));
  out.SpreadUser();
  return out.Finish();
}

Result<const String*> TextOf(Runtime& rt, const Value& value) {
  if (value.is_string()) return WithMarkup(rt, value.s, false);
  if (value.is_undefined()) return BorrowText(rt, "", false);
  return ReprOf(rt, value);
}

Result<const String*> SoftTextOf(Runtime& rt, const Value& value) {
  if (value.is_string()) return value.s;
  return TextOf(rt, value);
}

}  // namespace cachalot::jinja
