// A blocking client on a raw socket: what a test needs to send requests that no library would.
#pragma once

#include <string>
#include <string_view>

namespace cachalot {

class SocketClient {
 public:
  explicit SocketClient(int port, int receive_buffer = 0);
  ~SocketClient();
  SocketClient(const SocketClient&) = delete;
  SocketClient& operator=(const SocketClient&) = delete;

  // False when the connection is broken.
  bool Send(std::string_view bytes);
  void CloseSending();
  void Close();
  // Reads until `mark` has come (and returns everything so far), or the end, or the time is over.
  std::string ReadUntil(std::string_view mark, int timeout_ms = 20'000);
  std::string ReadToEnd(int timeout_ms = 20'000) { return ReadUntil("", timeout_ms); }
  // One whole response with Content-Length, head and body; what came after it stays for the next.
  std::string ReadResponse();
  // True when the other side has closed within the time.
  bool WaitForEnd(int timeout_ms);

 private:
  bool ReadSome(int timeout_ms);

  int fd_ = -1;
  bool ended_ = false;
  std::string pending_;
};

// A POST with a JSON body.
std::string PostText(const std::string& path, const std::string& body, const std::string& more_headers = "");
// GET, POST … on a connection of its own; the whole response.
std::string Ask(int port, const std::string& text);
// The status of a response; 0 when it has none.
int StatusOf(const std::string& response);
std::string BodyOf(const std::string& response);

}  // namespace cachalot
