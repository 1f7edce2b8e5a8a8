#include "hub/hub_download.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/fault.h"
#include "base/file.h"
#include "formats/text.h"
#include "hub/hub_cache.h"
#include "hub/hub_listing.h"

namespace cachalot {
namespace {

constexpr int64_t kSpareBytes = int64_t{16} << 20;  // left on the disk

// SHA-256 of the bytes, or git's SHA-1 of a blob, whichever names the file.
class Checksum {
 public:
  explicit Checksum(const HubFile& file) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), file.lfs ? EVP_sha256() : EVP_sha1(), nullptr);
    const std::string header = fmt::format("blob {}", file.size);
    if (!file.lfs) EVP_DigestUpdate(context_.get(), header.c_str(), header.size() + 1);
  }
  void Add(std::span<const std::byte> bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), digest, &size);
    std::string hex;
    for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
    return hex;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// The file that a blob grows in.
class PartFile {
 public:
  ~PartFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  Status Open(const std::string& path) {
    path_ = path;
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return InvalidArgument("{}: cannot be written: {}", path, std::strerror(errno));
    return Status::Ok();
  }

  // Hashes what an earlier run left, at most max_bytes.
  Status Resume(int64_t max_bytes, Checksum* checksum) {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return Internal("{}: {}", path_, std::strerror(errno));
    if (info.st_size > max_bytes) return Restart();
    std::vector<std::byte> piece(1 << 20);
    while (size_ < info.st_size) {
      const ssize_t n = ::pread(fd_, piece.data(), piece.size(), size_);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return Internal("{}: reading failed: {}", path_, n < 0 ? std::strerror(errno) : "it became shorter");
      checksum->Add({piece.data(), static_cast<size_t>(n)});
      size_ += n;
    }
    return Status::Ok();
  }

  Status Restart() {
    size_ = 0;
    if (::ftruncate(fd_, 0) != 0) return Internal("{}: {}", path_, std::strerror(errno));
    return Status::Ok();
  }

  Status Append(std::span<const std::byte> bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      ssize_t n = -1;
      if (FaultHits("file.write")) errno = ENOSPC;
      else n = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, size_);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == ENOSPC || errno == EDQUOT)) {
        return Exhausted("{}: the disk is full after {} bytes; what is there is kept", path_, size_);
      }
      // No kInternal: trying again does not help a disk.
      if (n < 0) return DeviceError("{}: writing failed: {}", path_, std::strerror(errno));
      done += static_cast<size_t>(n);
      size_ += n;
    }
    return Status::Ok();
  }

  Status Finish(const std::string& path) {
    if (::fsync(fd_) != 0 || ::rename(path_.c_str(), path.c_str()) != 0) {
      return DeviceError("{}: {}", path, std::strerror(errno));
    }
    return Status::Ok();
  }
  void Remove() { ::unlink(path_.c_str()); }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

class Puller {
 public:
  Puller(const HubModelName& name, const HubOptions& options, const HubProgressFn& progress)
      : name_(name), options_(options), progress_(progress), cache_(options.cache, name.repo) {}

  Result<HubModel> Run(const std::string& file) {
    if (options_.offline) return FromCache(file);
    HubServerOptions server = options_.server;
    server.http.cancelled = [this] { return Stopped(); };
    server.on_retry = [this](const std::string& note) { Note(note); };
    ASSIGN_OR_RETURN(HubSession session, HubSession::Open(std::move(server)));
    auto listing = ListHubFiles(&session, name_);
    if (!listing.ok()) {
      // Without a network (or with a hub that is down) what is here does.
      const StatusCode code = listing.status().code();
      if (code != StatusCode::kInternal && code != StatusCode::kDeadline) return listing.status();
      auto cached = FromCache(file);
      if (!cached.ok()) return listing.status();
      Note(fmt::format("{}; the copy in the cache is taken", listing.status().message()));
      return cached;
    }
    ASSIGN_OR_RETURN(const HubChoice choice, ChooseHubFiles(listing->files, name_, file));
    RETURN_IF_ERROR(cache_.Prepare());
    HubModel model{.path = cache_.SnapshotPath(listing->commit), .commit = listing->commit};
    for (const HubFile& wanted : choice.files) {
      if (wanted.size > INT64_MAX / 4 - model.bytes) return Corrupt("{}: '{}' has {} bytes", name_.repo, wanted.path, wanted.size);
      model.bytes += wanted.size;
    }
    state_.bytes = model.bytes;
    for (const HubFile& wanted : choice.files) {
      ASSIGN_OR_RETURN(const int64_t fetched, Fetch(&session, listing->commit, wanted));
      model.fetched += fetched;
      RETURN_IF_ERROR(cache_.Link(listing->commit, wanted));
    }
    RETURN_IF_ERROR(cache_.SetRef(name_.revision, listing->commit));
    if (!choice.model.empty()) model.path += "/" + choice.model;
    return model;
  }

