#include "tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "formats/text.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

// What \w means to the tokenizers of Hugging Face, short of a few symbols that count as alphabetic.
bool IsWordChar(int32_t code_point) {
  if (code_point == kInvalidCodePoint) return false;
  switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code_point == 0x200C || code_point == 0x200D;
  }
}

// The character that ends at `end`, which is not 0.
Utf8Char CharBefore(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  const Utf8Char c = NextUtf8Char(text.substr(begin, end - begin));
  if (begin + static_cast<size_t>(c.size) != end) return {kInvalidCodePoint, 1, false};
  return c;
}

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordChar(CharBefore(text, begin).code_point)) return false;
  return end == text.size() || !IsWordChar(NextUtf8Char(text.substr(end)).code_point);
}

// Whether any of the bytes [begin, end) may come from a user.
bool OverlapsUser(const UserRanges& user, const TextOrigin& origin, int64_t base, size_t begin, size_t end) {
  if (user.empty()) return false;
  if (origin.empty())
    return user.Overlap(base + static_cast<int64_t>(begin), base + static_cast<int64_t>(end));
  // A rewritten stretch has one origin, its beginning: it reaches to the origin of what follows it.
  size_t behind = end;
  while (behind + 1 < origin.size() && origin[behind] == origin[end - 1]) ++behind;
  return user.Overlap(base + origin[begin], base + std::max(origin[behind], origin[end - 1] + 1));
}

}  // namespace

UserRanges::UserRanges(std::span<const std::pair<int64_t, int64_t>> ranges) {
  for (const auto& range : ranges) {
    if (range.first < range.second) ranges_.push_back(range);
  }
  std::sort(ranges_.begin(), ranges_.end());
  size_t kept = 0;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    if (ranges_[i].first <= ranges_[kept].second) {
      ranges_[kept].second = std::max(ranges_[kept].second, ranges_[i].second);
    } else {
      ranges_[++kept] = ranges_[i];
    }
  }
  if (!ranges_.empty()) ranges_.resize(kept + 1);
}

bool UserRanges::Overlap(int64_t begin, int64_t end) const {
  // The first range that ends behind `begin`.
  const auto it =
      std::partition_point(ranges_.begin(), ranges_.end(), [&](const auto& r) { return r.second <= begin; });
  return it != ranges_.end() && it->first < end;
}

Status AddedTokens::Add(AddedToken token) {
  if (token.text.empty()) return Status::Ok();
  if (token.text.size() > kMaxTokenBytes) {
    return Unsupported("added token {}, '{}', has {} bytes, the limit is {}", token.id, Printable(token.text),
                       token.text.size(), kMaxTokenBytes);
  }
  int32_t node = -1;
  for (const char c : token.text) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t child = node < 0 ? roots_[byte] : Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({byte, -1, -1, node < 0 ? -1 : nodes_[static_cast<size_t>(node)].first_child});
      (node < 0 ? roots_[byte] : nodes_[static_cast<size_t>(node)].first_child) = child;
    }
    node = child;
  }
  int32_t& slot = nodes_[static_cast<size_t>(node)].token;
  if (slot >= 0) return Status::Ok();
  slot = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
  return Status::Ok();
}

int32_t AddedTokens::Child(int32_t node, uint8_t byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].first_child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

std::vector<AddedTokenMatch> AddedTokens::FindAll(std::string_view text, bool parse_special,
                                                  const UserRanges& user, const TextOrigin& origin,
                                                  int64_t base) const {
  std::vector<AddedTokenMatch> matches;
  size_t done = 0;  // the end of the last match
  size_t pos = 0;
  while (pos < text.size()) {
    int32_t node = roots_[static_cast<uint8_t>(text[pos])];
    const AddedToken* token = nullptr;
    size_t end = pos;
    for (size_t at = pos + 1; node >= 0; ++at) {
      if (const int32_t index = nodes_[static_cast<size_t>(node)].token; index >= 0) {
        const AddedToken& candidate = tokens_[static_cast<size_t>(index)];
        if (!candidate.control || (parse_special && !OverlapsUser(user, origin, base, pos, at))) {
          token = &candidate;
          end = at;
        }
      }
      node = at < text.size() ? Child(node, static_cast<uint8_t>(text[at])) : -1;
    }
    if (token == nullptr) {
      ++pos;
      continue;
    }
    if (!token->single_word || StandsAlone(text, pos, end)) {
      AddedTokenMatch match{token->id, pos, end};
      while (token->lstrip && match.begin > done && IsWhiteSpace(CharBefore(text, match.begin).code_point)) {
        match.begin -= static_cast<size_t>(CharBefore(text, match.begin).size);
      }
      while (token->rstrip && match.end < text.size()) {
        const Utf8Char c = NextUtf8Char(text.substr(match.end));
        if (!IsWhiteSpace(c.code_point)) break;
        match.end += static_cast<size_t>(c.size);
      }
      matches.push_back(match);
      done = match.end;
    }
    pos = std::max(end, done);
  }
  return matches;
}

}  // namespace cachalot
