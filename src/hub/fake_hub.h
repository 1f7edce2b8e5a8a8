// A server on this machine that answers as a hub does, and misbehaves where a test wants it to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace cachalot {

struct FakeAsk {
  std::string target;
  std::map<std::string, std::string> headers;  // names in small letters
  int64_t range_begin = 0;
};

// A whole answer as bytes, or a part of one.
struct FakeAnswer {
  std::string bytes;
  int pause_ms = 0;  // before the connection is closed
};
FakeAnswer FakeText(int status, const std::string& body, const std::string& more_headers = "");

class FakeHub {
 public:
  static constexpr const char* kRepo = "org/model";
  static inline const std::string kCommit = std::string(40, 'c');

  FakeHub();
  ~FakeHub();

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // oid: "" for the right one.
  void AddFile(const std::string& path, const std::string& content, bool lfs = true, const std::string& oid = "");
  void SetPageSize(size_t files) { page_size_ = files; }
  // Asked first; nothing: the usual answer. Calls are numbered from 0 among those with `/resolve/` in the target.
  using Hook = std::function<std::optional<FakeAnswer>(const FakeAsk& ask, int resolve_index)>;
  void SetHook(Hook hook);
  // The usual answer (200 or 206) of a file's bytes.
  FakeAnswer Content(const std::string& content, int64_t begin) const;
  const std::string& content(const std::string& path) const { return files_.at(path).content; }

  std::vector<FakeAsk> asks() const;
  int num_resolves() const { return num_resolves_; }
  static std::string Digest(const std::string& content, bool lfs);

 private:
  struct Entry {
    std::string content, oid;
    bool lfs = true;
  };
  void Serve();
  void Connection(int fd);
  FakeAnswer Answer(const FakeAsk& ask);
  FakeAnswer Tree(size_t begin) const;

  int listener_ = -1;
  int port_ = 0;
  std::map<std::string, Entry> files_;
  size_t page_size_ = 1000;
  Hook hook_;
  mutable std::mutex mutex_;
  std::vector<FakeAsk> asks_;
  std::atomic<int> num_resolves_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> connections_;
  std::thread thread_;
};

}  // namespace cachalot
