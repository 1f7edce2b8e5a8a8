#include "tasks/ppl_windows.h"

#include <algorithm>
#include <cmath>

namespace cachalot {

Result<std::vector<PplWindow>> CutChunks(std::span<const int32_t> tokens, int32_t context, int32_t bos_id) {
  if (context < 4) return InvalidArgument("chunks of {} tokens: must be at least 4", context);
  const auto size = static_cast<size_t>(context);
  if (tokens.size() < size) {
    return InvalidArgument("the text has {} tokens, fewer than one chunk of {}", tokens.size(), context);
  }
  std::vector<PplWindow> windows(tokens.size() / size);
  for (size_t i = 0; i < windows.size(); ++i) {
    const auto piece = tokens.subspan(i * size, size);
    windows[i].tokens.assign(piece.begin(), piece.end());
    if (bos_id >= 0) windows[i].tokens[0] = bos_id;
    windows[i].first_scored = context / 2;
  }
  return windows;
}

Result<std::vector<PplWindow>> CutWindows(std::span<const int32_t> tokens, int32_t window, int32_t bos_id) {
  if (window < 2) return InvalidArgument("windows of {} tokens: must be at least 2", window);
  if (bos_id < 0) return InvalidArgument("the model has no BOS token to put before each window");
  if (tokens.empty()) return InvalidArgument("the text has no tokens");
  std::vector<PplWindow> windows;
  const auto size = static_cast<size_t>(window - 1);
  for (size_t begin = 0; begin < tokens.size(); begin += size) {
    const auto piece = tokens.subspan(begin, std::min(size, tokens.size() - begin));
    PplWindow& next = windows.emplace_back();
    next.tokens.push_back(bos_id);
    next.tokens.insert(next.tokens.end(), piece.begin(), piece.end());
  }
  return windows;
}

void PplTotals::Add(std::span<const float> logprobs) {
  for (const float logprob : logprobs) {
    const double nll = -static_cast<double>(logprob);
    sum_ += nll;
    squares_ += nll * nll;
  }
  count_ += static_cast<int64_t>(logprobs.size());
}

double PplTotals::mean_nll() const {
  return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_);
}

double PplTotals::perplexity() const {
  return std::exp(mean_nll());
}

double PplTotals::nll_error() const {
  if (count_ < 2) return 0.0;
  const double variance = squares_ / static_cast<double>(count_) - mean_nll() * mean_nll();
  return variance > 0.0 ? std::sqrt(variance / static_cast<double>(count_ - 1)) : 0.0;
}

}  // namespace cachalot
