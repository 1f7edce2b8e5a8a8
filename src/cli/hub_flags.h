// Models by their name on a hub: the flags, what the environment says (the variables of huggingface_hub), progress in the
// terminal.
#pragma once

#include <string>

#include "cli/flag_set.h"
#include "hub/hub_download.h"

namespace cachalot {

struct HubFlags {
  std::string repo;  // ORG/REPO[:QUANT]
  std::string file;
  std::string token;
  bool offline = false;

  // Without -hf where the repository stands without a flag.
  enum Extent { kAll, kWithoutRepo };
  void Declare(FlagSet* flags, Extent extent);
  // Sees that the name is one.
  Status Resolve() const;
  // Fetches what is missing, and tells so on standard error.
  Result<HubModel> Pull() const;
};

// HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE, and the token that `huggingface-cli login` left.
HubOptions HubOptionsFromEnvironment();

}  // namespace cachalot
