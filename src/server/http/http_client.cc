#include "server/http/http_client.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "server/http/http_stream.h"
#include "server/http/tls_context.h"

namespace cachalot {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMaxResponseBytes = uint64_t{1} << 32;
constexpr auto kStopPoll = std::chrono::milliseconds(100);

int64_t MicrosecondsNow() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

struct ClientConnection {
  explicit ClientConnection(asio::io_context* context) : stream(context) {}
  HttpStream stream;
  beast::flat_buffer buffer;
};

class LoadRun {
 public:
  LoadRun(const HttpLoadOptions& options, LoadListener* listener) : options_(options), listener_(listener), context_(1), wake_(context_) {}

  Status Run() {
    error_code error;
    if (options_.url.tls) {
      ASSIGN_OR_RETURN(tls_, MakeTlsClientContext(options_.ca_file));
    }
    tcp::resolver resolver(context_);
    endpoints_ = resolver.resolve(options_.url.host, options_.url.port, error);
    if (error) return InvalidArgument("{}:{}: {}", options_.url.host, options_.url.port, error.message());
    head_ = fmt::format("Host: {}:{}\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n", options_.url.host, options_.url.port);
    for (const auto& [name, value] : options_.headers) head_ += name + ": " + value + "\r\n";
    asio::co_spawn(context_, Dispatch(), [this](const std::exception_ptr& failure) { failure_ = failure; });
    try {
      context_.run();
      if (failure_) std::rethrow_exception(failure_);
    } catch (const std::exception& exception) {
      return Internal("the load failed: {}", exception.what());
    }
    return Status::Ok();
  }

 private:
  asio::awaitable<void> Dispatch();
  asio::awaitable<std::string> Connect(ClientConnection* connection);
  asio::awaitable<void> Send(int64_t index, LoadRequest request);
  asio::awaitable<std::string> Exchange(int64_t index, const std::string& text, ClientConnection* connection, int* status, bool* reusable);

