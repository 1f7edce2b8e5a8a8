#include "hub/fake_hub.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

namespace cachalot {

FakeAnswer FakeText(int status, const std::string& body, const std::string& more_headers) {
  return {fmt::format("HTTP/1.1 {} Some\r\nContent-Length: {}\r\n{}\r\n{}", status, body.size(), more_headers, body)};
}

FakeHub::FakeHub() {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener_, 16), 0);
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Serve(); });
}

FakeHub::~FakeHub() {
  stop_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  for (auto& connection : connections_) connection.join();
  ::close(listener_);
}

void FakeHub::AddFile(const std::string& path, const std::string& content, bool lfs, const std::string& oid) {
  files_[path] = {content, oid.empty() ? Digest(content, lfs) : oid, lfs};
}

void FakeHub::SetHook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

std::vector<FakeAsk> FakeHub::asks() const {
  const std::lock_guard lock(mutex_);
  return asks_;
}

std::string FakeHub::Digest(const std::string& content, bool lfs) {
  const std::string bytes = lfs ? content : fmt::format("blob {}", content.size()) + '\0' + content;
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, lfs ? EVP_sha256() : EVP_sha1(), nullptr);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

void FakeHub::Serve() {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    connections_.emplace_back([this, fd] { Connection(fd); });
  }
}

void FakeHub::Connection(int fd) {
  std::string request;
  char piece[4096];
  while (request.find("\r\n\r\n") == std::string::npos) {
    const ssize_t n = ::recv(fd, piece, sizeof(piece), 0);
    if (n <= 0) break;
    request.append(piece, static_cast<size_t>(n));
  }
  FakeAsk ask;
  size_t at = request.find(' ');
  if (at != std::string::npos) ask.target = request.substr(at + 1, request.find(' ', at + 1) - at - 1);
  for (at = request.find("\r\n"); at != std::string::npos;) {
    const size_t begin = at + 2, end = request.find("\r\n", begin), colon = request.find(": ", begin);
    if (end == std::string::npos || end == begin || colon == std::string::npos) break;
    std::string name = request.substr(begin, colon - begin);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    ask.headers[name] = request.substr(colon + 2, end - colon - 2);
    at = end;
  }
  if (ask.headers.contains("range")) ask.range_begin = std::stoll(ask.headers["range"].substr(6));
  const FakeAnswer answer = Answer(ask);
  size_t done = 0;
  while (done < answer.bytes.size()) {
    const ssize_t n = ::send(fd, answer.bytes.data() + done, answer.bytes.size() - done, MSG_NOSIGNAL);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  // Until the client has gone, or as long as the test wants.
  for (int waited = 0; waited < answer.pause_ms && !stop_; waited += 10) {
    pollfd poll{fd, POLLIN, 0};
    if (::poll(&poll, 1, 10) > 0 && ::recv(fd, piece, sizeof(piece), 0) <= 0) break;
  }
  ::shutdown(fd, SHUT_WR);
  ::close(fd);
}

FakeAnswer FakeHub::Content(const std::string& content, int64_t begin) const {
  const std::string body = content.substr(static_cast<size_t>(begin));
  if (begin == 0) return FakeText(200, body);
  return FakeText(206, body, fmt::format("Content-Range: bytes {}-{}/{}\r\n", begin, content.size() - 1, content.size()));
}

FakeAnswer FakeHub::Tree(size_t begin) const {
  std::string list, link;
  size_t index = 0;
  for (const auto& [path, entry] : files_) {
    if (index++ < begin) continue;
    if (index > begin + page_size_) {
      link = fmt::format("Link: <{}/api/models/{}/tree/{}?recursive=true&cursor={}>; rel=\"next\"\r\n", url(), kRepo,
                         kCommit, begin + page_size_);
      break;
    }
    if (!list.empty()) list += ",";
    const std::string oid = entry.lfs ? std::string(40, 'a') : entry.oid;
    list += fmt::format(R"({{"type":"file","oid":"{}","size":{},"path":"{}")", oid, entry.content.size(), path);
    if (entry.lfs) list += fmt::format(R"(,"lfs":{{"oid":"{}","size":{}}})", entry.oid, entry.content.size());
    list += "}";
  }
  return FakeText(200, "[" + list + R"(,{"type":"directory","oid":"d","size":0,"path":"sub"}])", link);
}

FakeAnswer FakeHub::Answer(const FakeAsk& ask) {
  Hook hook;
  int index = -1;
  {
    const std::lock_guard lock(mutex_);
    asks_.push_back(ask);
    hook = hook_;
    if (ask.target.find("/resolve/") != std::string::npos) index = num_resolves_++;
  }
  if (hook) {
    if (auto answer = hook(ask, index)) return *answer;
  }
  const std::string api = std::string("/api/models/") + kRepo;
  if (ask.target == api + "/revision/main") return FakeText(200, R"({"id":"org/model","sha":")" + kCommit + "\"}");
  const std::string tree = api + "/tree/" + kCommit + "?recursive=true";
  if (ask.target.starts_with(tree)) {
    const size_t cursor = ask.target.find("&cursor=");
    return Tree(cursor == std::string::npos ? 0 : std::stoul(ask.target.substr(cursor + 8)));
  }
  const std::string resolve = std::string("/") + kRepo + "/resolve/" + kCommit + "/";
  if (ask.target.starts_with(resolve)) {
    const auto found = files_.find(ask.target.substr(resolve.size()));
    if (found != files_.end()) return Content(found->second.content, ask.range_begin);
  }
  return FakeText(404, "nothing here");
}

}  // namespace cachalot
