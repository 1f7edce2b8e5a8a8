// The two ways to cut a text into pieces whose tokens are scored, and what the scores add up to.
//
// Chunks are llama.cpp's: non-overlapping pieces of `context` tokens, of which only what follows the first
// half is scored, so that every scored token has at least context / 2 tokens before it; a rest that is no
// whole chunk is left out. The first token of a chunk is replaced by BOS where the model begins its texts
// with one. llama-perplexity wants at least two chunks of text; one is enough here. Windows score every
// token: pieces of window - 1 tokens with BOS before each, the last one may be short.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct PplWindow {
  std::vector<int32_t> tokens;
  // Log-probability i is that of tokens[i + 1]; those from this one on count.
  int32_t first_scored = 0;

  int64_t num_scored() const { return static_cast<int64_t>(tokens.size()) - 1 - first_scored; }
};

// bos_id -1: chunks begin with their own first token.
Result<std::vector<PplWindow>> CutChunks(std::span<const int32_t> tokens, int32_t context, int32_t bos_id);
Result<std::vector<PplWindow>> CutWindows(std::span<const int32_t> tokens, int32_t window, int32_t bos_id);

class PplTotals {
 public:
  void Add(std::span<const float> logprobs);

  int64_t count() const { return count_; }
  double mean_nll() const;
  double perplexity() const;
  // One standard error of the mean, as if tokens were independent; the perplexity's is this times the
  // perplexity.
  double nll_error() const;

 private:
  int64_t count_ = 0;
  double sum_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace cachalot
