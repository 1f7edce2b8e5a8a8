#include "hub/hub_http.h"

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "base/file.h"
#include "formats/text.h"

namespace cachalot {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kPieceBytes = 256 << 10;
constexpr auto kPoll = std::chrono::milliseconds(100);
// Where distributions keep their certificates, for programs whose OpenSSL was built for another one.
constexpr const char* kBundles[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                    "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

std::optional<int64_t> Number(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0) return std::nullopt;
  return value;
}

Status BadHeader(const char* name, std::string_view value) {
  return Corrupt("header {} is '{}'", name, Printable(value));
}

// "bytes 5-9/10"
Status ParseRange(std::string_view text, HubResponseHead* head) {
  const std::string_view whole = text;
  if (!text.starts_with("bytes ")) return BadHeader("Content-Range", whole);
  text.remove_prefix(6);
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return BadHeader("Content-Range", whole);
  if (text.substr(slash + 1) != "*") {
    const auto total = Number(text.substr(slash + 1));
    if (!total.has_value()) return BadHeader("Content-Range", whole);
    head->range_total = *total;
  }
  const std::string_view range = text.substr(0, slash);
  if (range == "*") return Status::Ok();
  const auto begin = Number(range.substr(0, range.find('-')));
  if (!begin.has_value()) return BadHeader("Content-Range", whole);
  head->range_begin = *begin;
  return Status::Ok();
}

// <URL>; rel="next"
std::string NextOf(std::string_view link) {
  while (!link.empty()) {
    const size_t open = link.find('<'), close = link.find('>');
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) return "";
    const std::string_view url = link.substr(open + 1, close - open - 1);
    link.remove_prefix(close + 1);
    const std::string_view parameters = link.substr(0, link.find('<'));
    if (parameters.find("rel=\"next\"") != std::string_view::npos) return std::string(url);
    link.remove_prefix(parameters.size());
  }
  return "";
}

using Parser = http::response_parser<http::buffer_body>;

Status ReadHead(const Parser& parser, HubResponseHead* head) {
  const auto& message = parser.get();
  head->status = static_cast<int>(message.result_int());
  const auto find = [&](http::field field) -> std::optional<std::string> {
    const auto it = message.find(field);
    if (it == message.end()) return std::nullopt;
    return std::string(it->value());
  };
  if (parser.content_length()) {
    if (*parser.content_length() > static_cast<uint64_t>(INT64_MAX)) {
      return Corrupt("header Content-Length is {}", *parser.content_length());
    }
    head->content_length = static_cast<int64_t>(*parser.content_length());
  }
  if (const auto text = find(http::field::content_range)) RETURN_IF_ERROR(ParseRange(*text, head));
  if (const auto text = find(http::field::retry_after)) head->retry_after_s = Number(*text).value_or(-1);
  if (const auto text = find(http::field::link)) head->next_url = NextOf(*text);
  return Status::Ok();
}

Status NetworkError(const HubUrl& url, const char* what, const error_code& error) {
  if (error == beast::error::timeout) return DeadlineExceeded("{}: {}: no answer in time", url.Authority(), what);
  if (error.category() == http::make_error_code(http::error::end_of_stream).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return Corrupt("{}: {}: {}", url.Authority(), what, error.message());
  }
  return Internal("{}: {}: {}", url.Authority(), what, error.message());
}

// One request and its answer, over a plain stream or one with TLS.
class Exchange {
 public:
  Exchange(const HubHttpOptions& options, const HubRequest& request, const HubHttp::OnHead& on_head,
           const HubHttp::OnBody& on_body)
      : options_(options), request_(request), on_head_(on_head), on_body_(on_body), context_(1) {}

  // The redirect's target in *location, "" when the answer was no redirect.
  Status Run(ssl::context* tls, std::string* location) {
    Status result;
    bool done = false;
    auto run = tls == nullptr ? Plain() : Secure(tls);
    asio::co_spawn(context_, std::move(run), [&](const std::exception_ptr& failure, Status status) {
      done = true;
      result = std::move(status);
      if (!failure) return;
      try {
        std::rethrow_exception(failure);
      } catch (const std::exception& exception) {
        result = Internal("{}: {}", request_.url.Authority(), exception.what());
      }
    });
    try {
      while (!done) {
        context_.restart();
        context_.run_for(kPoll);
        if (!cancelled_ && options_.cancelled && options_.cancelled()) cancelled_ = true;
        if (done || !cancelled_) continue;
        if (lowest_ != nullptr) lowest_->cancel();
        resolver_.cancel();
      }
    } catch (const std::exception& exception) {
      return Internal("{}: {}", request_.url.Authority(), exception.what());
    }
    if (cancelled_ && !result.ok()) return Cancelled("stopped");
    *location = location_;
    return result;
  }

 private:
  template <typename Result>
  using Awaitable = asio::awaitable<Result>;

  void Expire(int32_t milliseconds) { lowest_->expires_after(std::chrono::milliseconds(milliseconds)); }

