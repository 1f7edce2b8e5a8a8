// The header of one GGUF file: parsed and checked from a reader, without knowledge of splits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/byte_reader.h"
#include "formats/gguf.h"

namespace cachalot {

// The limits on what a header may ask for. Real files stay far below: DeepSeek-V3 has 60 keys, 1,100 tensors
// (46,000 with single experts) and 10 MB of metadata.
struct GgufLimits {
  static constexpr int64_t kMaxKeys = 1 << 16;
  static constexpr int64_t kMaxTensors = 1 << 18;
  static constexpr int64_t kMaxNameBytes = 512;
  static constexpr int64_t kMaxKeyBytes = 65535;           // the format's own
  static constexpr int64_t kMaxMetadataBytes = 256 << 20;  // held in memory, all keys together
  static constexpr int64_t kMaxAlignment = 1 << 20;
};
inline constexpr int64_t kGgufDefaultAlignment = 32;
inline constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF"

struct GgufHeader {
  int version = 0;
  int64_t alignment = kGgufDefaultAlignment;
  std::vector<GgufEntry> entries;
  std::vector<GgufTensor> tensors;  // file_idx 0; names not yet known to be unique
};

// `place` (the path) starts every error message.
Result<GgufHeader> ParseGgufHeader(ByteReader reader, const std::string& place);

}  // namespace cachalot
