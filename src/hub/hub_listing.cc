#include "hub/hub_listing.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "formats/json.h"
#include "hub/hub_cache.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxAnswerBytes = int64_t{64} << 20;
constexpr int kMaxPages = 100;
constexpr size_t kMaxFiles = 100'000;

const nlohmann::json* Member(const nlohmann::json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return !object.is_object() || it == object.end() ? nullptr : &*it;
}

}  // namespace

Result<std::string> ParseHubCommit(std::string_view text, const std::string& place) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, place, {.max_bytes = kMaxAnswerBytes}));
  const nlohmann::json* sha = Member(json, "sha");
  if (sha == nullptr || !sha->is_string() || !IsHubDigest(sha->get_ref<const std::string&>())) {
    return Corrupt("{}: no commit in 'sha'", place);
  }
  return sha->get<std::string>();
}

Status ParseHubTree(std::string_view text, const std::string& place, std::vector<HubFile>* files) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, place, {.max_bytes = kMaxAnswerBytes}));
  if (!json.is_array()) return Corrupt("{}: no list of files", place);
  for (const nlohmann::json& item : json) {
    const nlohmann::json *type = Member(item, "type"), *path = Member(item, "path"), *lfs = Member(item, "lfs");
    if (type == nullptr || *type != "file") continue;
    const bool is_lfs = lfs != nullptr && lfs->is_object();
    const nlohmann::json& sized = is_lfs ? *lfs : item;
    const nlohmann::json *oid = Member(sized, "oid"), *size = Member(sized, "size");
    if (path == nullptr || !path->is_string() || oid == nullptr || !oid->is_string() || size == nullptr ||
        !size->is_number_integer() || size->get<int64_t>() < 0) {
      return Corrupt("{}: a file without path, oid or size: {}", place, JsonPreview(item));
    }
    HubFile file{.path = path->get<std::string>(),
                 .size = size->get<int64_t>(),
                 .etag = oid->get<std::string>(),
                 .lfs = is_lfs};
    // "sha256:…" as Git LFS writes it.
    if (file.etag.starts_with("sha256:")) file.etag.erase(0, 7);
    if (!IsHubDigest(file.etag) || file.etag.size() != (is_lfs ? 64u : 40u)) {
      return Corrupt("{}: '{}' has the oid {}", place, JsonPreview(*path), JsonPreview(*oid));
    }
    if (const Status status = CheckHubPath(file.path); !status.ok()) {
      LOG_WARN("{}: {}; left out", place, status.message());
      continue;
    }
    if (files->size() >= kMaxFiles) return Corrupt("{}: more than {} files", place, kMaxFiles);
    files->push_back(std::move(file));
  }
  return Status::Ok();
}

Result<HubListing> ListHubFiles(HubSession* session, const HubModelName& name) {
  const std::string base = session->options().endpoint + "/api/models/" + name.repo;
  HubListing listing;
  const std::string revision_url = base + "/revision/" + EscapeUrlPath(name.revision);
  ASSIGN_OR_RETURN(const HubSession::Text info, session->GetText(revision_url, kMaxAnswerBytes));
  ASSIGN_OR_RETURN(listing.commit, ParseHubCommit(info.body, revision_url));
  std::string url = base + "/tree/" + listing.commit + "?recursive=true";
  for (int page = 0; !url.empty(); ++page) {
    if (page == kMaxPages) return Corrupt("{}: more than {} pages of files", name.repo, kMaxPages);
    ASSIGN_OR_RETURN(const HubSession::Text tree, session->GetText(url, kMaxAnswerBytes));
    RETURN_IF_ERROR(ParseHubTree(tree.body, url, &listing.files));
    if (tree.next_url.empty()) break;
    ASSIGN_OR_RETURN(const HubUrl here, ParseHubUrl(url));
    ASSIGN_OR_RETURN(const HubUrl next, ResolveHubUrl(here, tree.next_url));
    url = next.Text();
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return listing;
}

}  // namespace cachalot
