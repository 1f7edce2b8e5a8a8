#include "spec/draft_source.h"

#include "spec/ngram_source.h"

namespace cachalot {
namespace {

// MTP layers and draft models are graphs of the runtime, which always has a next token.
class DeviceSource final : public DraftSource {
 public:
  bool on_device() const override { return true; }
  int32_t Propose(std::span<const int32_t>, std::span<int32_t> out) const override {
    return static_cast<int32_t>(out.size());
  }
};

}  // namespace

std::unique_ptr<DraftSource> MakeDraftSource(DraftKind kind) {
  switch (kind) {
    case DraftKind::kNone:
      return nullptr;
    case DraftKind::kNgram:
      return std::make_unique<NgramSource>();
    case DraftKind::kMtp:
    case DraftKind::kModel:
      return std::make_unique<DeviceSource>();
  }
  return nullptr;
}

std::string_view DraftKindName(DraftKind kind) {
  switch (kind) {
    case DraftKind::kNone:
      return "none";
    case DraftKind::kNgram:
      return "ngram";
    case DraftKind::kMtp:
      return "mtp";
    case DraftKind::kModel:
      return "draft";
  }
  return "?";
}

}  // namespace cachalot
