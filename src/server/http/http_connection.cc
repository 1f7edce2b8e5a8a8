#include "server/http/http_connection.h"

#include <sys/socket.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
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
constexpr char kTlsHandshake = 0x16;        // the first byte of a client that speaks TLS

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

struct Counted {
  explicit Counted(std::atomic<int64_t>* counter_in) : counter(counter_in) { counter->fetch_add(1); }
  ~Counted() { counter->fetch_sub(1); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  std::atomic<int64_t>* const counter;
};

// A header of ours never breaks the response apart, whatever it was made from.
std::string OneLine(std::string_view value) {
  std::string out(value);
  for (char& c : out) c = c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  return out;
}

}  // namespace

std::string HttpHead(const HttpResponse& response, const HttpHeaders& more, bool keep_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status, HttpReason(response.status));
  if (!response.content_type.empty()) head += "Content-Type: " + OneLine(response.content_type) + "\r\n";
  for (const HttpHeaders* list : {&response.headers, &more}) {
    for (const auto& [name, value] : *list) head += OneLine(name) + ": " + OneLine(value) + "\r\n";
  }
  head += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return head;
}

// --- ExchangeImpl ---

void ExchangeImpl::CallAfter(int32_t ms, std::function<void()> fn) {
  if (closed_ || done_) return;
  timer_.expires_after(std::chrono::milliseconds(ms));
  timer_.async_wait([fn = std::move(fn)](const error_code& error) {
    if (!error) fn();
  });
}