  Awaitable<Status> Connect() {
    error_code error;
    const auto endpoints = co_await resolver_.async_resolve(
        request_.url.host, request_.url.port, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return NetworkError(request_.url, "looking up the host", error);
    Expire(options_.connect_timeout_ms);
    co_await lowest_->async_connect(endpoints, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return NetworkError(request_.url, "connecting", error);
    co_return Status::Ok();
  }

  Awaitable<Status> Plain() {
    beast::tcp_stream stream(context_);
    lowest_ = &stream;
    Status status = co_await Connect();
    if (status.ok()) status = co_await Talk(stream);
    lowest_ = nullptr;
    co_return status;
  }

  Awaitable<Status> Secure(ssl::context* tls) {
    beast::ssl_stream<beast::tcp_stream> stream(context_, *tls);
    lowest_ = &beast::get_lowest_layer(stream);
    Status status = co_await Connect();
    if (status.ok()) {
      error_code error;
      stream.set_verify_mode(ssl::verify_peer, error);
      if (!error) stream.set_verify_callback(ssl::host_name_verification(request_.url.host), error);
      if (error || SSL_set_tlsext_host_name(stream.native_handle(), request_.url.host.c_str()) != 1) {
        status = Internal("{}: TLS cannot be set up", request_.url.Authority());
      } else {
        Expire(options_.connect_timeout_ms);
        co_await stream.async_handshake(ssl::stream_base::client, asio::redirect_error(asio::use_awaitable, error));
        if (error) status = NetworkError(request_.url, "TLS", error);
      }
    }
    if (status.ok()) status = co_await Talk(stream);
    lowest_ = nullptr;
    co_return status;
  }

  template <typename Stream>
  Awaitable<Status> Talk(Stream& stream) {
    http::request<http::empty_body> message(http::verb::get, request_.url.target, 11);
    message.set(http::field::host, request_.url.Authority());
    message.set(http::field::user_agent, options_.user_agent);
    message.set(http::field::accept, "*/*");
    message.set(http::field::accept_encoding, "identity");  // lengths and ranges count the file's own bytes
    message.set(http::field::connection, "close");
    if (!request_.token.empty()) message.set(http::field::authorization, "Bearer " + request_.token);
    if (request_.range_begin > 0) message.set(http::field::range, fmt::format("bytes={}-", request_.range_begin));
    error_code error;
    Expire(options_.stall_timeout_ms);
    co_await http::async_write(stream, message, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return NetworkError(request_.url, "sending", error);

    Parser parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(UINT64_MAX);  // on_body knows how much is wanted; boost::none means 0 in older versions
    beast::flat_buffer buffer(kMaxHeaderBytes + kPieceBytes);
    Expire(options_.stall_timeout_ms);
    co_await http::async_read_header(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return NetworkError(request_.url, "reading the answer", error);
    HubResponseHead head;
    head.url = request_.url;
    if (const Status status = ReadHead(parser, &head); !status.ok()) {
      co_return status.WithContext(request_.url.Authority());
    }
    if (head.status >= 300 && head.status < 400 && head.status != 304) {
      const auto it = parser.get().find(http::field::location);
      if (it != parser.get().end()) {
        location_ = std::string(it->value());
        co_return Status::Ok();
      }
    }
    if (Status status = on_head_(head); !status.ok()) co_return status;

    std::vector<std::byte> piece(kPieceBytes);
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      parser.get().body().more = true;
      Expire(options_.stall_timeout_ms);
      co_await http::async_read_some(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
      if (error == http::error::need_buffer) error = {};
      if (error == ssl::error::stream_truncated && parser.is_done()) error = {};
      const size_t size = piece.size() - parser.get().body().size;
      if (size > 0) {
        if (Status status = on_body_({piece.data(), size}); !status.ok()) co_return status;
      }
      if (error) co_return NetworkError(request_.url, "reading", error);
      if (cancelled_) co_return Cancelled("stopped");
    }
    co_return Status::Ok();
  }

  const HubHttpOptions& options_;
  const HubRequest& request_;
  const HubHttp::OnHead& on_head_;
  const HubHttp::OnBody& on_body_;
  asio::io_context context_;
  tcp::resolver resolver_{context_};
  beast::tcp_stream* lowest_ = nullptr;  // while it lives
  bool cancelled_ = false;
  std::string location_;
};

}  // namespace

struct HubHttp::Tls {
  ssl::context context{ssl::context::tls_client};
};

HubHttp::HubHttp(HubHttpOptions options) : options_(std::move(options)) {}
HubHttp::~HubHttp() = default;

Status HubHttp::Get(const HubRequest& request, const OnHead& on_head, const OnBody& on_body) {
  HubRequest hop = request;
  for (int32_t redirects = 0;; ++redirects) {
    if (hop.url.tls && tls_ == nullptr) {
      auto tls = std::make_unique<Tls>();
      error_code error;
      tls->context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                                   ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1,
                               error);
      tls->context.set_default_verify_paths(error);
      for (const char* bundle : kBundles) {
        if (!FileExists(bundle)) continue;
        tls->context.load_verify_file(bundle, error);
        break;
      }
      if (!options_.ca_file.empty()) {
        tls->context.load_verify_file(options_.ca_file, error);
        if (error) return InvalidArgument("{}: no certificates: {}", options_.ca_file, error.message());
      }
      tls_ = std::move(tls);
    }
    last_url_ = hop.url;
    std::string location;
    RETURN_IF_ERROR(Exchange(options_, hop, on_head, on_body).Run(hop.url.tls ? &tls_->context : nullptr, &location));
    if (location.empty()) return Status::Ok();
    if (redirects >= options_.max_redirects) {
      return Corrupt("{}: more than {} redirects, the last to '{}'", request.url.Text(), options_.max_redirects,
                     Printable(location));
    }
    const auto next = ResolveHubUrl(hop.url, location);
    if (!next.ok()) return next.status().WithContext(hop.url.Authority() + ": redirect");
    if (hop.url.tls && !next->tls) {
      return Corrupt("{}: redirects to '{}', which is not encrypted", hop.url.Authority(), Printable(location));
    }
    if (!next->SameOrigin(hop.url)) hop.token.clear();
    hop.url = *next;
  }
}

Status HubPause(int64_t milliseconds, const std::function<bool()>& cancelled) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  for (;;) {
    if (cancelled && cancelled()) return Cancelled("stopped");
    const auto now = std::chrono::steady_clock::now();
    if (now >= end) return Status::Ok();
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(end - now, kPoll));
  }
}

}  // namespace cachalot
