// Files as bytes: a read-only handle that is mapped or read in pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace cachalot {

// A regular file opened for reading. Safe to share between threads.
class File {
 public:
  static Result<std::shared_ptr<const File>> Open(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Reads exactly out.size() bytes at `offset`; a range beyond the end is kCorrupt, a failing disk kInternal.
  Status ReadAt(int64_t offset, std::span<std::byte> out) const;

 private:
  File(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// The whole of a file mapped read-only; unmapped when the last owner goes.
class Mapping {
 public:
  static Result<std::shared_ptr<const Mapping>> Map(const File& file);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  // Gives the pages of [offset, offset + size) back to the kernel: they are read again when next touched.
  void Release(int64_t offset, int64_t size) const;
  // Locks the pages in memory (--mlock).
  Status Lock() const;

 private:
  Mapping(const std::byte* data, int64_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// The whole of a small text file; larger than max_bytes is an error.
Result<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);
// Where an output of this name really goes. A link is followed, so that its target is replaced and not the link; a pipe
// or a device is written to as it is, never replaced.
struct OutputPlace {
  std::string path;
  bool in_place = false;  // no regular file: open and write, no rename
};
OutputPlace ResolveOutput(const std::string& path);
// Writes through a temporary file and a rename, so that a reader sees the old file or the whole new one.
Status WriteFileAtomically(const std::string& path, std::string_view content);
bool IsDirectory(const std::string& path);
bool FileExists(const std::string& path);

}  // namespace cachalot
