// Models from a hub, by name: fetched once, checked, kept in the hub's own cache. Invariant: what is returned is whole:
// every byte was hashed on its way to the disk and the hash is the one that the hub names. An interrupted download goes
// on where it stopped; two processes fetch a file once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "hub/hub_choice.h"
#include "hub/hub_retry.h"

namespace cachalot {

struct HubOptions {
  HubServerOptions server;
  std::string cache;     // what HF_HUB_CACHE means
  bool offline = false;  // only what the cache has
};

struct HubProgress {
  std::string file;
  int64_t file_done = 0, file_bytes = 0;
  int64_t done = 0, bytes = 0;  // of all files
  std::string note;             // something to tell ("" mostly): another process is at it, the hub cannot be reached
};
// Returns false to stop (kCancelled). Also asked while nothing arrives.
using HubProgressFn = std::function<bool(const HubProgress& progress)>;

struct HubModel {
  std::string path;    // the GGUF file (its first part), or the folder
  std::string commit;
  int64_t bytes = 0;   // of all files
  int64_t fetched = 0;  // of these now
};
// file: this very file of the repository instead of the quant's ("": none).
Result<HubModel> PullModel(const HubModelName& name, const std::string& file, const HubOptions& options,
                           const HubProgressFn& progress);

}  // namespace cachalot
