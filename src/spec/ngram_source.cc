#include "spec/ngram_source.h"

#include <algorithm>

namespace cachalot {

int32_t NgramSource::Propose(std::span<const int32_t> tokens, std::span<int32_t> out) const {
  const auto count = static_cast<int32_t>(tokens.size());
  const int32_t first = std::max(0, count - kMaxLookBack);
  int32_t best_len = kMinMatch - 1;
  int32_t best_next = -1;  // the token behind the match
  for (int32_t end = count - 2; end >= first + kMinMatch - 1 && best_len < kMaxMatch; --end) {
    if (tokens[static_cast<size_t>(end)] != tokens.back()) continue;
    int32_t len = 1;
    while (len < kMaxMatch && end - len >= first && tokens[static_cast<size_t>(end - len)] == tokens[static_cast<size_t>(count - 1 - len)]) {
      ++len;
    }
    if (len > best_len) {
      best_len = len;
      best_next = end + 1;
    }
  }
  if (best_next < 0) return 0;
  // Behind the sequence's end stand the drafts themselves.
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t from = static_cast<size_t>(best_next) + i;
    out[i] = from < tokens.size() ? tokens[from] : out[from - tokens.size()];
  }
  return static_cast<int32_t>(out.size());
}

}  // namespace cachalot
