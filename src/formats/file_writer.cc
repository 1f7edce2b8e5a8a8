#include "formats/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/fault.h"
#include "base/file.h"

namespace cachalot {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

}  // namespace

FileWriter::FileWriter(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {
  buffer_.reserve(kBufferBytes);
}

Result<std::unique_ptr<FileWriter>> FileWriter::Create(const std::string& name) {
  static std::atomic<int> serial{0};  // two writers of one process never share a temporary file
  const OutputPlace place = ResolveOutput(name);
  const std::string& path = place.path;
  std::string temporary;  // empty: written in place
  if (!place.in_place) temporary = fmt::format("{}.tmp.{}.{}", path, ::getpid(), serial.fetch_add(1));
  const int fd = ::open(place.in_place ? path.c_str() : temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return InvalidArgument("{}: cannot be written: {}", path, std::strerror(errno));
  return std::unique_ptr<FileWriter>(new FileWriter(path, std::move(temporary), fd));
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status FileWriter::WriteOut(std::span<const std::byte> bytes) {
  if (FaultHits("file.write")) return Internal("{}: writing failed: injected fault", path_);
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Internal("{}: writing failed: {}", path_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return Status::Ok();
}

Status FileWriter::Append(std::span<const std::byte> bytes) {
  position_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    RETURN_IF_ERROR(WriteOut(buffer_));
    buffer_.clear();
    if (bytes.size() >= kBufferBytes) return WriteOut(bytes);
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return Status::Ok();
}

Status FileWriter::PadTo(int64_t alignment) {
  static constexpr std::byte kZeros[64] = {};
  int64_t missing = (alignment - position_ % alignment) % alignment;
  while (missing > 0) {
    const int64_t step = std::min<int64_t>(missing, sizeof(kZeros));
    RETURN_IF_ERROR(Append(std::span(kZeros, static_cast<size_t>(step))));
    missing -= step;
  }
  return Status::Ok();
}

Status FileWriter::Commit() {
  RETURN_IF_ERROR(WriteOut(buffer_));
  buffer_.clear();
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0 || (!temporary_.empty() && ::rename(temporary_.c_str(), path_.c_str()) != 0)) {
    return Internal("{}: writing failed: {}", path_, std::strerror(errno));
  }
  temporary_.clear();
  return Status::Ok();
}

Status ExactSink::Append(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > bytes_ - written_) {
    return Internal("{} bytes were given, only {} belong there",
                    written_ + static_cast<int64_t>(bytes.size()), bytes_);
  }
  written_ += static_cast<int64_t>(bytes.size());
  return out_->Append(bytes);
}

Status ExactSink::Finish() const {
  if (written_ == bytes_) return Status::Ok();
  return Internal("{} bytes were given, {} belong there", written_, bytes_);
}

}  // namespace cachalot
