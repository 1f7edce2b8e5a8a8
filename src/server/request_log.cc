#include "server/request_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"

namespace cachalot {
namespace {

// Whoever wrote the file last did not get to the end of a line.
bool EndsInsideALine(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) return false;  // a pipe's reading end is somebody else's
  const auto file = File::Open(path);
  std::byte last{'\n'};
  return file.ok() && (*file)->size() > 0 && (*file)->ReadAt((*file)->size() - 1, {&last, 1}).ok() && last != std::byte{'\n'};
}

}  // namespace

Result<std::unique_ptr<LineWriter>> LineWriter::Open(const std::string& path) {
  if (path == "-") return std::unique_ptr<LineWriter>(new LineWriter(STDERR_FILENO, false));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return InvalidArgument("{}: cannot be written to: {}", path, std::strerror(errno));
  std::unique_ptr<LineWriter> writer(new LineWriter(fd, true));
  if (EndsInsideALine(path)) writer->Write("");
  return writer;
}

LineWriter::~LineWriter() {
  if (owned_) ::close(fd_);
}

void LineWriter::Write(std::string line) {
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t n = ::write(fd_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      static std::atomic<bool> told{false};
      if (!told.exchange(true)) LOG_WARN("a line about a request could not be written: {}", std::strerror(errno));
      return;
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace cachalot