  const HttpLoadOptions options_;
  LoadListener* const listener_;
  asio::io_context context_;
  asio::steady_timer wake_;
  tcp::resolver::results_type endpoints_;
  std::string head_;
  std::unique_ptr<asio::ssl::context> tls_;
  std::list<std::unique_ptr<ClientConnection>> unused_;
  int32_t active_ = 0;
  std::exception_ptr failure_;
};

asio::awaitable<void> LoadRun::Dispatch() {
  const auto begin = Clock::now();
  for (int64_t index = 0; !listener_->stopped(); ++index) {
    std::optional<LoadRequest> request = listener_->Next(index);
    if (!request) break;
    for (;;) {
      const auto due = begin + std::chrono::microseconds(request->start_us);
      const auto now = Clock::now();
      const bool full = options_.max_concurrency > 0 && active_ >= options_.max_concurrency;
      const bool between = options_.wave > 0 && index % options_.wave == 0 && active_ > 0;
      if ((now >= due && !full && !between) || listener_->stopped()) break;
      // An answer that ends wakes this up.
      const auto pause = now < due ? std::min<Clock::duration>(due - now, kStopPoll) : Clock::duration(kStopPoll);
      error_code woken;
      wake_.expires_after(pause);
      co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    }
    if (listener_->stopped()) break;
    ++active_;
    asio::co_spawn(context_, Send(index, std::move(*request)), asio::detached);
  }
}

// What went wrong; "": nothing.
asio::awaitable<std::string> LoadRun::Connect(ClientConnection* connection) {
  error_code error;
  HttpStream& stream = connection->stream;
  stream.expires_after(std::chrono::milliseconds(options_.timeout_ms));
  co_await stream.lowest().async_connect(endpoints_, asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return "connecting: " + error.message();
  stream.socket().set_option(tcp::no_delay(true), error);
  if (tls_ == nullptr) co_return "";
  stream.StartTls(tls_.get(), asio::ssl::host_name_verification(options_.url.host));
  SSL_set_tlsext_host_name(stream.tls_handle(), options_.url.host.c_str());
  co_await stream.async_handshake(asio::redirect_error(asio::use_awaitable, error));
  co_return error ? "TLS: " + error.message() : "";
}

asio::awaitable<void> LoadRun::Send(int64_t index, LoadRequest request) {
  const std::string& target = request.target.empty() ? options_.target : request.target;
  const std::string text = fmt::format("POST {}{} HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{}", options_.url.path, target, head_,
                                       request.body.size(), request.body);
  int status = 0;
  std::string error;
  // A reused connection may have been closed by the server meanwhile: then a new one is tried, once.
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::unique_ptr<ClientConnection> connection;
    const bool reused = !unused_.empty();
    if (reused) {
      connection = std::move(unused_.front());
      unused_.pop_front();
    } else {
      connection = std::make_unique<ClientConnection>(&context_);
      error = co_await Connect(connection.get());
      if (!error.empty()) {
        listener_->OnSent(index, MicrosecondsNow());
        break;
      }
    }
    bool reusable = false;
    status = 0;
    error = co_await Exchange(index, text, connection.get(), &status, &reusable);
    if (reusable) unused_.push_front(std::move(connection));
    if (error.empty() || !reused || status != 0) break;
  }
  listener_->OnEnd(index, MicrosecondsNow(), error.empty() ? status : 0, error);
  --active_;
  wake_.cancel();
}

asio::awaitable<std::string> LoadRun::Exchange(int64_t index, const std::string& text, ClientConnection* connection, int* status,
                                               bool* reusable) {
  error_code error;
  HttpStream& stream = connection->stream;
  stream.expires_after(std::chrono::milliseconds(options_.timeout_ms));
  listener_->OnSent(index, MicrosecondsNow());
  co_await asio::async_write(stream, asio::buffer(text), asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return "sending: " + error.message();
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxResponseBytes);
  parser.eager(true);
  co_await http::async_read_header(stream, connection->buffer, parser, asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return "receiving: " + error.message();
  *status = static_cast<int>(parser.get().result_int());
  size_t seen = 0;
  for (;;) {
    std::string& body = parser.get().body();
    if (body.size() > seen) listener_->OnBody(index, MicrosecondsNow(), std::string_view(body).substr(seen));
    seen = body.size();
    if (parser.is_done()) break;
    co_await http::async_read_some(stream, connection->buffer, parser, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return "receiving: " + error.message();
  }
  *reusable = parser.keep_alive();
  co_return "";
}

class Fetch final : public LoadListener {
 public:
  explicit Fetch(std::string body) : body_(std::move(body)) {}
  std::optional<LoadRequest> Next(int64_t index) override {
    if (index > 0) return std::nullopt;
    return LoadRequest{.body = std::move(body_)};
  }
  void OnSent(int64_t, int64_t) override {}
  void OnBody(int64_t, int64_t, std::string_view piece) override { response.body += piece; }
  void OnEnd(int64_t, int64_t, int status, const std::string& what) override {
    response.status = status;
    error = what;
  }
  HttpResponse response;
  std::string error;

 private:
  std::string body_;
};

}  // namespace

Result<HttpUrl> ParseHttpUrl(std::string_view url) {
  const size_t scheme = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  if (scheme == 0) return InvalidArgument("'{}' is no URL like http://host:port", url);
  HttpUrl parsed;
  parsed.tls = scheme == 8;
  if (parsed.tls) parsed.port = "443";
  std::string_view rest = url.substr(scheme);
  const size_t slash = std::min(rest.find('/'), rest.size());
  parsed.path = rest.substr(slash);
  while (parsed.path.ends_with('/')) parsed.path.pop_back();
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  const bool v6 = rest.starts_with('[');
  if (colon != std::string_view::npos && (!v6 || colon > rest.find(']'))) {
    parsed.port = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (v6 && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  parsed.host = rest;
  if (parsed.host.empty() || parsed.port.empty()) return InvalidArgument("'{}' is no URL like http://host:port", url);
  return parsed;
}

Status RunLoad(const HttpLoadOptions& options, LoadListener* listener) {
  return LoadRun(options, listener).Run();
}

Result<HttpResponse> FetchHttp(const HttpUrl& url, const std::string& target, const HttpHeaders& headers, std::string body,
                               int32_t timeout_ms) {
  Fetch fetch(std::move(body));
  RETURN_IF_ERROR(RunLoad({.url = url, .target = target, .headers = headers, .timeout_ms = timeout_ms}, &fetch));
  if (!fetch.error.empty()) return Internal("{}{}: {}", url.path, target, fetch.error);
  return std::move(fetch.response);
}

}  // namespace cachalot
