// The one file that knows Boost: Asio's coroutines carry the connections, Beast parses requests.
#include "server/http/http_server.h"

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/fault.h"
#include "base/log.h"

namespace cachalot {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 16 << 10;
constexpr int64_t kLingerBytes = 64 << 20;  // of a body that is not wanted, read so that the answer to it is not lost
constexpr auto kLingerTime = std::chrono::seconds(2);
constexpr auto kRetryAccept = std::chrono::milliseconds(50);

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

// A header of ours never breaks the response apart, whatever it was made from.
std::string OneLine(std::string_view value) {
  std::string out(value);
  for (char& c : out) c = c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  return out;
}

std::string Head(const HttpResponse& response, const HttpHeaders& more, bool keep_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status, HttpReason(response.status));
  if (!response.content_type.empty()) head += "Content-Type: " + OneLine(response.content_type) + "\r\n";
  for (const HttpHeaders* list : {&response.headers, &more}) {
    for (const auto& [name, value] : *list) head += OneLine(name) + ": " + OneLine(value) + "\r\n";
  }
  head += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return head;
}

struct Shared {
  HttpServerOptions options;
  HttpHandler handler;
  HttpServer::ErrorBody error_body;
  std::atomic<bool> closing{false};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> accepted{0};
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> slow_readers{0};
};

class Connection;

class ExchangeImpl final : public Exchange {
 public:
  ExchangeImpl(std::shared_ptr<Connection> connection, asio::io_context* loop, HttpRequest request, bool keep_alive)
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
  void Post(std::function<void()> fn) override { asio::post(*loop_, std::move(fn)); }
  void CallAfter(int32_t ms, std::function<void()> fn) override {
    if (closed_ || done_) return;
    timer_.expires_after(std::chrono::milliseconds(ms));
    timer_.async_wait([fn = std::move(fn)](const error_code& error) {
      if (!error) fn();
    });
  }

  // The client has gone, or is given up.
  void Close();
  // The response is out: callbacks must not keep the exchange alive.
  void Finish() {
    on_closed_ = nullptr;
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

  const std::shared_ptr<Connection> connection_;
  asio::io_context* const loop_;
  asio::steady_timer timer_;
  HttpRequest request_;
  std::function<void()> on_closed_;
  std::string output_;
  bool keep_alive_;
  bool started_ = false;
  bool streaming_ = false;
  bool done_ = false;
  bool closed_ = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, asio::io_context* loop, Shared* shared)
      : stream_(std::move(socket)), loop_(loop), shared_(shared), wake_(*loop) {
    shared_->connections.fetch_add(1);
  }
  ~Connection() { shared_->connections.fetch_sub(1); }

  asio::awaitable<void> Run();
  void Break() {
    error_code ignored;
    stream_.socket().close(ignored);
    if (current_) current_->Close();
    Wake();
  }
  void Wake() { wake_.cancel(); }
  Shared& shared() { return *shared_; }
  bool keep_alive_allowed() const { return !shared_->closing.load(std::memory_order_relaxed); }

 private:
  asio::awaitable<bool> ReadRequest(HttpRequest* request, bool* keep_alive);
  asio::awaitable<bool> WriteResponse(std::shared_ptr<ExchangeImpl> exchange);
  asio::awaitable<void> Refuse(int status, std::string message);
  asio::awaitable<void> Linger();
  void WatchForHangUp();

  beast::tcp_stream stream_;
  asio::io_context* const loop_;
  Shared* const shared_;
  asio::steady_timer wake_;
  beast::flat_buffer buffer_;  // bytes that came and belong to no request yet
  std::shared_ptr<ExchangeImpl> current_;
  bool watching_ = false;
};

void ExchangeImpl::Respond(HttpResponse response) {
  CHECK(!started_ || closed_) << "a second response to " << request_.method << " " << request_.path;
  if (closed_) return;
  started_ = done_ = true;
  Tell(response.status);
  keep_alive_ = keep_alive_ && connection_->keep_alive_allowed();
  output_ += Head(response, response_headers, keep_alive_);
  if (response.status != 204 && response.status != 304) output_ += fmt::format("Content-Length: {}\r\n", response.body.size());
  output_ += "\r\n";
  if (request_.method != "HEAD" && response.status != 204 && response.status != 304) output_ += response.body;
  connection_->Wake();
}

