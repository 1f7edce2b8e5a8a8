// What a repository holds, as the hub tells it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/hub_choice.h"
#include "hub/hub_retry.h"

namespace cachalot {

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;  // by path; those with names that no file may have are left out
};

// endpoint: "https://host[/path]" without a slash at its end. kNotFound for what the hub does not have (or will not show).
Result<HubListing> ListHubFiles(HubSession* session, const HubModelName& name);

// The parsers of the two answers, for tests.
Result<std::string> ParseHubCommit(std::string_view json, const std::string& place);
Status ParseHubTree(std::string_view json, const std::string& place, std::vector<HubFile>* files);

}  // namespace cachalot
