// The listener and its event loops: Asio's coroutines carry the connections (http_connection.h), Beast parses requests.
#include "server/http/http_server.h"

#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/http/http_connection.h"
#include "server/http/tls_context.h"

namespace cachalot {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr auto kRetryAccept = std::chrono::milliseconds(50);

class HttpServerImpl final : public HttpServer {
 public:
  ~HttpServerImpl() override { Stop(); }

  Status Open(const HttpServerOptions& options, HttpHandler handler, ErrorBody error_body);
  int32_t port() const override { return port_; }
  HttpCounters counters() const override {
    return {shared_.connections.load(), shared_.accepted.load(), shared_.refused.load(), shared_.slow_readers.load(), shared_.answering.load()};
  }
  void CloseAfterResponses() override { shared_.closing = true; }
  void Stop() override;

 private:
  // An event loop with its thread and the connections that live on it.
  struct Loop {
    Loop() : context(1), work(asio::make_work_guard(context)) {}
    asio::io_context context;
    asio::executor_work_guard<asio::io_context::executor_type> work;
    std::set<std::weak_ptr<HttpConnection>, std::owner_less<std::weak_ptr<HttpConnection>>> connections;
    std::thread thread;
  };

  asio::awaitable<void> Accept();
  void Serve(tcp::socket socket, Loop* loop);

  HttpShared shared_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::optional<tcp::acceptor> acceptor_;
  int32_t port_ = 0;
  bool stopped_ = false;
};

Status HttpServerImpl::Open(const HttpServerOptions& options, HttpHandler handler, ErrorBody error_body) {
  shared_.options = options;
  shared_.handler = std::move(handler);
  shared_.error_body = std::move(error_body);
  if (!options.ssl_cert_file.empty()) {
    ASSIGN_OR_RETURN(shared_.tls, LoadTlsContext(options.ssl_cert_file, options.ssl_key_file));
  }
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
      const std::string text = HttpHead(response, shared_.options.extra_headers, false) +
                               fmt::format("Content-Length: {}\r\n\r\n", response.body.size()) + response.body;
      // One try, without waiting: the send buffer of a new socket holds it. (A client of TLS sees its connection end.)
      if (shared_.tls == nullptr) {
        [[maybe_unused]] const ssize_t n =
            ::send(socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      }
      socket.shutdown(tcp::socket::shutdown_send, error);
      continue;
    }
    auto shared_socket = std::make_shared<tcp::socket>(std::move(socket));
    asio::post(loop->context, [this, loop, shared_socket] { Serve(std::move(*shared_socket), loop); });
  }
}

void HttpServerImpl::Serve(tcp::socket socket, Loop* loop) {
  auto connection = std::make_shared<HttpConnection>(std::move(socket), &loop->context, &shared_);
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
      std::vector<std::shared_ptr<HttpConnection>> open;
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
