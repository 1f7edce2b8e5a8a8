#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/fault.h"

namespace cachalot {

Result<std::shared_ptr<const File>> File::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT) return NotFound("{}: no such file", path);
    return InvalidArgument("{}: cannot be opened: {}", path, std::strerror(error));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return InvalidArgument("{}: not a regular file", path);
  }
  return std::shared_ptr<const File>(new File(path, fd, info.st_size));
}

File::~File() { ::close(fd_); }

Status File::ReadAt(int64_t offset, std::span<std::byte> out) const {
  const auto wanted = static_cast<int64_t>(out.size());
  if (offset < 0 || wanted > size_ || offset > size_ - wanted) {
    // The end is told modulo 2^64: a hostile offset must not overflow in its own error message.
    return Corrupt("{}: bytes {}..{} lie beyond the end of the file ({} bytes)", path_, offset,
                   static_cast<uint64_t>(offset) + out.size(), size_);
  }
  if (FaultHits("file.read")) return Internal("{}: reading failed: injected fault", path_);
  int64_t done = 0;
  while (done < wanted) {
    const ssize_t n = ::pread(fd_, out.data() + done, static_cast<size_t>(wanted - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Internal("{}: reading at byte {} failed: {}", path_, offset + done, std::strerror(errno));
    if (n == 0) return Corrupt("{}: the file became shorter while it was read (byte {})", path_, offset + done);
    done += n;
  }
  return Status::Ok();
}

Result<std::shared_ptr<const Mapping>> Mapping::Map(const File& file) {
  if (file.size() == 0) return Corrupt("{}: the file is empty", file.path());
  void* data = ::mmap(nullptr, static_cast<size_t>(file.size()), PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) return Exhausted("{}: mapping {} bytes failed: {}", file.path(), file.size(), std::strerror(errno));
  return std::shared_ptr<const Mapping>(new Mapping(static_cast<const std::byte*>(data), file.size()));
}

Mapping::~Mapping() { ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_)); }

void Mapping::Release(int64_t offset, int64_t size) const {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t begin = (offset + page - 1) / page * page;
  const int64_t end = std::min(offset + size, size_) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

Status Mapping::Lock() const {
  if (::mlock(data_, static_cast<size_t>(size_)) != 0) {
    return Exhausted("locking {} bytes in memory failed: {} (see `ulimit -l`)", size_, std::strerror(errno));
  }
  return Status::Ok();
}

Result<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(auto file, File::Open(path));
  if (file->size() > max_bytes) return InvalidArgument("{}: {} bytes, the limit is {}", path, file->size(), max_bytes);
  std::string text(static_cast<size_t>(file->size()), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

namespace {

// Where a link points whose end is not there; the path itself when it is none.
std::string FollowDangling(std::string path) {
  constexpr int kMaxLinks = 40;  // as Linux has it
  for (int i = 0; i < kMaxLinks; ++i) {
    char target[PATH_MAX];
    const ssize_t size = ::readlink(path.c_str(), target, sizeof(target));
    if (size <= 0 || size == sizeof(target)) break;
    const std::string_view to(target, static_cast<size_t>(size));
    path = to.front() == '/' ? std::string(to) : path.substr(0, path.find_last_of('/') + 1) + std::string(to);
  }
  return path;
}

}  // namespace

OutputPlace ResolveOutput(const std::string& path) {
  OutputPlace place{.path = path};
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    place.path = FollowDangling(path);
    return place;
  }
  if (!S_ISREG(info.st_mode)) {
    place.in_place = !S_ISDIR(info.st_mode);
    return place;
  }
  if (char* real = ::realpath(path.c_str(), nullptr)) {
    place.path = real;
    std::free(real);
  }
  return place;
}

Status WriteFileAtomically(const std::string& name, std::string_view content) {
  const auto [path, in_place] = ResolveOutput(name);
  const std::string temporary = in_place ? path : path + ".tmp." + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return InvalidArgument("{}: cannot be written: {}", path, std::strerror(errno));
  size_t done = 0;
  int error = FaultHits("file.write") ? EIO : 0;
  while (error == 0 && done < content.size()) {
    const ssize_t n = ::write(fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    else done += static_cast<size_t>(n);
  }
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && !in_place && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    if (!in_place) ::unlink(temporary.c_str());
    return Internal("{}: writing failed: {}", path, std::strerror(error));
  }
  return Status::Ok();
}

bool IsDirectory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool FileExists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace cachalot
