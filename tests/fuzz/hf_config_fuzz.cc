// Any bytes as a config.json: either one line of error that names the file, or getters that answer every
// field.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "formats/hf_config.h"
#include "fuzz/one_line.h"

namespace {

void AskEverything(const cachalot::HfConfig& config, int depth) {
  using cachalot::Status;
  for (const auto& [key, value] : config.root().items()) {
    for (const Status& status :
         {config.Int(key, 1, 1 << 20).status(), config.IntOr(key, 1, INT64_MIN, INT64_MAX).status(),
          config.Float(key).status(), config.Bool(key).status(), config.String(key).status(),
          config.IntList(key, 0, 100).status(), config.StringList(key).status(),
          config.Object(key).status()}) {
      if (!status.ok()) cachalot::fuzz::CheckOneLine(status, "config.json: ");
    }
    if (auto object = config.Object(key); object.ok() && depth < 32) AskEverything(*object, depth + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto config = cachalot::HfConfig::Parse(text, "config.json");
  if (config.ok()) {
    AskEverything(*config, 0);
  } else {
    cachalot::fuzz::CheckOneLine(config.status(), "config.json: ");
  }
  return 0;
}
