#include "tokenizer/vocab.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "formats/text.h"

namespace cachalot {
namespace {

uint32_t Hash(std::string_view text) {
  return static_cast<uint32_t>(XXH3_64bits(text.data(), text.size()));
}

}  // namespace

void Vocab::Reserve(int64_t num_tokens, int64_t num_bytes) {
  entries_.reserve(static_cast<size_t>(num_tokens));
  arena_.reserve(static_cast<size_t>(num_bytes));
  Grow(std::bit_ceil(static_cast<size_t>(num_tokens) * 2 + 16));
  ExpectTokens(num_tokens);
}

Status Vocab::Set(int64_t id, std::string_view text) {
  if (id < 0 || id >= kMaxSize || id >= max_id_) {
    return InvalidArgument("token '{}' has id {}, the limit is {}", Printable(text), id,
                           std::min(kMaxSize, max_id_) - 1);
  }
  if (IsDefined(id)) {
    return InvalidArgument("tokens '{}' and '{}' both have id {}", Printable(Text(id)), Printable(text), id);
  }
  if (arena_.size() + text.size() > UINT32_MAX) {
    return InvalidArgument("the texts of the tokens are longer than {} bytes", UINT32_MAX);
  }
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  const Entry entry{static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  entries_[static_cast<size_t>(id)] = entry;
  arena_.append(text);
  if (text.empty()) return Status::Ok();

  if ((num_used_ + 1) * 2 > slots_.size()) Grow(std::max<size_t>(slots_.size() * 2, 64));
  const uint32_t hash = Hash(text);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    if (slots_[i].id < 0) {
      slots_[i] = {hash, static_cast<int32_t>(id), entry};
      ++num_used_;
      return Status::Ok();
    }
    if (slots_[i].hash == hash && Text(slots_[i].entry) == text) return Status::Ok();
  }
}

int32_t Vocab::Find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const uint32_t hash = Hash(text);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].hash == hash && Text(slots_[i].entry) == text) return slots_[i].id;
  }
  return -1;
}

void Vocab::Grow(size_t num_slots) {
  if (num_slots <= slots_.size()) return;
  std::vector<Slot> old(num_slots);
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t i = slot.hash & mask;
    while (slots_[i].id >= 0) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

}  // namespace cachalot
