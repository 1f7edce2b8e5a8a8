// A small HTTP/1.1 server: few threads, each with its own event loop, a coroutine for each connection.
// Invariant: everything of a connection happens on its loop's thread, so handlers need no locks; only Exchange::Post may be
// called from elsewhere. Whatever a client sends, the answer is a response or a closed connection.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_message.h"

namespace cachalot {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8080;                       // 0: any free one, see HttpServer::port()
  int32_t num_threads = 2;
  int32_t max_connections = 4096;
  int64_t max_header_bytes = 64 << 10;
  int64_t max_body_bytes = 16 << 20;
  int64_t max_stream_bytes = 1 << 20;        // that may wait for a slow reader; more ends the stream
  int32_t read_timeout_ms = 30'000;          // for a whole request, once it has begun
  int32_t idle_timeout_ms = 120'000;         // between requests of a connection
  int32_t write_timeout_ms = 60'000;         // without any progress
  HttpHeaders extra_headers = {};              // in every response that the server makes by itself
  std::string ssl_cert_file = {};            // PEM; with both the port speaks TLS (1.2 and 1.3), and nothing else
  std::string ssl_key_file = {};
};

// A request and the way back. Methods belong to the connection's thread, Post apart.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  HttpRequest& mutable_request() { return const_cast<HttpRequest&>(request()); }
  // Headers that the response will have besides its own.
  HttpHeaders response_headers;
  // Told the status when the response begins; 499 when the client goes before.
  std::function<void(int status)> on_response;
  // Called when the client ends its side while a stream runs: whatever is written now finds out whether it still reads.
  std::function<void()> on_half_closed;

  // The whole response. Once, and not after StartStream.
  virtual void Respond(HttpResponse response) = 0;
  // The head of a response whose body follows in pieces.
  virtual void StartStream(HttpResponse head) = 0;
  // False when the client has gone or reads too slowly: then the exchange is closed.
  virtual bool Write(std::string_view piece) = 0;
  virtual void EndStream() = 0;
  // Breaks the connection off: what a client must be able to tell from a proper end.
  virtual void Abort() = 0;

  virtual bool closed() const = 0;
  virtual bool responded() const = 0;
  // Called once when the client goes before the response was complete.
  virtual void OnClosed(std::function<void()> callback) = 0;

  // Runs fn on the connection's thread after a while, unless the exchange is over by then. One such call at a time: a new
  // one takes the place of the last. On the connection's thread.
  virtual void CallAfter(int32_t ms, std::function<void()> fn) = 0;
  // Runs fn on the connection's thread; from any thread.
  virtual void Post(std::function<void()> fn) = 0;
  // Names the event loop of that thread: exchanges with the same one share it.
  virtual const void* loop() const = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<Exchange>)>;

struct HttpCounters {
  int64_t connections = 0;           // open now
  int64_t accepted = 0;
  int64_t refused = 0;               // over max_connections
  int64_t slow_readers = 0;          // streams ended because nobody read them
  int64_t answering = 0;             // requests whose response is not out yet
};

class HttpServer {
 public:
  // The body of an error response that the server makes by itself (400, 408, 413, 431, 503).
  using ErrorBody = std::function<std::string(int status, std::string_view message)>;

  // Listens and serves at once.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, HttpHandler handler, ErrorBody error_body);
  virtual ~HttpServer() = default;

  virtual int32_t port() const = 0;
  virtual HttpCounters counters() const = 0;
  // Responses from now on end their connection (Connection: close).
  virtual void CloseAfterResponses() = 0;
  // Breaks off what is left and joins the threads.
  virtual void Stop() = 0;
};

}  // namespace cachalot
