#include "cli/nearest.h"

#include <algorithm>
#include <vector>

namespace cachalot {
namespace {

std::string_view WithoutDashes(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between beginnings of a and b; a swap looks two rows back.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string Nearest(std::string_view word, std::span<const std::string> known) {
  const std::string_view bare = WithoutDashes(word);
  const int limit = bare.size() <= 2 ? 0 : std::max(1, static_cast<int>(bare.size()) / 3);
  std::string best;
  int best_score = 0;
  for (const auto& candidate : known) {
    const std::string_view other = WithoutDashes(candidate);
    // One that was cut short or written out is nearer than its length says.
    const size_t shorter = std::min(bare.size(), other.size());
    const bool begins = shorter >= 2 && bare.substr(0, shorter) == other.substr(0, shorter);
    const int distance = EditDistance(bare, other);
    if (!begins && distance > limit) continue;
    const int score = begins ? 1 : 2 * distance;
    const bool longer_beginning = begins && score == best_score && other.size() > WithoutDashes(best).size();
    if (best.empty() || score < best_score || longer_beginning) best = candidate, best_score = score;
  }
  return best;
}

std::string NearestHint(std::string_view word, std::span<const std::string> known) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

}  // namespace cachalot
