// The hub's cache on disk, in the layout that huggingface_hub has, so that either finds what the other fetched:
//   models--org--name/blobs/ETAG                     the bytes of a file
//   models--org--name/snapshots/COMMIT/PATH          a link to its blob
//   models--org--name/refs/REVISION                  the commit of a branch or tag
//   .locks/models--org--name/ETAG.lock               held (flock) by who fetches that blob
// Invariant: a blob under its final name is whole and its checksum was right; all else has another name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/hub_choice.h"

namespace cachalot {

class HubCache {
 public:
  // root: what HF_HUB_CACHE means. repo: org/name, checked.
  HubCache(std::string root, const std::string& repo);

  std::string BlobPath(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
  std::string PartPath(const std::string& etag) const { return BlobPath(etag) + ".incomplete"; }
  std::string SnapshotPath(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }
  // Makes the folders that a download needs.
  Status Prepare() const;

  // Whether the blob is there with this size.
  bool HasBlob(const HubFile& file) const;
  // SNAPSHOT/path becomes a link to the blob, whatever it was.
  Status Link(const std::string& commit, const HubFile& file) const;
  Status SetRef(const std::string& revision, const std::string& commit) const;
  // The commit of a revision, or the revision itself where that is a commit that is here; kNotFound else.
  Result<std::string> Commit(const std::string& revision) const;
  // Files of a snapshot whose blobs are there, by path.
  Result<std::vector<HubFile>> SnapshotFiles(const std::string& commit) const;

 private:
  std::string root_, folder_, locks_;
  friend class HubLock;
};

// Held while one blob is fetched: by one process at a time.
class HubLock {
 public:
  // Waits; `waiting` is told once that another process holds it.
  static Result<HubLock> Take(const HubCache& cache, const std::string& etag, const std::function<bool()>& cancelled,
                              const std::function<void()>& waiting);
  ~HubLock();
  HubLock(HubLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  HubLock& operator=(HubLock&&) = delete;

 private:
  explicit HubLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// 40 or 64 hexadecimal digits, in small letters.
bool IsHubDigest(std::string_view text);

}  // namespace cachalot