void ExchangeImpl::StartStream(HttpResponse head) {
  CHECK(!started_ || closed_);
  if (closed_) return;
  started_ = streaming_ = true;
  Tell(head.status);
  keep_alive_ = keep_alive_ && connection_->keep_alive_allowed();
  output_ += Head(head, response_headers, keep_alive_) + (request_.http_1_1 ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
  connection_->Wake();
}

bool ExchangeImpl::Write(std::string_view piece) {
  CHECK(streaming_ || closed_);
  if (closed_) return false;
  if (piece.empty()) return true;
  if (request_.http_1_1) fmt::format_to(std::back_inserter(output_), "{:x}\r\n", piece.size());
  output_ += piece;
  if (request_.http_1_1) output_ += "\r\n";
  if (static_cast<int64_t>(output_.size()) > connection_->shared().options.max_stream_bytes) {
    connection_->shared().slow_readers.fetch_add(1);
    Close();
    return false;
  }
  connection_->Wake();
  return true;
}

void ExchangeImpl::EndStream() {
  if (closed_) return;
  if (request_.http_1_1) output_ += "0\r\n\r\n";
  done_ = true;
  connection_->Wake();
}

void ExchangeImpl::Close() {
  if (closed_ || (done_ && output_.empty())) return;
  closed_ = true;
  output_.clear();
  timer_.cancel();
  connection_->Wake();
  Tell(499);
  if (const auto callback = std::exchange(on_closed_, nullptr)) callback();
}

// Sees a client go while its request is being worked on. More bytes instead of an end are the next request: then the
// watch is over, and only a failing write tells.
void Connection::WatchForHangUp() {
  if (watching_ || buffer_.size() > 0) return;
  watching_ = true;
  stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->watching_ = false;
    if (error || !self->current_) return;
    char byte;
    const ssize_t n = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) self->current_->Close();
  });
}

asio::awaitable<void> Connection::Run() {
  // A coroutine's arguments and locals live in its frame; `self` keeps the connection until the frame ends.
  const std::shared_ptr<Connection> self = shared_from_this();
  error_code error;
  stream_.socket().set_option(tcp::no_delay(true), error);
  bool alive = true;
  while (alive) {
    HttpRequest request;
    bool keep_alive = false;
    const bool readable = co_await ReadRequest(&request, &keep_alive);
    if (!readable) break;
    current_ = std::make_shared<ExchangeImpl>(self, loop_, std::move(request), keep_alive);
    WatchForHangUp();
    shared_->handler(current_);
    alive = co_await WriteResponse(current_);
    current_->Finish();
    current_.reset();
  }
  stream_.socket().shutdown(tcp::socket::shutdown_both, error);
  stream_.socket().close(error);
}

asio::awaitable<bool> Connection::WriteResponse(std::shared_ptr<ExchangeImpl> exchange) {
  for (;;) {
    if (exchange->closed()) co_return false;
    if (!exchange->has_output()) {
      if (exchange->done()) co_return exchange->keep_alive();
      error_code woken;
      wake_.expires_at(Clock::time_point::max());
      co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
      continue;
    }
    const std::string piece = exchange->TakeOutput();
    size_t written = 0;
    while (written < piece.size()) {
      error_code error;
      if (FaultHits("net.slow")) {
        asio::steady_timer pause(*loop_, std::chrono::milliseconds(20));
        error_code ignored;
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      }
      stream_.expires_after(std::chrono::milliseconds(shared_->options.write_timeout_ms));
      const auto rest = asio::buffer(piece.data() + written, piece.size() - written);
      written += co_await stream_.async_write_some(rest, asio::redirect_error(asio::use_awaitable, error));
      stream_.expires_never();
      if (error || exchange->closed()) {
        exchange->Close();
        co_return false;
      }
    }
  }
}

