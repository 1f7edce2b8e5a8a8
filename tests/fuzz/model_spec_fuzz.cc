// config.json → ModelSpec: any text gives a spec that holds together or a one-line error.
#include <cstdint>
#include <string_view>

#include "formats/hf_config.h"
#include "fuzz/one_line.h"
#include "model/arch/architecture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachalot;
  const auto config = HfConfig::Parse(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
  if (!config.ok()) return 0;
  const auto spec = SpecFromHf(*config);
  if (!spec.ok()) {
    fuzz::CheckOneLine(spec.status(), "config.json");
    return 0;
  }
  CHECK(static_cast<int32_t>(spec->layers.size()) == spec->num_all_layers());
  CHECK(spec->attention.rope.inv_freq.size() * 2 == static_cast<size_t>(spec->attention.rope.dim));
  CHECK(spec->vocab_size > 0 && spec->hidden_size > 0);
  return 0;
}