 private:
  bool Stopped() {
    if (!stopped_ && progress_) stopped_ = !progress_(state_);
    return stopped_;
  }
  void Note(std::string text) {
    state_.note = std::move(text);
    Stopped();
    state_.note.clear();
  }

  Result<HubModel> FromCache(const std::string& file) {
    const auto commit = cache_.Commit(name_.revision);
    if (!commit.ok()) return commit.status().WithContext(name_.repo);
    ASSIGN_OR_RETURN(const std::vector<HubFile> files, cache_.SnapshotFiles(*commit));
    const auto choice = ChooseHubFiles(files, name_, file);
    if (!choice.ok()) return choice.status().WithContext("offline");
    HubModel model{.path = cache_.SnapshotPath(*commit), .commit = *commit};
    for (const HubFile& cached : choice->files) model.bytes += cached.size;
    if (!choice->model.empty()) model.path += "/" + choice->model;
    return model;
  }

  Status CheckSpace(int64_t bytes) const {
    struct statvfs info {};
    if (::statvfs(options_.cache.c_str(), &info) != 0) return Status::Ok();
    const auto free_bytes = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
    if (static_cast<double>(bytes) + static_cast<double>(kSpareBytes) <= free_bytes) return Status::Ok();
    return Exhausted("{}: {} bytes are needed, the disk has {:.0f} left", options_.cache, bytes, free_bytes);
  }

  // How many bytes came over the network.
  Result<int64_t> Fetch(HubSession* session, const std::string& commit, const HubFile& file) {
    const int64_t before = state_.done;
    state_.file = file.path;
    state_.file_bytes = file.size;
    int64_t fetched = 0;
    if (!cache_.HasBlob(file)) {
      ASSIGN_OR_RETURN(const HubLock lock, HubLock::Take(cache_, file.etag, [this] { return Stopped(); }, [&] {
        Note(fmt::format("another process fetches '{}'; waiting for it", Printable(file.path)));
      }));
      if (!cache_.HasBlob(file)) {
        ASSIGN_OR_RETURN(fetched, Transfer(session, commit, file, before));
      }
    }
    state_.done = before + file.size;
    state_.file_done = file.size;
    if (Stopped()) return Cancelled("stopped");
    return fetched;
  }

  Result<int64_t> Transfer(HubSession* session, const std::string& commit, const HubFile& file, int64_t before) {
    const std::string what = fmt::format("{}/{}", name_.repo, Printable(file.path));
    ASSIGN_OR_RETURN(const HubUrl url,
                     ParseHubUrl(fmt::format("{}/{}/resolve/{}/{}", session->options().endpoint, name_.repo, commit,
                                             EscapeUrlPath(file.path))));
    PartFile part;
    RETURN_IF_ERROR(part.Open(cache_.PartPath(file.etag)));
    Checksum checksum(file);
    RETURN_IF_ERROR(part.Resume(file.size, &checksum));
    RETURN_IF_ERROR(CheckSpace(file.size - part.size()));
    int64_t fetched = 0;
    furthest_ = part.size();
    // What an earlier run left may be wrong: then it is fetched anew, once.
    bool anew = false;
    for (bool resumed = part.size() > 0;; resumed = false) {
      if (part.size() < file.size || file.size == 0) {
        const Status got = session->Run([&] { return Attempt(session, url, file, before, &part, &checksum, &fetched); }, what);
        if (!got.ok() && wrong_range_ && part.size() > 0 && !anew) {
          // A server that cannot begin where it is asked to may still send all of it.
          anew = true;
          Note(fmt::format("{}; fetching it from the start", got.message()));
          RETURN_IF_ERROR(part.Restart());
          checksum = Checksum(file);
          continue;
        }
        RETURN_IF_ERROR(got);
      }
      const std::string digest = checksum.Hex();
      if (digest == file.etag) break;
      if (!resumed) {
        part.Remove();
        return Corrupt("{}: the checksum is {}, the hub names {}", what, digest, file.etag);
      }
      RETURN_IF_ERROR(part.Restart());
      checksum = Checksum(file);
    }
    RETURN_IF_ERROR(part.Finish(cache_.BlobPath(file.etag)));
    return fetched;
  }

