#include "base/available_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>

namespace cachalot {
namespace {

// These are files of size 0 until they are read, so base's ReadTextFile does not do.
std::string ReadSystemFile(const char* path) {
  std::string text;
  if (std::FILE* file = std::fopen(path, "re"); file != nullptr) {
    char piece[4096];
    for (size_t n = std::fread(piece, 1, sizeof(piece), file); n > 0;
         n = std::fread(piece, 1, sizeof(piece), file)) {
      text.append(piece, n);
    }
    std::fclose(file);
  }
  return text;
}

// The first number in `text` after `key`; -1 when there is none ("max").
int64_t NumberAfter(const std::string& text, const std::string& key) {
  const size_t found = text.find(key);
  if (found == std::string::npos) return -1;
  const size_t begin = text.find_first_not_of(" \t", found + key.size());
  if (begin == std::string::npos) return -1;
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return error == std::errc() ? value : -1;
}

}  // namespace

int64_t AvailableMemoryBytes() {
  int64_t available = INT64_MAX;
  const int64_t machine_kib = NumberAfter(ReadSystemFile("/proc/meminfo"), "MemAvailable:");
  if (machine_kib >= 0) available = machine_kib * 1024;
  const int64_t limit = NumberAfter(ReadSystemFile("/sys/fs/cgroup/memory.max"), "");
  const int64_t used = NumberAfter(ReadSystemFile("/sys/fs/cgroup/memory.current"), "");
  const int64_t cached = NumberAfter(ReadSystemFile("/sys/fs/cgroup/memory.stat"), "\nfile ");
  if (limit >= 0 && used >= 0) {
    available = std::min(available, std::max<int64_t>(limit - used + std::max<int64_t>(cached, 0), 0));
  }
  return available;
}

}  // namespace cachalot
