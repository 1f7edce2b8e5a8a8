#include "engine/stop_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot {
namespace {

constexpr size_t kUsualPieceBytes = 256;  // a token's text; longer ones make the buffer grow

}  // namespace

// Knuth, Morris and Pratt, one automaton a string.
StopMatcher::StopMatcher(std::vector<std::string> stop_strings, bool with_match) : with_match_(with_match) {
  size_t longest = 0;
  for (std::string& text : stop_strings) {
    CHECK(!text.empty());
    longest = std::max(longest, text.size());
    std::vector<size_t> fallback(text.size(), 0);
    for (size_t i = 1, k = 0; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k]) k = fallback[k - 1];
      if (text[i] == text[k]) ++k;
      fallback[i] = k;
    }
    patterns_.push_back({.text = std::move(text), .fallback = std::move(fallback)});
  }
  if (!patterns_.empty()) held_.reserve(longest + kUsualPieceBytes);
}

bool StopMatcher::Push(std::string_view text, std::string* out) {
  if (patterns_.empty()) {
    out->append(text);
    return false;
  }
  size_t end = held_.size();
  held_.append(text);
  for (const char c : text) {
    ++end;
    size_t match = 0;
    for (Pattern& pattern : patterns_) {
      size_t& k = pattern.matched;
      while (k > 0 && pattern.text[k] != c) k = pattern.fallback[k - 1];
      if (pattern.text[k] == c) ++k;
      if (k == pattern.text.size()) match = std::max(match, k);
    }
    if (match == 0) continue;
    out->append(held_, 0, with_match_ ? end : end - match);
    held_.clear();
    for (Pattern& pattern : patterns_) pattern.matched = 0;
    return true;
  }
  size_t undecided = 0;
  for (const Pattern& pattern : patterns_) undecided = std::max(undecided, pattern.matched);
  out->append(held_, 0, held_.size() - undecided);
  held_.erase(0, held_.size() - undecided);
  return false;
}

void StopMatcher::Finish(std::string* out) {
  out->append(held_);
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.matched = 0;
}

}  // namespace cachalot
