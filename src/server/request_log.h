// One JSON line for each request that ended. Lines are whole: a single write each.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cachalot {

class LineWriter {
 public:
  // A file that is appended to; "-" is standard error.
  static Result<std::unique_ptr<LineWriter>> Open(const std::string& path);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // line without its end. Safe from any thread; a full disk is told once in the program's log.
  void Write(std::string line);

 private:
  explicit LineWriter(int fd, bool owned) : fd_(fd), owned_(owned) {}
  const int fd_;
  const bool owned_;
};

}  // namespace cachalot
