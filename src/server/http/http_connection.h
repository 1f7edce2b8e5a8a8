// A client's connection: a coroutine that reads requests one after the other, and the way back of each.
// Invariant: everything happens on the connection's own event loop; at most one read is under way, so that what arrives while
// an answer is made (the next request, or the client's end) is seen.
#pragma once

#include <utility>  // before awaitable.hpp, which forgets it

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <string>

#include "server/http/http_server.h"
#include "server/http/http_stream.h"

namespace cachalot {

// What the connections of a server share.
struct HttpShared {
  HttpServerOptions options;
  HttpHandler handler;
  HttpServer::ErrorBody error_body;
  std::unique_ptr<boost::asio::ssl::context> tls;  // null: plain HTTP
  std::atomic<bool> closing{false};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> slow_readers{0};
  std::atomic<int64_t> answering{0};
};

// Status line and headers of a response, without Content-Length and without the empty line.
std::string HttpHead(const HttpResponse& response, const HttpHeaders& more, bool keep_alive);

class HttpConnection;

class ExchangeImpl final : public Exchange {
 public:
  ExchangeImpl(std::shared_ptr<HttpConnection> connection, boost::asio::io_context* loop, HttpRequest request, bool keep_alive)
      : connection_(std::move(connection)),
        loop_(loop),
        timer_(*loop),
        request_(std::move(request)),
        keep_alive_(keep_alive && request_.http_1_1) {}

  const HttpRequest& request() const override { return request_; }
  void Respond(HttpResponse response) override;
  void StartStream(HttpResponse head) override;
  bool Write(std::string_view piece) override;
  void EndStream() override;
  void Abort() override { Close(); }
  bool closed() const override { return closed_; }
  bool responded() const override { return started_; }
  void OnClosed(std::function<void()> callback) override {
    if (closed_) return callback();
    on_closed_ = std::move(callback);
  }
  void Post(std::function<void()> fn) override { boost::asio::post(*loop_, std::move(fn)); }
  const void* loop() const override { return loop_; }
  void CallAfter(int32_t ms, std::function<void()> fn) override;

  // The client has gone, or is given up.
  void Close();
  // The client has ended its side: it may wait for the answer, or be gone. Whatever is sent now tells.
  void HalfClose();
  // The response is out: callbacks must not keep the exchange alive.
  void Finish() {
    on_closed_ = nullptr;
    on_half_closed = nullptr;
    timer_.cancel();
  }
  bool done() const { return done_; }
  bool keep_alive() const { return keep_alive_; }
  std::string TakeOutput() { return std::exchange(output_, {}); }
  bool has_output() const { return !output_.empty(); }

 private:
  void Tell(int status) {
    if (const auto callback = std::exchange(on_response, nullptr)) callback(status);
  }

  const std::shared_ptr<HttpConnection> connection_;
  boost::asio::io_context* const loop_;
  boost::asio::steady_timer timer_;
  HttpRequest request_;
  std::function<void()> on_closed_;
  std::string output_;
  bool keep_alive_;
  bool started_ = false;
  bool streaming_ = false;
  bool done_ = false;
  bool closed_ = false;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, boost::asio::io_context* loop, HttpShared* shared)
      : stream_(std::move(socket)), loop_(loop), shared_(shared), wake_(*loop) {
    shared_->connections.fetch_add(1);
  }
  ~HttpConnection() { shared_->connections.fetch_sub(1); }

  boost::asio::awaitable<void> Run();
  void Break() {
    boost::system::error_code ignored;
    stream_.socket().close(ignored);
    if (current_) current_->Close();
    Wake();
  }
  void Wake() { wake_.cancel(); }
  HttpShared& shared() { return *shared_; }
  bool keep_alive_allowed() const { return !shared_->closing.load(std::memory_order_relaxed); }

 private:
  boost::asio::awaitable<bool> StartTls();
  boost::asio::awaitable<bool> WaitForBytes();
  boost::asio::awaitable<bool> ReadRequest(HttpRequest* request, bool* keep_alive);
  boost::asio::awaitable<bool> WriteResponse(std::shared_ptr<ExchangeImpl> exchange);
  boost::asio::awaitable<void> Refuse(int status, std::string message);
  boost::asio::awaitable<void> Linger();
  boost::asio::awaitable<void> End();
  void ReadAhead();
  void WatchForReset();

  HttpStream stream_;
  boost::asio::io_context* const loop_;
  HttpShared* const shared_;
  boost::asio::steady_timer wake_;
  boost::beast::flat_buffer buffer_;  // bytes that came and belong to no request yet
  std::shared_ptr<ExchangeImpl> current_;
  bool reading_ = false;  // ReadAhead's
  bool watching_ = false;  // WatchForReset's
  bool ended_ = false;    // the client will send nothing more
};

}  // namespace cachalot
