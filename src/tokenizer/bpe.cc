#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/byte_token.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

// Up to here a scan for the least rank beats a heap (measured on English text: pieces have 5 bytes on
// average).
constexpr size_t kMaxShortSymbols = 32;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t PairHash(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return static_cast<size_t>(key ^ key >> 32);
}

}  // namespace

BpeModel::BpeModel(const Vocab* vocab, std::vector<bool> ordinary, BpeOptions options)
    : vocab_(vocab), ordinary_(std::move(ordinary)), options_(options) {
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    byte_ids_[byte] =
        FindOrdinary(options_.byte_level ? std::string(ByteToAlphabet(byte)) : fmt::format("<0x{:02X}>", b));
  }
  for (int32_t id = 0; id < vocab_->size(); ++id) {
    if (ordinary_[static_cast<size_t>(id)])
      max_token_bytes_ = std::max(max_token_bytes_, vocab_->Text(id).size());
  }
}

int32_t BpeModel::FindOrdinary(std::string_view text) const {
  const int32_t id = vocab_->Find(text);
  return IsOrdinary(id) ? id : -1;
}

void BpeModel::ReserveMerges(int64_t num_merges) {
  GrowPairs(std::bit_ceil(static_cast<size_t>(num_merges) * 2 + 16));
}

bool BpeModel::AddMerge(std::string_view left, std::string_view right) {
  const uint32_t rank = next_rank_++;
  merged_text_.assign(left);
  merged_text_.append(right);
  const int32_t left_id = FindOrdinary(left);
  const int32_t right_id = FindOrdinary(right);
  // Most vocabularies list the results of merges in the order of the merges: a guess costs less than a
  // search.
  int32_t merged_id = -1;
  for (const int32_t guess : {last_merged_id_, last_merged_id_ + 1}) {
    if (vocab_->Text(guess) == merged_text_ && IsOrdinary(guess)) merged_id = guess;
  }
  if (merged_id < 0) merged_id = FindOrdinary(merged_text_);
  if (left_id < 0 || right_id < 0 || merged_id < 0) return false;
  last_merged_id_ = merged_id;
  AddPair(left_id, right_id, rank, merged_id);
  return true;
}

void BpeModel::AddPair(int32_t left, int32_t right, uint32_t rank, int32_t merged_id) {
  if (static_cast<size_t>(num_merges_ + 1) * 2 > slots_.size())
    GrowPairs(std::max<size_t>(slots_.size() * 2, 64));
  const uint64_t key = PairKey(left, right);
  const size_t mask = slots_.size() - 1;
  size_t i = PairHash(key) & mask;
  while (slots_[i].key != kNoPair && slots_[i].key != key) i = (i + 1) & mask;
  if (slots_[i].key != kNoPair) return;
  slots_[i] = {key, static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(merged_id)};
  ++num_merges_;
}

std::vector<BpeModel::Merge> BpeModel::Merges() const {
  std::vector<Slot> used;
  for (const Slot& slot : slots_) {
    if (slot.key != kNoPair) used.push_back(slot);
  }
  std::sort(used.begin(), used.end(), [](const Slot& a, const Slot& b) { return a.value < b.value; });
  std::vector<Merge> merges;
  for (const Slot& slot : used) {
    merges.push_back({static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key & 0xffffffffu),
                      static_cast<int32_t>(slot.value & 0xffffffffu)});
  }
  return merges;
}

