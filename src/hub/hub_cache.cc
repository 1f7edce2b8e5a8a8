#include "hub/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "formats/text.h"
#include "hub/hub_http.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error && !IsDirectory(path)) return InvalidArgument("{}: cannot be made: {}", path, error.message());
  return Status::Ok();
}

std::string Parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

constexpr int64_t kMaxFiles = 100'000;

}  // namespace

bool IsHubDigest(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

HubCache::HubCache(std::string root, const std::string& repo) : root_(std::move(root)) {
  std::string name = "models--" + repo;
  name.replace(name.find('/'), 1, "--");
  folder_ = root_ + "/" + name;
  locks_ = root_ + "/.locks/" + name;
}

Status HubCache::Prepare() const {
  for (const std::string& folder : {folder_ + "/blobs", folder_ + "/snapshots", folder_ + "/refs", locks_}) {
    RETURN_IF_ERROR(MakeFolder(folder));
  }
  return Status::Ok();
}

bool HubCache::HasBlob(const HubFile& file) const {
  struct stat info {};
  return ::stat(BlobPath(file.etag).c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file.size;
}

Status HubCache::Link(const std::string& commit, const HubFile& file) const {
  RETURN_IF_ERROR(CheckHubPath(file.path));
  const std::string path = SnapshotPath(commit) + "/" + file.path;
  // From the snapshot's folder: ../../blobs, one step more for each folder in the path.
  std::string target = "../../blobs/" + file.etag;
  for (const char c : file.path) {
    if (c == '/') target.insert(0, "../");
  }
  std::error_code error;
  if (fs::is_symlink(path, error) && fs::read_symlink(path, error) == target) return Status::Ok();
  RETURN_IF_ERROR(MakeFolder(Parent(path)));
  const std::string temporary = fmt::format("{}.tmp.{}", path, ::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary.c_str());
    return Internal("{}: no link can be made: {}", path, std::strerror(code));
  }
  return Status::Ok();
}

Status HubCache::SetRef(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return Status::Ok();
  const std::string path = folder_ + "/refs/" + revision;
  RETURN_IF_ERROR(MakeFolder(Parent(path)));
  return WriteFileAtomically(path, commit);
}

Result<std::string> HubCache::Commit(const std::string& revision) const {
  if (IsHubDigest(revision) && IsDirectory(SnapshotPath(revision))) return revision;
  const std::string path = folder_ + "/refs/" + revision;
  if (!FileExists(path)) return NotFound("{}: revision '{}' is not in the cache", folder_, Printable(revision));
  ASSIGN_OR_RETURN(std::string commit, ReadTextFile(path, 4096));
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
  if (!IsHubDigest(commit)) return Corrupt("{}: '{}' is no commit", path, Printable(commit));
  return commit;
}

Result<std::vector<HubFile>> HubCache::SnapshotFiles(const std::string& commit) const {
  const std::string folder = SnapshotPath(commit);
  std::vector<HubFile> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (static_cast<int64_t>(files.size()) > kMaxFiles) return Corrupt("{}: more than {} files", folder, kMaxFiles);
    struct stat info {};
    const std::string path = it->path().string();
    if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;  // a folder, or its blob is gone
    files.push_back({.path = path.substr(folder.size() + 1), .size = info.st_size});
  }
  if (error) return NotFound("{}: cannot be read: {}", folder, error.message());
  std::sort(files.begin(), files.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return files;
}

Result<HubLock> HubLock::Take(const HubCache& cache, const std::string& etag, const std::function<bool()>& cancelled,
                              const std::function<void()>& waiting) {
  const std::string path = cache.locks_ + "/" + etag + ".lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return InvalidArgument("{}: cannot be opened: {}", path, std::strerror(errno));
  HubLock lock(fd);
  bool told = false;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Internal("{}: cannot be locked: {}", path, std::strerror(errno));
    if (!told && waiting) waiting();
    told = true;
    RETURN_IF_ERROR(HubPause(100, cancelled));
  }
  return lock;
}

HubLock::~HubLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace cachalot