  HubSession::Outcome Attempt(HubSession* session, const HubUrl& url, const HubFile& file, int64_t before, PartFile* part,
                              Checksum* checksum, int64_t* fetched) {
    HubSession::Outcome outcome;
    if (file.size == 0) return outcome;
    wrong_range_ = false;
    const int64_t begin = part->size();
    bool wanted = false;
    const auto on_head = [&](const HubResponseHead& head) -> Status {
      outcome.head = head;
      if (head.status == 416) outcome.again = true;  // the server's file is shorter than what is here
      if (head.status == 200 && begin > 0) {
        // It does not do ranges: all comes again.
        RETURN_IF_ERROR(part->Restart());
        *checksum = Checksum(file);
      } else if (head.status == 206) {
        if (head.range_total >= 0 && head.range_total != file.size) {
          return Wrong(&outcome, fmt::format("a file of {} bytes, {} expected", head.range_total, file.size));
        }
        wrong_range_ = head.range_begin != begin;
        if (head.range_begin == 0 && begin > 0) {
          // All of it, though only the rest was asked for.
          RETURN_IF_ERROR(part->Restart());
          *checksum = Checksum(file);
        } else if (head.range_begin != begin) {
          return Wrong(&outcome, fmt::format("asked for bytes {}-{}, got {} of {}", begin, file.size - 1,
                                             head.range_begin, head.range_total));
        }
      } else if (head.status != 200) {
        return head.status < 400 ? Corrupt("the server answers {}", head.status) : Status::Ok();
      }
      const int64_t expected = file.size - part->size();
      if (head.content_length >= 0 && head.content_length != expected) {
        return Wrong(&outcome, fmt::format("{} bytes are announced, {} expected", head.content_length, expected));
      }
      wanted = true;
      return Status::Ok();
    };
    const auto on_body = [&](std::span<const std::byte> piece) -> Status {
      if (!wanted) return Status::Ok();
      const auto bytes = static_cast<int64_t>(piece.size());
      if (bytes > file.size - part->size()) return Wrong(&outcome, "more bytes than the file has");
      RETURN_IF_ERROR(part->Append(piece));
      checksum->Add(piece);
      *fetched += bytes;
      state_.file_done = part->size();
      state_.done = before + part->size();
      return Stopped() ? Cancelled("stopped") : Status::Ok();
    };
    outcome.status = session->http().Get({.url = url, .token = session->options().token, .range_begin = begin}, on_head, on_body);
    if (outcome.head.status == 416) {
      if (const Status status = part->Restart(); !status.ok()) outcome.status = status;
      *checksum = Checksum(file);
      outcome.head.status = 0;  // to be tried again from the start
    }
    if (outcome.status.ok() && wanted && part->size() < file.size) {
      outcome.status = Internal("the server sent {} of {} bytes", part->size(), file.size);
    }
    // Further than ever: a server that makes us begin anew each time does not count as progress.
    outcome.gained = !outcome.again && part->size() > furthest_;
    furthest_ = std::max(furthest_, part->size());
    return outcome;
  }

  // An answer that is not what was asked for: the next may be.
  static Status Wrong(HubSession::Outcome* outcome, const std::string& why) {
    outcome->again = true;
    return Corrupt("a wrong answer: {}", why);
  }

  const HubModelName& name_;
  const HubOptions& options_;
  const HubProgressFn& progress_;
  const HubCache cache_;
  HubProgress state_;
  int64_t furthest_ = 0;  // of the file that is fetched
  bool wrong_range_ = false;  // the last answer began elsewhere
  bool stopped_ = false;
};

}  // namespace

Result<HubModel> PullModel(const HubModelName& name, const std::string& file, const HubOptions& options,
                           const HubProgressFn& progress) {
  return Puller(name, options, progress).Run(file);
}

}  // namespace cachalot