void BpeModel::AddScoredTokens(const std::vector<float>& scores, const std::vector<int32_t>& fixed) {
  std::vector<int32_t> order;
  for (int32_t id = 0; id < vocab_->size(); ++id) {
    const std::string_view text = vocab_->Text(id);
    // Of tokens with one text the one that is found counts.
    if (FindOrdinary(text) != id || ByteOfToken(text) >= 0) continue;
    order.push_back(id);
    for (size_t pos = 0; pos < text.size();) {
      const std::string character(text.substr(pos, static_cast<size_t>(NextUtf8Char(text.substr(pos)).size)));
      pos += character.size();
      if (FindOrdinary(character) >= 0 || part_ids_.contains(character)) continue;
      part_ids_.emplace(character, vocab_->size() + static_cast<int32_t>(parts_.size()));
      parts_.push_back({character, -1});
    }
  }
  for (const int32_t id : fixed) {
    fixed_.push_back(static_cast<int32_t>(parts_.size()));
    parts_.push_back({std::string(vocab_->Text(id)), id});
  }
  std::stable_sort(fixed_.begin(), fixed_.end(), [this](int32_t a, int32_t b) {
    return parts_[static_cast<size_t>(a)].text.size() > parts_[static_cast<size_t>(b)].text.size();
  });
  const auto score = [&](int32_t id) { return scores[static_cast<size_t>(id)]; };
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;  // equal scores: the leftmost first
    const std::string_view text = vocab_->Text(order[i]);
    for (size_t cut = static_cast<size_t>(NextUtf8Char(text).size); cut < text.size();
         cut += static_cast<size_t>(NextUtf8Char(text.substr(cut)).size)) {
      const int32_t left = SymbolOf(text.substr(0, cut)), right = SymbolOf(text.substr(cut));
      if (left >= 0 && right >= 0) AddPair(left, right, rank, order[i]);
    }
  }
}

int32_t BpeModel::SymbolOf(std::string_view text) const {
  if (const int32_t id = FindOrdinary(text); id >= 0) return id;
  if (part_ids_.empty()) return -1;
  const auto found = part_ids_.find(std::string(text));
  return found == part_ids_.end() ? -1 : found->second;
}

int32_t BpeModel::FixedAt(std::string_view text) const {
  for (const int32_t part : fixed_) {
    if (text.starts_with(parts_[static_cast<size_t>(part)].text)) return part;
  }
  return -1;
}

void BpeModel::ExpandParts(std::vector<int32_t>* ids) const {
  const auto is_part = [this](int32_t id) { return id >= vocab_->size(); };
  if (std::none_of(ids->begin(), ids->end(), is_part)) return;
  std::vector<int32_t> expanded;
  for (const int32_t id : *ids) {
    int32_t token = id;
    if (is_part(id)) {
      const Part& part = parts_[static_cast<size_t>(id - vocab_->size())];
      token = part.token;
      const bool all_bytes = std::all_of(part.text.begin(), part.text.end(),
                                         [this](char c) { return HasByte(static_cast<uint8_t>(c)); });
      if (token < 0 && options_.byte_fallback && all_bytes) {
        for (const char c : part.text) expanded.push_back(byte_ids_[static_cast<uint8_t>(c)]);
        continue;
      }
      if (token < 0) token = options_.unk_id;
    }
    const bool again = token == options_.unk_id && !expanded.empty() && expanded.back() == token;
    if (token >= 0 && !(options_.fuse_unk && again)) expanded.push_back(token);
  }
  ids->swap(expanded);
}

void BpeModel::GrowPairs(size_t num_slots) {
  if (num_slots <= slots_.size()) return;
  std::vector<Slot> old(num_slots);
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.key == kNoPair) continue;
    size_t i = PairHash(slot.key) & mask;
    while (slots_[i].key != kNoPair) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

uint64_t BpeModel::FindPair(int32_t left, int32_t right) const {
  if (slots_.empty()) return kNoPair;
  const uint64_t key = PairKey(left, right);
  const size_t mask = slots_.size() - 1;
  for (size_t i = PairHash(key) & mask;; i = (i + 1) & mask) {
    if (slots_[i].key == key) return slots_[i].value;
    if (slots_[i].key == kNoPair) return kNoPair;
  }
}

void BpeModel::InitSymbols(std::string_view piece, PieceScratch* scratch) const {
  std::vector<int32_t>& ids = scratch->ids;
  ids.clear();
  bool last_is_unk = false;
  const auto add_unknown = [&] {
    if (options_.unk_id >= 0 && !(options_.fuse_unk && last_is_unk)) ids.push_back(options_.unk_id);
    last_is_unk = true;
  };
  if (options_.byte_level) {
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id < 0) {
        add_unknown();
      } else {
        ids.push_back(id);
        last_is_unk = false;
      }
    }
    return;
  }
  for (size_t pos = 0; pos < piece.size();) {
    if (const int32_t part = fixed_.empty() ? -1 : FixedAt(piece.substr(pos)); part >= 0) {
      ids.push_back(vocab_->size() + part);
      pos += parts_[static_cast<size_t>(part)].text.size();
      last_is_unk = false;
      continue;
    }
    const Utf8Char c = NextUtf8Char(piece.substr(pos));
    const std::string_view text = piece.substr(pos, static_cast<size_t>(c.size));
    pos += text.size();
    const auto byte_has_token = [this](char byte) { return byte_ids_[static_cast<uint8_t>(byte)] >= 0; };
    if (const int32_t id = c.code_point == kInvalidCodePoint ? -1 : SymbolOf(text); id >= 0) {
      ids.push_back(id);
      last_is_unk = false;
    } else if (options_.byte_fallback && std::all_of(text.begin(), text.end(), byte_has_token)) {
      for (const char byte : text) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      last_is_unk = false;
    } else {
      add_unknown();
    }
  }
}