asio::awaitable<bool> Connection::ReadRequest(HttpRequest* request, bool* keep_alive) {
  error_code error;
  if (buffer_.size() == 0) {
    stream_.expires_after(std::chrono::milliseconds(shared_->options.idle_timeout_ms));
    const auto space = buffer_.prepare(kReadBytes);
    const size_t n = co_await stream_.async_read_some(space, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return false;
    buffer_.commit(n);
  }
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(shared_->options.max_header_bytes));
  parser.body_limit(static_cast<uint64_t>(shared_->options.max_body_bytes));
  stream_.expires_after(std::chrono::milliseconds(shared_->options.read_timeout_ms));
  co_await http::async_read_header(stream_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
  if (!error) {
    request->arrival_us = NowUs();
    const auto expect = parser.get().find(http::field::expect);
    if (expect != parser.get().end() && LowerCase({expect->value().data(), expect->value().size()}) == "100-continue") {
      const std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await asio::async_write(stream_, asio::buffer(go_on.data(), go_on.size()),
                                 asio::redirect_error(asio::use_awaitable, error));
    }
  }
  if (!error) co_await http::async_read(stream_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
  if (error) {
    if (error == beast::error::timeout) {
      // The stream is closed by its timer; there is nobody to answer to.
      co_return false;
    }
    if (error == http::error::body_limit) {
      co_await Refuse(413, fmt::format("the body is larger than the limit of {} bytes", shared_->options.max_body_bytes));
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      co_await Refuse(431, fmt::format("the header is larger than the limit of {} bytes", shared_->options.max_header_bytes));
    } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      co_await Refuse(400, fmt::format("no valid HTTP request: {}", error.message()));
    }
    co_return false;
  }
  stream_.expires_never();
  auto message = parser.release();
  *keep_alive = message.keep_alive();
  request->http_1_1 = message.version() >= 11;
  request->method = std::string(message.method_string());
  const std::string target(message.target());
  if (!SplitTarget(target, &request->path, &request->query)) {
    co_await Refuse(400, "the request's target is no path");
    co_return false;
  }
  for (const auto& field : message) {
    request->headers.emplace_back(LowerCase({field.name_string().data(), field.name_string().size()}),
                                  std::string(field.value()));
  }
  request->body = std::move(message.body());
  const tcp::endpoint peer = stream_.socket().remote_endpoint(error);
  if (!error) request->peer = peer.address().to_string();
  co_return true;
}

asio::awaitable<void> Connection::Refuse(int status, std::string message) {
  HttpResponse response;
  response.status = status;
  response.body = shared_->error_body(status, message);
  std::string text = Head(response, shared_->options.extra_headers, false);
  text += fmt::format("Content-Length: {}\r\n\r\n", response.body.size()) + response.body;
  error_code error;
  stream_.expires_after(std::chrono::milliseconds(shared_->options.write_timeout_ms));
  co_await asio::async_write(stream_, asio::buffer(text), asio::redirect_error(asio::use_awaitable, error));
  if (!error) co_await Linger();
}

// Closing with unread bytes would send a reset, and the client might never read its answer.
asio::awaitable<void> Connection::Linger() {
  error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  std::string waste(kReadBytes * 4, '\0');
  int64_t left = kLingerBytes;
  stream_.expires_after(kLingerTime);
  while (!error && left > 0) {
    const size_t n = co_await stream_.async_read_some(asio::buffer(waste), asio::redirect_error(asio::use_awaitable, error));
    left -= static_cast<int64_t>(n);
  }
}

class HttpServerImpl final : public HttpServer {
 public:
  ~HttpServerImpl() override { Stop(); }

  Status Open(const HttpServerOptions& options, HttpHandler handler, ErrorBody error_body);
  int32_t port() const override { return port_; }
  HttpCounters counters() const override {
    return {shared_.connections.load(), shared_.accepted.load(), shared_.refused.load(), shared_.slow_readers.load()};
  }
  void CloseAfterResponses() override { shared_.closing = true; }
  void Stop() override;

 private:
  // An event loop with its thread and the connections that live on it.
  struct Loop {
    Loop() : context(1), work(asio::make_work_guard(context)) {}
    asio::io_context context;
    asio::executor_work_guard<asio::io_context::executor_type> work;
    std::set<std::weak_ptr<Connection>, std::owner_less<std::weak_ptr<Connection>>> connections;
    std::thread thread;
  };

  asio::awaitable<void> Accept();
  void Serve(tcp::socket socket, Loop* loop);

  Shared shared_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::optional<tcp::acceptor> acceptor_;
  int32_t port_ = 0;
  bool stopped_ = false;
};

Status HttpServerImpl::Open(const HttpServerOptions& options, HttpHandler handler, ErrorBody error_body) {
  shared_.options = options;
  shared_.handler = std::move(handler);
  shared_.error_body = std::move(error_body);
  for (int32_t i = 0; i < std::max(options.num_threads, 1); ++i) loops_.push_back(std::make_unique<Loop>());
  error_code error;
  tcp::resolver resolver(loops_[0]->context);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) return InvalidArgument("--host {}: {}", options.host, error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.emplace(loops_[0]->context);
  acceptor_->open(endpoint.protocol(), error);
  if (!error) acceptor_->set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_->bind(endpoint, error);
  if (!error) acceptor_->listen(asio::socket_base::max_listen_connections, error);
  if (error) return InvalidArgument("listening on {}:{}: {}", options.host, options.port, error.message());
  port_ = acceptor_->local_endpoint(error).port();
  asio::co_spawn(loops_[0]->context, Accept(), asio::detached);
  for (auto& loop : loops_) {
    loop->thread = std::thread([context = &loop->context] {
      for (;;) {
        // A handler that throws (out of memory) must not take the other connections with it.
        try {
          context->run();
          return;
        } catch (const std::exception& exception) {
          LOG_ERROR("an HTTP handler failed: {}", exception.what());
        }
      }
    });
  }
  return Status::Ok();
}

asio::awaitable<void> HttpServerImpl::Accept() {
  for (size_t next = 0;; next = (next + 1) % loops_.size()) {
    Loop* loop = loops_[next].get();
    error_code error;
    tcp::socket socket = co_await acceptor_->async_accept(loop->context, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || !acceptor_->is_open()) co_return;
    if (error) {  // no descriptors left, most likely: it passes
      LOG_WARN("accepting a connection: {}", error.message());
      asio::steady_timer pause(loops_[0]->context, kRetryAccept);
      error_code ignored;
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      continue;
    }
    shared_.accepted.fetch_add(1);
    if (shared_.connections.load() >= shared_.options.max_connections) {
      shared_.refused.fetch_add(1);
      HttpResponse response;
      response.status = 503;
      response.headers = {{"Retry-After", "1"}};
      response.body = shared_.error_body(503, fmt::format("all {} connections are taken", shared_.options.max_connections));
      const std::string text = Head(response, shared_.options.extra_headers, false) +
                               fmt::format("Content-Length: {}\r\n\r\n", response.body.size()) + response.body;
      // One try, without waiting: the send buffer of a new socket holds it.
      [[maybe_unused]] const ssize_t n =
          ::send(socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      socket.shutdown(tcp::socket::shutdown_send, error);
      continue;
    }
    auto shared_socket = std::make_shared<tcp::socket>(std::move(socket));
    asio::post(loop->context, [this, loop, shared_socket] { Serve(std::move(*shared_socket), loop); });
  }
}

void HttpServerImpl::Serve(tcp::socket socket, Loop* loop) {
  auto connection = std::make_shared<Connection>(std::move(socket), &loop->context, &shared_);
  const auto place = loop->connections.insert(connection).first;
  asio::co_spawn(loop->context, connection->Run(), [loop, place, connection](const std::exception_ptr& failure) {
    loop->connections.erase(place);
    if (!failure) return;
    connection->Break();
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& exception) {
      LOG_ERROR("a connection failed: {}", exception.what());
    }
  });
}

void HttpServerImpl::Stop() {
  if (std::exchange(stopped_, true)) return;
  shared_.closing = true;
  for (auto& loop : loops_) {
    asio::post(loop->context, [this, loop = loop.get()] {
      if (loop == loops_[0].get() && acceptor_) {
        error_code ignored;
        acceptor_->close(ignored);
      }
      // Break runs callbacks, which may end other connections.
      std::vector<std::shared_ptr<Connection>> open;
      for (const auto& weak : loop->connections) {
        if (auto connection = weak.lock()) open.push_back(std::move(connection));
      }
      for (const auto& connection : open) connection->Break();
      loop->work.reset();
    });
  }
  for (auto& loop : loops_) {
    if (loop->thread.joinable()) loop->thread.join();
  }
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, HttpHandler handler,
                                                      ErrorBody error_body) {
  auto server = std::make_unique<HttpServerImpl>();
  RETURN_IF_ERROR(server->Open(options, std::move(handler), std::move(error_body)));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace cachalot
