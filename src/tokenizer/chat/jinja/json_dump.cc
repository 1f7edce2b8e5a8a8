#include "tokenizer/chat/jinja/json_dump.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_sort.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

class Dumper {
 public:
  Dumper(Runtime& rt, const JsonStyle& style, StrBuilder* out) : rt_(rt), style_(style), out_(out) {}

  Status Dump(const Value& value, int depth) {
    RETURN_IF_ERROR(rt_.Nesting(depth));
    RETURN_IF_ERROR(out_->status());
    switch (value.kind) {
      case Kind::kString:
        RETURN_IF_ERROR(rt_.Bytes(value.s->size));
        DumpString(value.s);
        return out_->status();
      case Kind::kList:
      case Kind::kTuple:
        return DumpItems(value.items(), depth);
      case Kind::kDict:
        return DumpDict(value.dict, depth);
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        out_->Add(Scalar(value), value.from_user);
        return Status::Ok();
      default:
        return TypeError("Object of type {} is not JSON serializable", TypeName(value));
    }
  }

 private:
  static std::string Scalar(const Value& value) {
    switch (value.kind) {
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return value.b ? "true" : "false";
      case Kind::kInt:
        return FormatInt(value.i);
      default:
        break;
    }
    if (std::isnan(value.f)) return "NaN";
    if (std::isinf(value.f)) return value.f < 0 ? "-Infinity" : "Infinity";
    return FormatFloat(value.f);
  }

  void DumpString(const String* s) {
    const std::string_view text = s->view();
    UserCursor user(s);
    out_->Add("\"", HasUser(s));
    size_t plain = 0;
    for (size_t pos = 0; pos < text.size();) {
      const auto b = static_cast<uint8_t>(text[pos]);
      size_t size = 1;
      char escape[16];
      std::string_view replaced;
      if (b == '"') {
        replaced = "\\\"";
      } else if (b == '\\') {
        replaced = "\\\\";
      } else if (b < 0x20) {
        switch (b) {
          case '\n':
            replaced = "\\n";
            break;
          case '\r':
            replaced = "\\r";
            break;
          case '\t':
            replaced = "\\t";
            break;
          case '\f':
            replaced = "\\f";
            break;
          case '\b':
            replaced = "\\b";
            break;
          default:
            replaced = Escape(b, escape);
            break;
        }
      } else if (b >= 0x7F && style_.ensure_ascii) {
        replaced = Escape(DecodeUtf8(text, pos, &size), escape);
      }
      if (!replaced.empty()) {
        out_->Add(s, plain, pos);
        out_->Add(replaced, user.At(pos));
        plain = pos + size;
      }
      pos += size;
    }
    out_->Add(s, plain, text.size());
    out_->Add("\"", HasUser(s));
  }

  static std::string_view Escape(uint32_t code, char buffer[16]) {
    int n;
    if (code >= 0x10000) {
      const uint32_t rest = code - 0x10000;
      n = std::snprintf(buffer, 16, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else {
      n = std::snprintf(buffer, 16, "\\u%04x", code);
    }
    return std::string_view(buffer, static_cast<size_t>(n));
  }

  void NewLine(int depth) {
    if (!style_.indent) return;
    out_->Add("\n", false);
    for (int i = 0; i < depth; ++i) out_->Add(*style_.indent, false);
  }

  Status DumpItems(std::span<const Value> items, int depth) {
    if (items.empty()) {
      out_->Add("[]", false);
      return Status::Ok();
    }
    out_->Add("[", false);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_->Add(style_.item_separator, false);
      NewLine(depth + 1);
      RETURN_IF_ERROR(Dump(items[i], depth + 1));
    }
    NewLine(depth);
    out_->Add("]", false);
    return Status::Ok();
  }

  Status DumpDict(const Dict* dict, int depth) {
    if (dict->size == 0) {
      out_->Add("{}", false);
      return Status::Ok();
    }
    std::vector<DictEntry> sorted;
    std::span<const DictEntry> entries(dict->entries, dict->size);
    if (style_.sort_keys) {
      sorted.assign(entries.begin(), entries.end());
      RETURN_IF_ERROR(StableSort(&sorted, [&](const DictEntry& a, const DictEntry& b) {
        return InOrder(rt_, Order::kLess, a.key, b.key);
      }));
      entries = sorted;
    }
    out_->Add("{", false);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_->Add(style_.item_separator, false);
      NewLine(depth + 1);
      RETURN_IF_ERROR(DumpKey(entries[i].key));
      out_->Add(style_.key_separator, false);
      RETURN_IF_ERROR(Dump(entries[i].value, depth + 1));
    }
    NewLine(depth);
    out_->Add("}", false);
    return Status::Ok();
  }

