// HttpStream: a connection, plain or in TLS, with timeouts. At most one read and one write are under way at a time.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <optional>
#include <utility>

namespace cachalot {

class HttpStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  explicit HttpStream(boost::asio::ip::tcp::socket socket) : tcp_(std::move(socket)) {}
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  explicit HttpStream(boost::asio::io_context* context) : tcp_(*context) {}
  // From here on the stream's bytes are those within TLS, once a handshake has ended.
  void StartTls(boost::asio::ssl::context* context) { tls_.emplace(tcp_, *context); }
  // The client's side: `verify` says whether a certificate is believed.
  template <typename Verify>
  void StartTls(boost::asio::ssl::context* context, Verify verify) {
    tls_.emplace(tcp_, *context);
    tls_->set_verify_callback(std::move(verify));
  }
  bool is_tls() const { return tls_.has_value(); }

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::beast::tcp_stream& lowest() { return tcp_; }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  // Of the operations that begin from now on.
  void expires_after(std::chrono::nanoseconds time) { tcp_.expires_after(time); }
  void expires_never() { tcp_.expires_never(); }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return tcp_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return tcp_.async_write_some(buffers, std::forward<Token>(token));
  }
  // The server's side. `begun` are bytes of it that were read already. Gives how many of them were used: all.
  template <typename Buffers, typename Token>
  auto async_handshake(const Buffers& begun, Token&& token) {
    return tls_->async_handshake(boost::asio::ssl::stream_base::server, begun, std::forward<Token>(token));
  }
  // The client's side.
  template <typename Token>
  auto async_handshake(Token&& token) {
    return tls_->async_handshake(boost::asio::ssl::stream_base::client, std::forward<Token>(token));
  }
  SSL* tls_handle() { return tls_->native_handle(); }
  template <typename Token>
  auto async_shutdown(Token&& token) {
    return tls_->async_shutdown(std::forward<Token>(token));
  }

 private:
  boost::beast::tcp_stream tcp_;
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace cachalot
