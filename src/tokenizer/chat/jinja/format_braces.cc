// "…".format(…).
#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/text_of.h"
#include "tokenizer/chat/jinja/text_ops.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

class Braces {
 public:
  Braces(Runtime& rt, const Args& args, const Value* mapping) : rt_(rt), args_(args), mapping_(mapping) {}

  // `depth`: fields may stand inside a field's specification, once.
  Status Run(const String* format, int depth, StrBuilder* out) {
    if (depth < 0) return InvalidArgument("Max string recursion exceeded");
    const std::string_view text = format->view();
    RETURN_IF_ERROR(rt_.Bytes(format->size));
    size_t pos = 0;
    while (pos < text.size()) {
      const size_t brace = std::min(text.find_first_of("{}", pos), text.size());
      out->Add(format, pos, brace);
      pos = brace;
      if (pos == text.size()) break;
      if (pos + 1 < text.size() && text[pos + 1] == text[pos]) {
        out->Add(format, pos, pos + 1);
        pos += 2;
        continue;
      }
      if (text[pos] == '}') return InvalidArgument("Single '}}' encountered in format string");
      size_t end = pos + 1;
      int open = 1;
      for (; end < text.size() && open > 0; ++end) {
        if (text[end] == '{') ++open;
        if (text[end] == '}') --open;
      }
      if (open > 0) return InvalidArgument("expected '}}' before end of string");
      RETURN_IF_ERROR(Field(format, pos + 1, end - 1, depth, out));
      RETURN_IF_ERROR(out->status());
      pos = end;
    }
    return Status::Ok();
  }

 private:
  Status Field(const String* format, size_t begin, size_t end, int depth, StrBuilder* out) {
    RETURN_IF_ERROR(rt_.Step());
    const std::string_view text = format->view();
    size_t name_end = begin;
    bool in_brackets = false;
    for (; name_end < end; ++name_end) {
      const char c = text[name_end];
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      if (!in_brackets && (c == ':' || c == '!')) break;
      if (c == '{') return InvalidArgument("unexpected '{{' in field name");
    }
    size_t pos = name_end;
    char conversion = 0;
    if (pos < end && text[pos] == '!') {
      if (pos + 1 >= end) return InvalidArgument("end of string while looking for conversion specifier");
      conversion = text[pos + 1];
      pos += 2;
      if (pos < end && text[pos] != ':') return InvalidArgument("expected ':' after conversion specifier");
    }
    if (pos < end) ++pos;
    ASSIGN_OR_RETURN(Value value, Lookup(text.substr(begin, name_end - begin)));
    if (conversion == 's') {
      ASSIGN_OR_RETURN(const String* s, TextOf(rt_, value));
      value = Value::Str(s);
    } else if (conversion == 'r') {
      ASSIGN_OR_RETURN(const String* s, ReprOf(rt_, value));
      value = Value::Str(s);
    } else if (conversion != 0) {
      return Unsupported("the conversion '{}' in a format string", conversion);
    }
    StrBuilder spec(rt_);
    RETURN_IF_ERROR(Run(Substring(rt_, format, pos, end), depth - 1, &spec));
    const bool spec_from_user = !spec.ranges().empty();
    ASSIGN_OR_RETURN(const String* formatted, FormatWithSpec(rt_, value, spec.text(), spec_from_user));
    if (escape) {
      ASSIGN_OR_RETURN(formatted, EscapeHtml(rt_, formatted));
    }
    out->Add(formatted);
    return Status::Ok();
  }

  Result<Value> Lookup(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    std::string_view first = name.substr(0, first_end);
    const bool number = !first.empty() && first.find_first_not_of("0123456789") == first.npos;
    Value value;
    if (first.empty() || number) {
      if ((number && next_ > 0) || (!number && manual_)) {
        return InvalidArgument("cannot switch between manual and automatic field numbering");
      }
      size_t index = next_;
      if (number) {
        manual_ = true;
        NumberError error;
        const Int parsed = ParseInt(first, 10, &error).value_or(Int{1} << 40);
        index = static_cast<size_t>(std::min<Int>(parsed, Int{1} << 40));
      } else {
        ++next_;
      }
      if (index >= args_.positional.size())
        return InvalidArgument("replacement index {} out of range", index);
      value = args_.positional[index];
    } else if (mapping_ != nullptr) {
      ASSIGN_OR_RETURN(const String* key, CopyText(rt_, first, false));
      if (!mapping_->is_dict()) return TypeError("format_map() wants a mapping");
      ASSIGN_OR_RETURN(const Value* found, DictFind(rt_, mapping_->dict, key->view()));
      if (found == nullptr) return InvalidArgument("format has no value for the key '{}'", first);
      value = *found;
    } else {
      const Keyword* found = nullptr;
      for (const Keyword& k : args_.keywords) {
        if (k.name == first) found = &k;
      }
      if (found == nullptr) return InvalidArgument("format has no value for the key '{}'", first);
      value = found->value;
    }
    return Follow(value, name.substr(first_end));
  }

  Result<Value> Follow(Value value, std::string_view path) {
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t end = std::min(path.find_first_of(".[", 1), path.size());
        if (end == 1) return InvalidArgument("Empty attribute in format string");
        ASSIGN_OR_RETURN(const String* key, CopyText(rt_, path.substr(1, end - 1), false));
        ASSIGN_OR_RETURN(value, GetAttribute(rt_, value, key->view()));
        path.remove_prefix(end);
        continue;
      }
      if (path[0] != '[') return InvalidArgument("Only '.' or '[' may follow ']' in format field specifier");
      const size_t end = path.find(']');
      if (end == path.npos) return InvalidArgument("Missing ']' in format string");
      const std::string_view key = path.substr(1, end - 1);
      if (key.empty()) return InvalidArgument("Empty attribute in format string");
      Value index;
      if (key.find_first_not_of("0123456789") == key.npos) {
        NumberError error;
        index = Value::Integer(ParseInt(key, 10, &error).value_or(Int{1} << 40));
      } else {
        ASSIGN_OR_RETURN(const String* text, CopyText(rt_, key, false));
        index = Value::Str(text);
      }
      ASSIGN_OR_RETURN(value, GetItem(rt_, value, index));
      path.remove_prefix(end + 1);
    }
    return value;
  }

 public:
  bool escape = false;  // the format string is Markup

 private:
  Runtime& rt_;
  const Args& args_;
  const Value* mapping_;
  size_t next_ = 0;
  bool manual_ = false;
};

}  // namespace

Result<const String*> FormatBraces(Runtime& rt, const String* format, const Args& args,
                                   const Value* mapping) {
  StrBuilder out(rt);
  Braces braces(rt, args, mapping);
  braces.escape = format->markup;
  RETURN_IF_ERROR(braces.Run(format, 2, &out));
  return out.Finish(format->markup);
}

}  // namespace cachalot::jinja
