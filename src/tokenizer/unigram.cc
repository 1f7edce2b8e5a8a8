#include "tokenizer/unigram.h"

#include <algorithm>
#include <limits>

#include "tokenizer/byte_token.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

constexpr float kUnkPenalty = 10.0f;
constexpr int32_t kUnknown = -1;

uint8_t ByteAt(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

}  // namespace

UnigramModel::UnigramModel(const Vocab* vocab, std::vector<bool> ordinary, std::vector<float> scores,
                           const std::vector<int32_t>& fixed, UnigramOptions options)
    : vocab_(vocab), scores_(std::move(scores)), fixed_(scores_.size()), options_(options) {
  byte_ids_.fill(-1);
  for (const int32_t id : fixed) fixed_[static_cast<size_t>(id)] = true;
  float worst = std::numeric_limits<float>::infinity(), best = -worst;
  for (int32_t id = 0; id < vocab_->size(); ++id) {
    const auto at = static_cast<size_t>(id);
    if (!ordinary[at]) continue;
    const std::string_view text = vocab_->Text(id);
    if (const int byte = ByteOfToken(text); byte >= 0) {
      byte_ids_[static_cast<size_t>(byte)] = id;
      continue;
    }
    if (vocab_->Find(text) == id) sorted_.push_back(id);
    if (fixed_[at]) continue;
    worst = std::min(worst, scores_[at]);
    best = std::max(best, scores_[at]);
  }
  if (best < worst) worst = best = 0;  // no token at all
  unk_score_ = worst - kUnkPenalty;
  best_score_ = best;
  std::sort(sorted_.begin(), sorted_.end(),
            [this](int32_t a, int32_t b) { return vocab_->Text(a) < vocab_->Text(b); });
  for (const int32_t id : sorted_) ++first_byte_[ByteAt(vocab_->Text(id), 0) + size_t{1}];
  for (size_t b = 0; b < 256; ++b) first_byte_[b + 1] += first_byte_[b];
}

void UnigramModel::Encode(std::string_view piece, PieceScratch* scratch, std::vector<int32_t>* out) const {
  std::vector<float>& best = scratch->scores;
  std::vector<int32_t>& begins = scratch->begins;
  std::vector<int32_t>& tokens = scratch->tokens;
  const size_t n = piece.size();
  best.assign(n + 1, 0.0f);
  begins.assign(n + 1, -1);
  tokens.assign(n + 1, kUnknown);
  for (size_t begin = 0; begin < n;) {
    const auto reach = [&](size_t end, int32_t token, float score) {
      const float total = best[begin] + score;
      if (begins[end] >= 0 && !(total > best[end])) return;
      best[end] = total;
      begins[end] = static_cast<int32_t>(begin);
      tokens[end] = token;
    };
    const auto char_size = static_cast<size_t>(NextUtf8Char(piece.substr(begin)).size);
    bool covered = false;
    // The tokens that begin with the bytes so far are a range of the sorted ones, which each byte narrows.
    auto low = sorted_.begin() + first_byte_[ByteAt(piece, begin)];
    auto high = sorted_.begin() + first_byte_[ByteAt(piece, begin) + size_t{1}];
    for (size_t size = 1; low != high; ++size) {
      const std::string_view shortest = vocab_->Text(*low);
      if (shortest.size() == size) {
        const auto id = static_cast<size_t>(*low);
        reach(begin + size, *low, fixed_[id] ? static_cast<float>(size) * best_score_ - 0.1f : scores_[id]);
        covered |= size == char_size;
        ++low;
      }
      if (begin + size == n) break;
      const uint8_t next = ByteAt(piece, begin + size);
      low = std::lower_bound(low, high, next,
                             [&](int32_t id, uint8_t byte) { return ByteAt(vocab_->Text(id), size) < byte; });
      high = std::upper_bound(
          low, high, next, [&](uint8_t byte, int32_t id) { return byte < ByteAt(vocab_->Text(id), size); });
    }
    if (!covered) reach(begin + char_size, kUnknown, unk_score_);
    begin += char_size;
  }

  // Backwards, so what is appended is turned round in the end.
  const auto start = static_cast<std::ptrdiff_t>(out->size());
  bool last_was_unk = false;
  for (size_t end = n; end > 0; end = static_cast<size_t>(begins[end])) {
    const std::string_view text =
        piece.substr(static_cast<size_t>(begins[end]), end - static_cast<size_t>(begins[end]));
    const bool unknown = tokens[end] == kUnknown;
    const bool all_bytes =
        std::all_of(text.begin(), text.end(), [this](char c) { return HasByte(static_cast<uint8_t>(c)); });
    if (!unknown) {
      out->push_back(tokens[end]);
    } else if (options_.byte_fallback && all_bytes) {
      for (size_t i = text.size(); i > 0; --i) out->push_back(byte_ids_[ByteAt(text, i - 1)]);
    } else if (options_.unk_id >= 0 && !last_was_unk) {
      out->push_back(options_.unk_id);
    }
    last_was_unk = unknown && !(options_.byte_fallback && all_bytes);
  }
  std::reverse(out->begin() + start, out->end());
}

}  // namespace cachalot
