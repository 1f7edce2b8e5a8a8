#include "base/check.h"
#include "formats/text.h"
#include "model/arch/architecture.h"

namespace cachalot {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kLlamaArchitecture,    &kMistralArchitecture,    &kMixtralArchitecture,
    &kQwen2Architecture,    &kQwen3Architecture,      &kQwen3MoeArchitecture,
    &kDeepseekV1Architecture, &kDeepseekV2Architecture, &kDeepseekV3Architecture,
};

template <typename Names>
std::string KnownNames(Names names_of) {
  std::string known;
  for (const auto* architecture : kArchitectures) {
    for (const char* name : names_of(*architecture)) known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return known;
}

}  // namespace

const Architecture& ArchitectureOf(const ModelSpec& spec) {
  for (const auto* architecture : kArchitectures) {
    if (spec.architecture == architecture->name) return *architecture;
  }
  CHECK(false) << "no architecture is called '" << spec.architecture << "'";
  return kLlamaArchitecture;
}

std::span<const Architecture* const> AllArchitectures() { return kArchitectures; }

Result<ModelSpec> SpecFromHf(const HfConfig& config) {
  if (config.architectures().empty()) return Corrupt("{}: 'architectures' names no model class", config.place());
  const std::string& wanted = config.architectures().front();
  for (const auto* architecture : kArchitectures) {
    for (const char* name : architecture->hf_classes) {
      if (wanted != name) continue;
      ASSIGN_OR_RETURN(ModelSpec spec, architecture->from_hf(config));
      spec.architecture = architecture->name;
      RETURN_IF_ERROR(ValidateSpec(spec, config.place()));
      return spec;
    }
  }
  return Unsupported("{}: architecture '{}' is none of {}", config.place(), Printable(wanted),
                     KnownNames([](const Architecture& a) { return a.hf_classes; }));
}

Result<ModelSpec> SpecFromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string wanted, file.String("general.architecture"));
  for (const auto* architecture : kArchitectures) {
    for (const char* name : architecture->gguf_names) {
      if (wanted != name) continue;
      ASSIGN_OR_RETURN(ModelSpec spec, architecture->from_gguf(file));
      if (spec.architecture.empty()) spec.architecture = architecture->name;
      RETURN_IF_ERROR(ValidateSpec(spec, file.path()));
      return spec;
    }
  }
  return Unsupported("{}: general.architecture '{}' is none of {}", file.path(), Printable(wanted),
                     KnownNames([](const Architecture& a) { return a.gguf_names; }));
}

}  // namespace cachalot
