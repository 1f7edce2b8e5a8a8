// Which files of a repository make a model: the GGUF file that people mean by ORG/REPO[:QUANT], with all its parts, or,
// where a repository has no GGUF file, its safetensors folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct HubFile {
  std::string path;       // inside the repository: checked, see CheckHubPath
  int64_t size = 0;       // -1: not known (a cached snapshot's)
  std::string etag = {};  // names the blob: SHA-256 of an LFS file, else git's SHA-1
  bool lfs = false;
};

// "org/name" or "org/name:quant"; a revision may stand behind '@': "org/name@main:Q8_0".
struct HubModelName {
  std::string repo;      // org/name
  std::string revision = "main";
  std::string quant = {};  // "": the default
};
Result<HubModelName> ParseHubModelName(std::string_view text);

// A relative path that stays below the folder it is put in and whose parts any file system takes.
Status CheckHubPath(std::string_view path);

struct HubChoice {
  std::vector<HubFile> files;
  std::string model;  // of those the one to open; "": the folder itself
};
// quant "": Q4_K_M, else Q8_0, else the first file. `file`: instead, that very path ("": none). mmproj files (vision),
// importance matrices and draft heads are no models. kNotFound names what there is.
Result<HubChoice> ChooseHubFiles(const std::vector<HubFile>& files, const HubModelName& name, const std::string& file);

}  // namespace cachalot