  Status DumpKey(const Value& key) {
    if (key.is_string()) {
      DumpString(key.s);
    } else if (key.is_number() || key.is_none()) {
      out_->Add(fmt::format("\"{}\"", Scalar(key)), key.from_user);
    } else {
      return TypeError("keys must be str, int, float, bool or None, not {}", TypeName(key));
    }
    return Status::Ok();
  }

  Runtime& rt_;
  const JsonStyle& style_;
  StrBuilder* out_;
};

}  // namespace

Result<const String*> DumpJson(Runtime& rt, const Value& value, const JsonStyle& style) {
  StrBuilder out(rt);
  RETURN_IF_ERROR(Dumper(rt, style, &out).Dump(value, 0));
  if (style.from_user) return CopyText(rt, out.text(), true);
  out.SpreadUser();
  return out.Finish();
}

Result<Value> FromJson(Runtime& rt, const nlohmann::ordered_json& json, bool user, int depth) {
  using Type = nlohmann::ordered_json::value_t;
  RETURN_IF_ERROR(rt.Nesting(depth));
  switch (json.type()) {
    case Type::null:
      return Value::None().WithUser(user);
    case Type::boolean:
      return Value::Bool(json.get<bool>()).WithUser(user);
    case Type::number_integer:
      return Value::Integer(json.get<int64_t>()).WithUser(user);
    case Type::number_unsigned:
      return Value::Integer(json.get<uint64_t>()).WithUser(user);
    case Type::number_float:
      return Value::Float(json.get<double>()).WithUser(user);
    case Type::string: {
      const std::string& text = json.get_ref<const std::string&>();
      if (text.size() >= (size_t{1} << 31)) return Exhausted("a string of {} bytes is too long", text.size());
      return Value::Str(BorrowText(rt, text, user));
    }
    case Type::array: {
      ASSIGN_OR_RETURN(Value * items, rt.NewValues(static_cast<int64_t>(json.size())));
      uint32_t n = 0;
      for (const auto& item : json) {
        ASSIGN_OR_RETURN(items[n], FromJson(rt, item, user, depth + 1));
        ++n;
      }
      return Value::Seq(Kind::kList, rt.arena.New<Sequence>(Sequence{items, n, false}));
    }
    case Type::object: {
      RETURN_IF_ERROR(rt.Room(static_cast<int64_t>(json.size() * sizeof(DictEntry))));
      DictEntry* entries = rt.arena.NewArray<DictEntry>(json.size());
      uint32_t n = 0;
      for (auto it = json.begin(); it != json.end(); ++it, ++n) {
        entries[n].key = Value::Str(BorrowText(rt, it.key(), user));
        ASSIGN_OR_RETURN(entries[n].value, FromJson(rt, it.value(), user, depth + 1));
      }
      return Value::Of(rt.arena.New<Dict>(Dict{entries, n, nullptr, 0}));
    }
    case Type::binary:
    case Type::discarded:
      break;
  }
  return InvalidArgument("a {} is no JSON value", json.type_name());
}

}  // namespace cachalot::jinja