void ExchangeImpl::Respond(HttpResponse response) {
  CHECK(!started_ || closed_) << "a second response to " << request_.method << " " << request_.path;
  if (closed_) return;
  started_ = done_ = true;
  Tell(response.status);
  keep_alive_ = keep_alive_ && connection_->keep_alive_allowed();
  output_ += HttpHead(response, response_headers, keep_alive_);
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
  output_ += HttpHead(head, response_headers, keep_alive_) + (request_.http_1_1 ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
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

// A client that has closed its socket sends the same as one that has only ended its side (shutdown(SHUT_WR), nc -N). But it
// answers everything with a reset. So something is sent at once that changes nothing: where no response has begun,
// "100 Continue", which every client must expect, though not one of HTTP/1.0: that one counts as gone.
void ExchangeImpl::HalfClose() {
  if (closed_ || done_) return;
  keep_alive_ = false;
  if (started_) {
    if (on_half_closed) on_half_closed();
  } else if (request_.http_1_1) {
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    connection_->Wake();
  } else {
    Close();
  }
}

// --- HttpConnection ---

asio::awaitable<void> HttpConnection::Run() {
  // A coroutine's arguments and locals live in its frame; `self` keeps the connection until the frame ends.
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  error_code error;
  stream_.socket().set_option(tcp::no_delay(true), error);
  bool alive = true;
  if (shared_->tls != nullptr) alive = co_await StartTls();
  while (alive) {
    HttpRequest request;
    bool keep_alive = false;
    const bool readable = co_await ReadRequest(&request, &keep_alive);
    if (!readable) break;
    current_ = std::make_shared<ExchangeImpl>(self, loop_, std::move(request), keep_alive);
    ReadAhead();
    {
      const Counted answering(&shared_->answering);
      shared_->handler(current_);
      if (ended_) current_->HalfClose();
      alive = co_await WriteResponse(current_);
    }
    current_->Finish();
    current_.reset();
  }
  co_await End();
}

asio::awaitable<bool> HttpConnection::StartTls() {
  error_code error;
  stream_.expires_after(std::chrono::milliseconds(shared_->options.read_timeout_ms));
  std::vector<char> begun(kReadBytes);
  const size_t n = co_await stream_.async_read_some(asio::buffer(begun), asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return false;
  if (begun[0] != kTlsHandshake) {
    co_await Refuse(400, "this port speaks TLS only: use https://");
    co_return false;
  }
  stream_.StartTls(shared_->tls.get());
  co_await stream_.async_handshake(asio::buffer(begun.data(), n), asio::redirect_error(asio::use_awaitable, error));
  stream_.expires_never();
  co_return !error;
}

// While an answer is made: sees the client go, or takes the beginning of its next request. More bytes than that wait in the
// kernel, and then only a reset or a failing write tells of an end.
void HttpConnection::ReadAhead() {
  if (reading_) return;
  if (buffer_.size() > 0 || ended_) return WatchForReset();
  reading_ = true;
  stream_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](const error_code& error, size_t n) {
    self->reading_ = false;
    if (!error) {
      self->buffer_.commit(n);
      if (self->current_) self->WatchForReset();
      return self->Wake();
    }
    self->ended_ = true;
    if (self->current_) {
      // Of TLS an end without its alert is none (stream_truncated).
      if (error == asio::error::eof) {
        self->WatchForReset();
        self->current_->HalfClose();
      } else {
        self->current_->Close();
      }
    }
    self->Wake();
  });
}

void HttpConnection::WatchForReset() {
  if (std::exchange(watching_, true)) return;
  stream_.socket().async_wait(tcp::socket::wait_error, [weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (!self) return;
    self->watching_ = false;
    if (error || !self->current_) return;
    error_code pending;
    asio::detail::socket_option::integer<SOL_SOCKET, SO_ERROR> why;
    self->stream_.socket().get_option(why, pending);
    if (pending || why.value() != 0) self->current_->Close();
  });
}

asio::awaitable<bool> HttpConnection::WriteResponse(std::shared_ptr<ExchangeImpl> exchange) {
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

// The next request's first bytes, or those that came ahead.
asio::awaitable<bool> HttpConnection::WaitForBytes() {
  if (buffer_.size() == 0 && !ended_) ReadAhead();
  const auto deadline = Clock::now() + std::chrono::milliseconds(shared_->options.idle_timeout_ms);
  while (reading_) {
    if (Clock::now() >= deadline || !stream_.socket().is_open()) co_return false;
    error_code woken;
    wake_.expires_at(deadline);
    co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
  co_return buffer_.size() > 0;
}

asio::awaitable<bool> HttpConnection::ReadRequest(HttpRequest* request, bool* keep_alive) {
  error_code error;
  const bool begun = co_await WaitForBytes();
  if (!begun) co_return false;
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

asio::awaitable<void> HttpConnection::Refuse(int status, std::string message) {
  HttpResponse response;
  response.status = status;
  response.body = shared_->error_body(status, message);
  std::string text = HttpHead(response, shared_->options.extra_headers, false);
  text += fmt::format("Content-Length: {}\r\n\r\n", response.body.size()) + response.body;
  error_code error;
  stream_.expires_after(std::chrono::milliseconds(shared_->options.write_timeout_ms));
  co_await asio::async_write(stream_, asio::buffer(text), asio::redirect_error(asio::use_awaitable, error));
  if (!error) co_await Linger();
}

// Closing with unread bytes would send a reset, and the client might never read its answer.
asio::awaitable<void> HttpConnection::Linger() {
  error_code error;
  if (!stream_.is_tls()) stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  std::string waste(kReadBytes * 4, '\0');
  int64_t left = kLingerBytes;
  stream_.expires_after(kLingerTime);
  while (!error && left > 0) {
    const size_t n = co_await stream_.async_read_some(asio::buffer(waste), asio::redirect_error(asio::use_awaitable, error));
    left -= static_cast<int64_t>(n);
  }
}

asio::awaitable<void> HttpConnection::End() {
  error_code error;
  if (stream_.is_tls() && stream_.socket().is_open()) {
    // The read ahead ends, then the alert that tells the client that nothing was cut off can be sent. An answer to it is
    // not waited for: there is nothing more to read.
    stream_.socket().shutdown(tcp::socket::shutdown_receive, error);
    while (reading_) {
      wake_.expires_after(kLingerTime);
      error_code woken;
      co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
      if (!woken) break;
    }
    stream_.expires_after(kLingerTime);
    if (!reading_) co_await stream_.async_shutdown(asio::redirect_error(asio::use_awaitable, error));
  }
  stream_.socket().shutdown(tcp::socket::shutdown_both, error);
  stream_.socket().close(error);
}

}  // namespace cachalot
