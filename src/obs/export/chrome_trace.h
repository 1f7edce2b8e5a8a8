// ChromeTrace: spans of time on named lanes, as a file that chrome://tracing and Perfetto read (a JSON list of trace events).
//
// Invariants: after every write the file is whole JSON, so it is whenever the program ends, be it by SIGKILL; what is lost then are the
// spans that wait to be written. Memory and the file are bounded: spans beyond are counted, not kept. Nothing is allocated per span.
// Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cachalot {

class ChromeTrace {
 public:
  static constexpr int64_t kMaxFileBytes = int64_t{256} << 20;  // about 1.5 million spans
  static constexpr size_t kBufferBytes = size_t{64} << 10;      // that wait to be written

  struct Arg {
    const char* name;
    int64_t value;
  };

  // The file is made anew; it must be a regular one.
  static Result<std::unique_ptr<ChromeTrace>> Open(const std::string& path, int64_t max_file_bytes = kMaxFileBytes);
  ~ChromeTrace();
  ChromeTrace(const ChromeTrace&) = delete;
  ChromeTrace& operator=(const ChromeTrace&) = delete;

  // Microseconds since it was opened: the file's time.
  double NowUs() const { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count(); }
  // Lanes are shown in the order of their numbers, by these names (printable ASCII without quotes, like all names here).
  void NameLane(int32_t lane, std::string_view name);
  // Spans of one lane must lie beside or within each other.
  void Add(int32_t lane, std::string_view name, double begin_us, double duration_us, std::span<const Arg> args = {});
  // What waits is written.
  void Flush();

  int64_t num_spans() const { return num_spans_; }
  int64_t num_left_out() const { return num_left_out_; }

 private:
  ChromeTrace(std::string path, int fd, int64_t max_file_bytes);
  bool Append(std::string_view event);
  bool Write(std::string_view text, int64_t offset);

  const std::string path_;
  const int fd_;
  const int64_t max_file_bytes_;
  const std::chrono::steady_clock::time_point start_;
  std::string waiting_;         // events, each behind a comma but for the file's first
  int64_t events_end_ = 0;      // of the file; the list's end stands behind it
  bool any_event_ = false;
  bool failed_ = false;
  int64_t num_spans_ = 0;
  int64_t num_left_out_ = 0;
};

}  // namespace cachalot
