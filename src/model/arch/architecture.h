// The architectures we run: one file and one row each. A file's configuration becomes a ModelSpec here and nowhere else.
#pragma once

#include <span>
#include <string>

#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "model/model_spec.h"

namespace cachalot {

struct Architecture {
  const char* name;                          // ours
  std::span<const char* const> hf_classes;   // config.json: architectures[0]
  std::span<const char* const> gguf_names;   // general.architecture
  Result<ModelSpec> (*from_hf)(const HfConfig& config);  // null: no such folders exist
  Result<ModelSpec> (*from_gguf)(const GgufFile& file);  // null: no such files exist
  const char* gguf_written;                  // general.architecture of the files that mainline converters write
  bool gguf_interleaves_qk;                  // the rows of q and k are reordered there: pairs (i, i + d/2) to (2i, 2i + 1)
};

std::span<const Architecture* const> AllArchitectures();

// The spec of a configuration, validated. An unknown architecture is kUnsupported and names the known ones.
Result<ModelSpec> SpecFromHf(const HfConfig& config);
Result<ModelSpec> SpecFromGguf(const GgufFile& file);
// By the name in ModelSpec::architecture; must be one of ours.
const Architecture& ArchitectureOf(const ModelSpec& spec);

extern const Architecture kLlamaArchitecture;
extern const Architecture kMistralArchitecture;
extern const Architecture kMixtralArchitecture;
extern const Architecture kQwen2Architecture;
extern const Architecture kQwen3Architecture;
extern const Architecture kQwen3MoeArchitecture;
extern const Architecture kDeepseekV1Architecture;
extern const Architecture kDeepseekV2Architecture;
extern const Architecture kDeepseekV3Architecture;

}  // namespace cachalot
