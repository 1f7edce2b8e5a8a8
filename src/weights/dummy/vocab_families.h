// The special tokens of model families, at the ids that their own tokenizers give them.
#pragma once

#include <string>
#include <vector>

#include "weights/dummy/dummy_spec.h"

namespace cachalot {

struct SpecialToken {
  std::string text;
  bool control = true;  // false: visible text, such as <think>
};

// Ids: `leading` from 0, then words up to base_size, then `trailing`, then unused ones up to the model's
// vocab_size. A vocab_size too small for that takes words away.
struct VocabLayout {
  const char* pre = "";  // as tokenizer.ggml.pre names it
  std::vector<SpecialToken> leading;
  int32_t base_size = 0;  // 0: all of vocab_size
  std::vector<SpecialToken> trailing;
  // By text; "" for none.
  std::string bos, eos, eot, pad, unk;
  bool add_bos = false;
  const char* chat_template = "";
};

VocabLayout LayoutOf(VocabFamily family);

}  // namespace cachalot
