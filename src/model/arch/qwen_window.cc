#include "model/arch/qwen_window.h"

#include "model/arch/hf_common.h"

namespace cachalot {

Status HfQwenWindow(const HfConfig& config, ModelSpec* spec) {
  ASSIGN_OR_RETURN(const bool used, config.BoolOr("use_sliding_window", false));
  if (!used) return Status::Ok();
  ASSIGN_OR_RETURN(const int32_t window, HfIntOr(config, "sliding_window", 0, 1, kMaxPositions));
  ASSIGN_OR_RETURN(const int32_t first, HfIntOr(config, "max_window_layers", 28, 0, kMaxLayers));
  for (int32_t i = first; i < spec->num_layers; ++i) spec->layers[static_cast<size_t>(i)].window = window;
  return Status::Ok();
}

}  // namespace cachalot
