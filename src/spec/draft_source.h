// DraftSource: where draft tokens come from. A draft is a guess at the token that follows, made without the model's
// forward pass; it is always one token, never a distribution. The model's own choice at its place decides
// (docs/decisions/0005-drafts-meet-the-models-own-draw.md), so a source can be wrong, but never change what is generated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "spec/plan.h"

namespace cachalot {

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // True: the runtime makes the tokens, in the step that verifies them. Propose then says only how many.
  virtual bool on_device() const = 0;
  // How many tokens it would draft behind `tokens`, at most out.size(); into `out`, unless on_device().
  virtual int32_t Propose(std::span<const int32_t> tokens, std::span<int32_t> out) const = 0;
};

// Null for kNone.
std::unique_ptr<DraftSource> MakeDraftSource(DraftKind kind);
// "none", "ngram", "mtp", "draft": as the command line has them.
std::string_view DraftKindName(DraftKind kind);

}  // namespace cachalot
