// Who drafts: the one word of speculation that both towers know.
#pragma once

#include <cstdint>

namespace cachalot {

enum class DraftKind : uint8_t {
  kNone,
  kNgram,  // the host looks the last tokens up among the sequence's own
  kMtp,    // the model's own MTP layer, repeated
  kModel,  // a second, smaller model with the same vocabulary
};

// Drafts of one sequence in one step, at most: what rows and tables are made for.
inline constexpr int32_t kMaxDrafts = 16;

}  // namespace cachalot