void BpeModel::MergeShort(PieceScratch* scratch) const {
  std::vector<int32_t>& ids = scratch->ids;
  size_t n = ids.size();
  uint64_t pairs[kMaxShortSymbols];
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = FindPair(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i] >> 32 < pairs[best] >> 32) best = i;  // of equal ranks the leftmost stays
    }
    if (pairs[best] == kNoPair) break;
    ids[best] = static_cast<int32_t>(pairs[best] & UINT32_MAX);
    for (size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      pairs[i - 1] = pairs[i];
    }
    --n;
    if (best > 0) pairs[best - 1] = FindPair(ids[best - 1], ids[best]);
    if (best + 1 < n) pairs[best] = FindPair(ids[best], ids[best + 1]);
  }
  ids.resize(n);
}

void BpeModel::MergeLong(PieceScratch* scratch) const {
  std::vector<int32_t>& ids = scratch->ids;
  std::vector<uint64_t>& pairs = scratch->pairs;
  std::vector<uint64_t>& heap = scratch->heap;
  std::vector<uint32_t>& next = scratch->next;
  std::vector<uint32_t>& prev = scratch->prev;
  const auto n = static_cast<uint32_t>(ids.size());
  next.resize(n);
  prev.resize(n);
  pairs.assign(n, kNoPair);
  heap.clear();
  // An entry of the heap is stale when its symbol is gone or pairs with another neighbour now: then the rank
  // differs, or the new pair is as good.
  const auto entry_of = [&](uint32_t i) { return (pairs[i] >> 32) << 32 | i; };
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    prev[i] = i - 1;
    if (i + 1 < n) pairs[i] = FindPair(ids[i], ids[i + 1]);
    if (pairs[i] != kNoPair) heap.push_back(entry_of(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](uint32_t i) {
    pairs[i] = next[i] < n ? FindPair(ids[i], ids[next[i]]) : kNoPair;
    if (pairs[i] == kNoPair) return;
    heap.push_back(entry_of(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    const auto i = static_cast<uint32_t>(entry & UINT32_MAX);
    if (pairs[i] == kNoPair || entry_of(i) != entry) continue;
    const uint32_t gone = next[i];
    ids[i] = static_cast<int32_t>(pairs[i] & UINT32_MAX);
    ids[gone] = -1;
    pairs[gone] = kNoPair;
    next[i] = next[gone];
    if (next[i] < n) prev[next[i]] = i;
    update(i);
    if (i > 0) update(prev[i]);
  }
  std::erase(ids, -1);
}

void BpeModel::Encode(std::string_view piece, PieceScratch* scratch, std::vector<int32_t>* out) const {
  if (options_.ignore_merges && piece.size() <= max_token_bytes_) {
    std::string_view text = piece;
    if (options_.byte_level) {
      scratch->text.clear();
      for (const char c : piece) scratch->text.append(ByteToAlphabet(static_cast<uint8_t>(c)));
      text = scratch->text;
    }
    if (const int32_t id = FindOrdinary(text); id >= 0) {
      out->push_back(id);
      return;
    }
  }
  InitSymbols(piece, scratch);
  if (scratch->ids.size() > kMaxShortSymbols) {
    MergeLong(scratch);
  } else {
    MergeShort(scratch);
  }
  if (!parts_.empty()) ExpandParts(&scratch->ids);
  out->insert(out->end(), scratch->ids.begin(), scratch->ids.end());
}

}  // namespace cachalot
