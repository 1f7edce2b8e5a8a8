// Qwen's sliding window: off unless use_sliding_window, then for the layers from max_window_layers on.
#pragma once

#include "formats/hf_config.h"
#include "model/model_spec.h"

namespace cachalot {

Status HfQwenWindow(const HfConfig& config, ModelSpec* spec);

}  // namespace cachalot
