#include "tokenizer/chat/jinja/builtins.h"

#include <ctime>

#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/text_of.h"

namespace cachalot::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox has the same
constexpr size_t kMaxTimeText = 1 << 16;

Result<Value> MakeRange(Runtime& rt, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("range", {"", "", ""}, 1, args));
  Int bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (!Given(a[i])) continue;
    ASSIGN_OR_RETURN(bounds[i], IntArg("range", a[i]));
  }
  if (!Given(a[1])) std::swap(bounds[0], bounds[1]);
  const auto [start, stop, step] = bounds;
  if (step == 0) return InvalidArgument("range() arg 3 must not be zero");
  Int size = 0;
  if (step > 0 ? start < stop : start > stop) {
    ASSIGN_OR_RETURN(const Int distance, step > 0 ? SubInt(stop, start) : SubInt(start, stop));
    size = (distance - 1) / (step > 0 ? step : -step) + 1;
  }
  if (size > kMaxRange) return Exhausted("range too big: the limit is {}", kMaxRange);
  Value v = Value::Make(Kind::kRange);
  v.range = rt.arena.New<Range>(Range{start, stop, step, static_cast<int64_t>(size)});
  return v;
}

// dict(mapping or pairs, **keywords)
Status FillDict(Runtime& rt, std::string_view function, const Args& args, DictBuilder* out) {
  if (args.positional.size() > 1) return TypeError("{} expected at most 1 argument", function);
  if (args.positional.size() == 1) {
    const Value& from = args.positional[0];
    if (from.is_undefined()) return UndefinedError(from);
    if (from.is_dict()) {
      for (uint32_t i = 0; i < from.dict->size; ++i) {
        RETURN_IF_ERROR(out->Set(from.dict->entries[i].key, from.dict->entries[i].value).status());
      }
    } else {
      ASSIGN_OR_RETURN(Iterator * iterator, MakeIterator(rt, from));
      Value item;
      for (;;) {
        ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
        if (!more) break;
        ASSIGN_OR_RETURN(const std::vector<Value> pair, ItemsOf(rt, item));
        if (pair.size() != 2) {
          return InvalidArgument("dictionary update sequence element has length {}; 2 is required",
                                 pair.size());
        }
        RETURN_IF_ERROR(out->Set(pair[0], pair[1]).status());
      }
    }
  }
  for (const Keyword& k : args.keywords) {
    RETURN_IF_ERROR(out->Set(Value::Str(BorrowText(rt, k.name, k.name_from_user)), k.value).status());
  }
  return Status::Ok();
}

Result<Value> MakeDict(Runtime& rt, const Args& args) {
  DictBuilder dict(rt);
  RETURN_IF_ERROR(FillDict(rt, "dict", args, &dict));
  return dict.Finish();
}

Result<Value> MakeNamespace(Runtime& rt, const Args& args) {
  DictBuilder builder(rt);
  RETURN_IF_ERROR(FillDict(rt, "namespace", args, &builder));
  ASSIGN_OR_RETURN(const Value dict, builder.Finish());
  Namespace* ns = rt.arena.New<Namespace>();
  for (uint32_t i = 0; i < dict.dict->size; ++i) {
    const DictEntry& e = dict.dict->entries[i];
    const std::string_view name = e.key.is_string() ? e.key.s->view() : std::string_view();
    auto* attr = rt.arena.New<Namespace::Attr>(Namespace::Attr{name, e.key, e.value, nullptr});
    (ns->last != nullptr ? ns->last->next : ns->first) = attr;
    ns->last = attr;
    ++ns->size;
  }
  Value v = Value::Make(Kind::kNamespace);
  v.ns = ns;
  return v;
}

Result<Value> MakeCycler(Runtime& rt, const Args& args) {
  if (!args.keywords.empty()) return TypeError("cycler() got an unexpected keyword argument");
  if (args.positional.empty()) return InvalidArgument("at least one item has to be provided");
  ASSIGN_OR_RETURN(const Value items, MakeSequence(rt, Kind::kTuple, args.positional));
  Value v = Value::Make(Kind::kCycler);
  v.cycler = rt.arena.New<Cycler>(Cycler{items.items(), 0});
  return v;
}

Result<Value> MakeJoiner(Runtime& rt, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("joiner", {"sep"}, 0, args));
  Value v = Value::Make(Kind::kJoiner);
  v.joiner =
      rt.arena.New<Joiner>(Joiner{Given(a[0]) ? a[0] : Value::Str(BorrowText(rt, ", ", false)), false});
  return v;
}

Result<Value> RaiseException(Runtime& rt, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("raise_exception", {"message"}, 1, args));
  ASSIGN_OR_RETURN(const String* text, TextOf(rt, a[0]));
  constexpr size_t kLongest = 2000;
  return InvalidArgument("{}", text->view().substr(0, kLongest));
}

Result<Value> StrftimeNow(Runtime& rt, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("strftime_now", {"format"}, 1, args));
  ASSIGN_OR_RETURN(const String* format, TextArg("strftime", a[0]));
  // What Python handles itself: no microseconds are kept, and the time has no zone.
  std::string c_format;
  const std::string_view text = format->view();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || i + 1 == text.size()) {
      c_format += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'f')
      c_format += "000000";
    else if (c != 'z' && c != 'Z')
      c_format.append({'%', c});
  }
  c_format += '.';  // so that an empty result can be told from a buffer that is too small
  if (c_format.size() > kMaxTimeText / 16) {
    return Exhausted("strftime_now: the format is longer than {} bytes", kMaxTimeText / 16);
  }
  if (c_format.find('\0') != c_format.npos) return InvalidArgument("strftime_now: the format contains a NUL");
  const std::time_t now = static_cast<std::time_t>(rt.now_unix_seconds.value_or(std::time(nullptr)));
  std::tm local{};
  if (localtime_r(&now, &local) == nullptr) return InvalidArgument("strftime_now: the time is out of range");
  std::string out(kMaxTimeText, '\0');
  const size_t size = std::strftime(out.data(), out.size(), c_format.c_str(), &local);
  if (size == 0) return Exhausted("strftime_now: the text is longer than {} bytes", kMaxTimeText);
  ASSIGN_OR_RETURN(const String* s, CopyText(rt, std::string_view(out).substr(0, size - 1), HasUser(format)));
  return Value::Str(s);
}

constexpr Builtin kBuiltins[] = {
    {"range", MakeRange},          {"dict", MakeDict},     {"namespace", MakeNamespace},
    {"cycler", MakeCycler},        {"joiner", MakeJoiner}, {"raise_exception", RaiseException},
    {"strftime_now", StrftimeNow},
};

}  // namespace

const Builtin* FindBuiltin(std::string_view name) {
  for (const Builtin& b : kBuiltins) {
    if (b.name == name) return &b;
  }
  return nullptr;
}

}  // namespace cachalot::jinja
