#include "tokenizer/chat/jinja/iterate.h"

#include <algorithm>

#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_loop.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

Value EntryPart(Runtime& rt, const DictEntry& entry, ViewKind kind) {
  if (kind == ViewKind::kKeys) return entry.key;
  if (kind == ViewKind::kValues) return entry.value;
  Value* pair = rt.arena.NewArray<Value>(2);
  pair[0] = entry.key;
  pair[1] = entry.value;
  return Value::Seq(Kind::kTuple, rt.arena.New<Sequence>(Sequence{pair, 2, false}));
}

// Lists, tuples, ranges, dicts and their views, forwards or backwards.
class IndexIterator final : public Iterator {
 public:
  IndexIterator(const Value& value, int64_t size, bool backwards)
      : value_(value), left_(size), backwards_(backwards) {
    if (!backwards)
      next_ = 0;
    else
      next_ = size - 1;
  }
  Result<bool> Next(Runtime& rt, Value* out) override {
    if (left_ == 0) return false;
    RETURN_IF_ERROR(rt.Step());
    if (value_.is_dict()) {
      *out = value_.dict->entries[next_].key;
    } else if (value_.is(Kind::kView)) {
      *out = EntryPart(rt, value_.view->dict->entries[next_], value_.view->kind);
    } else {
      *out = ItemAt(rt, value_, next_);
    }
    next_ += backwards_ ? -1 : 1;
    --left_;
    return true;
  }

 private:
  Value value_;
  int64_t left_;
  int64_t next_;
  bool backwards_;
};

class CharIterator final : public Iterator {
 public:
  CharIterator(const String* s, bool backwards)
      : s_(s), backwards_(backwards), pos_(backwards ? s->size : 0) {}
  Result<bool> Next(Runtime& rt, Value* out) override {
    RETURN_IF_ERROR(rt.Step());
    if (pos_ == (backwards_ ? 0 : s_->size)) return false;
    size_t begin = pos_;
    size_t end = pos_;
    if (backwards_) {
      begin = pos_ = PreviousUtf8(s_->view(), pos_);
    } else {
      size_t size;
      DecodeUtf8(s_->view(), pos_, &size);
      end = pos_ = pos_ + size;
    }
    // Iterating Markup gives plain characters.
    *out = Value::Str(WithMarkup(rt, Substring(rt, s_, begin, end), false));
    return true;
  }

 private:
  const String* s_;
  bool backwards_;
  size_t pos_;
};

}  // namespace

bool IsIterable(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kIterator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

Result<Iterator*> MakeIterator(Runtime& rt, const Value& value) {
  switch (value.kind) {
    case Kind::kIterator:
      return value.iter;
    case Kind::kString:
      return static_cast<Iterator*>(rt.arena.New<CharIterator>(value.s, false));
    case Kind::kUndefined:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView:
      return static_cast<Iterator*>(rt.arena.New<IndexIterator>(value, *LengthOf(value), false));
    case Kind::kLoop:
      return Unsupported("iterating over the loop variable");
    default:
      return TypeError("'{}' object is not iterable", TypeName(value));
  }
}

Result<std::optional<Value>> MakeReversed(Runtime& rt, const Value& value) {
  switch (value.kind) {
    case Kind::kString: {
      ASSIGN_OR_RETURN(const Value v, WrapIterator(rt, CharIterator(value.s, true), nullptr));
      return std::optional<Value>(v);
    }
    case Kind::kUndefined:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
    case Kind::kView: {
      ASSIGN_OR_RETURN(const Value v,
                       WrapIterator(rt, IndexIterator(value, *LengthOf(value), true), nullptr));
      return std::optional<Value>(v);
    }
    default:
      return std::optional<Value>();
  }
}

std::optional<int64_t> LengthOf(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return NumChars(value.s);
    case Kind::kList:
    case Kind::kTuple:
      return value.seq->size;
    case Kind::kDict:
      return value.dict->size;
    case Kind::kRange:
      return value.range->size;
    case Kind::kView:
      return value.view->dict->size;
    default:
      return std::nullopt;
  }
}

Result<std::vector<Value>> ItemsOf(Runtime& rt, const Value& value) {
  if (value.is_list_or_tuple()) {
    const auto items = value.items();
    RETURN_IF_ERROR(rt.Work(static_cast<int64_t>(items.size() >> 2)));
    RETURN_IF_ERROR(rt.Room(static_cast<int64_t>(items.size_bytes())));
    return std::vector<Value>(items.begin(), items.end());
  }
  ASSIGN_OR_RETURN(Iterator * iterator, MakeIterator(rt, value));
  std::vector<Value> items;
  Value item;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
    if (!more) return items;
    RETURN_IF_ERROR(rt.Room(static_cast<int64_t>((items.size() + 1) * sizeof(Value))));
    items.push_back(item);
  }
}

Result<Value> MakeSequence(Runtime& rt, Kind kind, std::span<const Value> items) {
  ASSIGN_OR_RETURN(Value * copy, rt.NewValues(static_cast<int64_t>(items.size())));
  std::copy(items.begin(), items.end(), copy);
  return Value::Seq(kind, rt.arena.New<Sequence>(Sequence{copy, static_cast<uint32_t>(items.size()), false}));
}

Value ItemAt(Runtime& rt, const Value& value, int64_t index) {
  if (value.is(Kind::kRange)) return Value::Integer(value.range->start + value.range->step * index);
  if (value.is_string()) {
    const size_t begin = CharOffset(value.s, index);
    size_t size;
    DecodeUtf8(value.s->view(), begin, &size);
    return Value::Str(Substring(rt, value.s, begin, begin + size));
  }
  return value.seq->items[index];
}

}  // namespace cachalot::jinja
