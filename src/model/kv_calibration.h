// The tensors of the file that `kv calibrate` writes and --kv-calibration reads: by whoever writes them and whoever reads them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace cachalot {

// F32 [num_kv_heads, coded values]: the mean of a layer's keys.
inline std::string KeyMeanName(int32_t layer) { return fmt::format("layers.{}.key_mean", layer); }
// F32 [layers]: the square of the error that a KV type puts on a layer's attention, by its output's.
inline std::string KvErrorName(const std::string& type) { return "kv_error." + type; }

}  // namespace cachalot
