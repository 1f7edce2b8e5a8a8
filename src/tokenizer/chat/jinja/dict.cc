#include "tokenizer/chat/jinja/dict.h"

#include <cstring>

#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/numbers.h"

namespace cachalot::jinja {
namespace {

uint64_t Mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

uint64_t HashText(std::string_view text) {
  return std::hash<std::string_view>()(text);
}

constexpr uint32_t kLinearDict = 12;  // entries up to which a scan beats hashing

// Visits the slots of `hash`; `match(entry)` is a Result<bool>. Returns the entry or -1.
template <typename Match>
Result<int64_t> Probe(Runtime& rt, const uint32_t* slots, uint64_t mask, uint64_t hash, Match match) {
  for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
    RETURN_IF_ERROR(rt.Work(1));
    if (slots[at] == 0) return int64_t{-1};
    const uint32_t entry = slots[at] - 1;
    ASSIGN_OR_RETURN(const bool same, match(entry));
    if (same) return int64_t{entry};
  }
}

void Insert(uint32_t* slots, uint64_t mask, uint64_t hash, uint32_t entry) {
  uint64_t at = hash & mask;
  while (slots[at] != 0) at = (at + 1) & mask;
  slots[at] = entry + 1;
}

Status MakeIndex(Runtime& rt, const Dict* dict) {
  uint32_t capacity = 32;
  while (capacity < dict->size * 2) capacity *= 2;
  RETURN_IF_ERROR(rt.Room(capacity * int64_t{4}));
  uint32_t* slots = rt.arena.NewArray<uint32_t>(capacity);
  for (uint32_t i = 0; i < dict->size; ++i) {
    ASSIGN_OR_RETURN(const uint64_t hash, HashOf(rt, dict->entries[i].key));
    Insert(slots, capacity - 1, hash, i);
  }
  dict->index = slots;
  dict->index_mask = capacity - 1;
  return Status::Ok();
}

}  // namespace

Result<uint64_t> HashOf(Runtime& rt, const Value& value, int depth) {
  switch (value.kind) {
    case Kind::kString:
      RETURN_IF_ERROR(rt.Bytes(value.s->size));
      return HashText(value.s->view());
    case Kind::kFloat: {
      const std::optional<Int> whole = TruncateToInt(value.f);
      if (whole && static_cast<double>(*whole) == value.f) return Mix(1, static_cast<uint64_t>(*whole));
      uint64_t bits;
      std::memcpy(&bits, &value.f, sizeof(bits));
      return Mix(2, bits);
    }
    case Kind::kBool:
    case Kind::kInt:
      return Mix(1, static_cast<uint64_t>(value.as_int()));
    case Kind::kTuple: {
      RETURN_IF_ERROR(rt.Nesting(depth));
      uint64_t h = 3;
      for (const Value& item : value.items()) {
        ASSIGN_OR_RETURN(const uint64_t x, HashOf(rt, item, depth + 1));
        h = Mix(h, x);
      }
      return h;
    }
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView:
      return TypeError("unhashable type: '{}'", TypeName(value));
    case Kind::kUndefined:
    case Kind::kNone:
      return Mix(4, static_cast<uint64_t>(value.kind));
    case Kind::kRange:
      return Mix(5, static_cast<uint64_t>(value.range->size));
    default:
      return Mix(6, reinterpret_cast<uintptr_t>(value.dict));
  }
}

Result<const Value*> DictFind(Runtime& rt, const Dict* dict, const Value& key) {
  if (key.is_string()) return DictFind(rt, dict, key.s->view());
  ASSIGN_OR_RETURN(const uint64_t hash,
                   HashOf(rt, key));  // also of a small dict: an unhashable key is an error
  if (dict->size <= kLinearDict) {
    for (uint32_t i = 0; i < dict->size; ++i) {
      ASSIGN_OR_RETURN(const bool same, Equal(rt, dict->entries[i].key, key));
      if (same) return &dict->entries[i].value;
    }
    return nullptr;
  }
  if (dict->index == nullptr) RETURN_IF_ERROR(MakeIndex(rt, dict));
  ASSIGN_OR_RETURN(const int64_t found, Probe(rt, dict->index, dict->index_mask, hash, [&](uint32_t entry) {
                     return Equal(rt, dict->entries[entry].key, key);
                   }));
  return found < 0 ? nullptr : &dict->entries[found].value;
}

Result<const Value*> DictFind(Runtime& rt, const Dict* dict, std::string_view key) {
  const auto matches = [&](uint32_t i) {
    const Value& k = dict->entries[i].key;
    return k.is_string() && k.s->view() == key;
  };
  if (dict->size <= kLinearDict) {
    for (uint32_t i = 0; i < dict->size; ++i) {
      if (matches(i)) return &dict->entries[i].value;
    }
    return nullptr;
  }
  if (dict->index == nullptr) RETURN_IF_ERROR(MakeIndex(rt, dict));
  RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(key.size())));
  ASSIGN_OR_RETURN(const int64_t found,
                   Probe(rt, dict->index, dict->index_mask, HashText(key),
                         [&](uint32_t entry) -> Result<bool> { return matches(entry); }));
  return found < 0 ? nullptr : &dict->entries[found].value;
}

Result<bool> DictBuilder::Set(const Value& key, const Value& value) {
  ASSIGN_OR_RETURN(const uint64_t hash, HashOf(rt_, key));
  if (entries_.size() * 2 >= slots_.size()) {
    const size_t capacity = slots_.empty() ? 16 : slots_.size() * 2;
    RETURN_IF_ERROR(rt_.Room(static_cast<int64_t>(capacity * (sizeof(DictEntry) + 4))));
    slots_.assign(capacity, 0);
    for (size_t i = 0; i < entries_.size(); ++i) {
      ASSIGN_OR_RETURN(const uint64_t h, HashOf(rt_, entries_[i].key));
      Insert(slots_.data(), capacity - 1, h, static_cast<uint32_t>(i));
    }
  }
  const uint64_t mask = slots_.size() - 1;
  ASSIGN_OR_RETURN(const int64_t found, Probe(rt_, slots_.data(), mask, hash, [&](uint32_t entry) {
                     return Equal(rt_, entries_[entry].key, key);
                   }));
  if (found >= 0) {
    entries_[static_cast<size_t>(found)].value = value;
    return false;
  }
  Insert(slots_.data(), mask, hash, static_cast<uint32_t>(entries_.size()));
  entries_.push_back({key, value});
  return true;
}

Result<Value> DictBuilder::Finish() {
  RETURN_IF_ERROR(rt_.Room(static_cast<int64_t>(entries_.size() * sizeof(DictEntry))));
  DictEntry* copy = rt_.arena.NewArray<DictEntry>(entries_.size());
  std::copy(entries_.begin(), entries_.end(), copy);
  return Value::Of(rt_.arena.New<Dict>(Dict{copy, static_cast<uint32_t>(entries_.size()), nullptr, 0}));
}

}  // namespace cachalot::jinja
