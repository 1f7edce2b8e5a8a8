#include "obs/export/chrome_trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace cachalot {
namespace {

constexpr std::string_view kBegin = "[";
constexpr std::string_view kEnd = "\n]\n";
constexpr size_t kMaxEventBytes = 1024;

}  // namespace

Result<std::unique_ptr<ChromeTrace>> ChromeTrace::Open(const std::string& path, int64_t max_file_bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return InvalidArgument("{}: cannot be written to: {}", path, std::strerror(errno));
  std::unique_ptr<ChromeTrace> trace(new ChromeTrace(path, fd, max_file_bytes));
  struct stat about = {};
  if (::fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    trace->failed_ = true;
    return InvalidArgument("{}: a trace needs a regular file, whose end is written again and again", path);
  }
  if (::ftruncate(fd, 0) != 0 || !trace->Write(std::string(kBegin) + std::string(kEnd), 0)) {
    trace->failed_ = true;
    return InvalidArgument("{}: cannot be written to: {}", path, std::strerror(errno));
  }
  return trace;
}

ChromeTrace::ChromeTrace(std::string path, int fd, int64_t max_file_bytes)
    : path_(std::move(path)), fd_(fd), max_file_bytes_(max_file_bytes), start_(std::chrono::steady_clock::now()), events_end_(kBegin.size()) {
  waiting_.reserve(kBufferBytes + kMaxEventBytes);
}

ChromeTrace::~ChromeTrace() {
  Flush();
  if (num_left_out_ > 0) LOG_WARN("{}: {} spans were left out, since the file is full or could not be written", path_, num_left_out_);
  ::close(fd_);
}

void ChromeTrace::NameLane(int32_t lane, std::string_view name) {
  Append(fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", lane, name));
  Append(fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", lane, lane));
}

void ChromeTrace::Add(int32_t lane, std::string_view name, double begin_us, double duration_us, std::span<const Arg> args) {
  char text[kMaxEventBytes];
  char* at = text;
  const auto add = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... values) {
    at = fmt::format_to_n(at, text + sizeof(text) - at, format, std::forward<Args>(values)...).out;
  };
  add(R"({{"ph":"X","pid":1,"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f})", lane, name, begin_us, std::max(0.0, duration_us));
  for (size_t i = 0; i < args.size(); ++i) add(R"({}"{}":{})", i == 0 ? R"(,"args":{)" : ",", args[i].name, args[i].value);
  add("{}", args.empty() ? "}" : "}}");
  if (at < text + sizeof(text) && Append({text, static_cast<size_t>(at - text)})) ++num_spans_;
  else ++num_left_out_;
}

bool ChromeTrace::Append(std::string_view event) {
  const auto after = static_cast<int64_t>(waiting_.size() + 2 + event.size() + kEnd.size());
  if (failed_ || events_end_ + after > max_file_bytes_) {
    if (!failed_ && num_left_out_ == 0) LOG_WARN("{}: the trace has reached {} MiB; what comes now is left out", path_, max_file_bytes_ >> 20);
    return false;
  }
  waiting_ += any_event_ ? ",\n" : "\n";
  waiting_ += event;
  any_event_ = true;
  if (waiting_.size() >= kBufferBytes) Flush();
  return true;
}

void ChromeTrace::Flush() {
  if (waiting_.empty() || failed_) return;
  const auto size = static_cast<int64_t>(waiting_.size());
  waiting_ += kEnd;
  if (Write(waiting_, events_end_)) {
    events_end_ += size;
  } else {
    LOG_WARN("{}: writing the trace failed, it ends here: {}", path_, std::strerror(errno));
    failed_ = true;
    // What was whole before is again.
    if (::ftruncate(fd_, events_end_) == 0) (void)Write(kEnd, events_end_);
  }
  waiting_.clear();
}

bool ChromeTrace::Write(std::string_view text, int64_t offset) {
  while (!text.empty()) {
    const ssize_t n = ::pwrite(fd_, text.data(), text.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return true;
}

}  // namespace cachalot
