#include "socket_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace cachalot {

SocketClient::SocketClient(int port, int receive_buffer) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  struct sockaddr_in address {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) != 0) Close();
}

SocketClient::~SocketClient() {
  Close();
}

void SocketClient::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  ended_ = true;
}

void SocketClient::CloseSending() {
  ::shutdown(fd_, SHUT_WR);
}

bool SocketClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool SocketClient::ReadSome(int timeout_ms) {
  if (ended_) return false;
  struct pollfd wait {fd_, POLLIN, 0};
  if (::poll(&wait, 1, timeout_ms) <= 0) return false;
  char piece[16384];
  const ssize_t n = ::recv(fd_, piece, sizeof(piece), 0);
  if (n <= 0) {
    ended_ = true;
    return false;
  }
  pending_.append(piece, static_cast<size_t>(n));
  return true;
}

std::string SocketClient::ReadUntil(std::string_view mark, int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (mark.empty() || pending_.find(mark) == std::string::npos) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0 || !ReadSome(static_cast<int>(left))) break;
  }
  std::string all;
  all.swap(pending_);
  return all;
}

std::string SocketClient::ReadResponse() {
  std::string text = ReadUntil("\r\n\r\n");
  const size_t head = text.find("\r\n\r\n");
  if (head == std::string::npos) return text;
  const size_t at = text.find("Content-Length: ");
  const size_t length = at == std::string::npos || at > head ? 0 : std::strtoul(text.c_str() + at + 16, nullptr, 10);
  const size_t whole = head + 4 + length;
  while (text.size() < whole) {
    pending_.swap(text);
    const bool more = ReadSome(20'000);
    pending_.swap(text);
    if (!more) return text;
  }
  pending_ = text.substr(whole);
  text.resize(whole);
  return text;
}

bool SocketClient::WaitForEnd(int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!ended_ && std::chrono::steady_clock::now() < deadline) ReadSome(50);
  return ended_;
}

std::string PostText(const std::string& path, const std::string& body, const std::string& more_headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n" + more_headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string Ask(int port, const std::string& text) {
  SocketClient client(port);
  client.Send(text);
  return client.ReadResponse();
}

int StatusOf(const std::string& response) {
  return response.starts_with("HTTP/1.1 ") ? std::atoi(response.c_str() + 9) : 0;
}

std::string BodyOf(const std::string& response) {
  const size_t head = response.find("\r\n\r\n");
  return head == std::string::npos ? "" : response.substr(head + 4);
}

}  // namespace cachalot
