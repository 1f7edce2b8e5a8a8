// FileWriter: a large file written in pieces through a temporary one, which takes the final name only on
// Commit(). Invariant: without a successful Commit() the file at `path` is as it was, and nothing is left
// beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

// Where a producer puts its bytes, piece by piece.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  Status Append(std::string_view text) { return Append(std::as_bytes(std::span(text))); }
};

class FileWriter final : public ByteSink {
 public:
  static Result<std::unique_ptr<FileWriter>> Create(const std::string& path);
  ~FileWriter() override;
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  using ByteSink::Append;
  Status Append(std::span<const std::byte> bytes) override;
  // Zeros until the position is a multiple of `alignment`.
  Status PadTo(int64_t alignment);
  int64_t position() const { return position_; }
  // Flushes and renames; call once, last.
  Status Commit();

 private:
  FileWriter(std::string path, std::string temporary, int fd);
  Status WriteOut(std::span<const std::byte> bytes);

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  int64_t position_ = 0;
  std::vector<std::byte> buffer_;
};

// Passes on exactly `bytes` bytes: a producer that gives more or fewer gets an error instead of shifting what
// follows.
class ExactSink final : public ByteSink {
 public:
  ExactSink(ByteSink* out, int64_t bytes) : out_(out), bytes_(bytes) {}

  using ByteSink::Append;
  Status Append(std::span<const std::byte> bytes) override;
  Status Finish() const;

 private:
  ByteSink* out_;
  const int64_t bytes_;
  int64_t written_ = 0;
};

}  // namespace cachalot
