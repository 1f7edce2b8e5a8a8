// The HTTP server by itself: what well-behaved clients, strange ones and hostile ones meet.
#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "socket_client.h"

namespace cachalot {
namespace {

using testing::HasSubstr;

// Routes of the test: /echo gives the body back, /stream sends 3 pieces, /hold never answers, /flood sends more than fits.
class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    options.port = 0;
    auto server = HttpServer::Start(
        options, [this](std::shared_ptr<Exchange> exchange) { Handle(std::move(exchange)); },
        [](int status, std::string_view message) { return "{\"status\":" + std::to_string(status) + ",\"m\":\"" + std::string(message) + "\"}"; });
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  void TearDown() override {
    for (auto& thread : threads_) thread.join();
    if (server_) server_->Stop();
  }

  void Handle(std::shared_ptr<Exchange> exchange) {
    const std::string path = exchange->request().path;
    exchange->OnClosed([this] { ++closed_; });
    const std::lock_guard lock(mutex_);
    if (path == "/hold") {
      hold_.push_back(std::move(exchange));
      ++held_;
      return;
    }
    if (path == "/stream") {
      exchange->StartStream({.content_type = "text/event-stream"});
      threads_.emplace_back([exchange] {
        for (int i = 0; i < 3; ++i) {
          exchange->Post([exchange, i] { exchange->Write("piece " + std::to_string(i) + "\n"); });
        }
        exchange->Post([exchange] { exchange->EndStream(); });
      });
      return;
    }
    if (path == "/flood") {
      exchange->StartStream({.content_type = "text/plain"});
      const std::string piece(60'000, 'x');
      Flood(exchange, piece, 2000);
      return;
    }
    HttpResponse response;
    response.content_type = "text/plain";
    response.body = exchange->request().method + " " + path + " " + exchange->request().body;
    exchange->Respond(std::move(response));
  }
  static void Flood(std::shared_ptr<Exchange> exchange, std::string piece, int left) {
    if (left == 0) return exchange->EndStream();
    if (!exchange->Write(piece)) return;
    exchange->Post([exchange, piece, left] { Flood(exchange, piece, left - 1); });
  }
  int port() const { return server_->port(); }
  void WaitFor(const std::function<bool()>& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(condition()) << held_ << " held, " << closed_ << " closed";
  }

  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;  // of what handlers on several threads share
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<Exchange>> hold_;
  std::atomic<int> held_{0};
  std::atomic<int> closed_{0};
};

TEST_F(HttpServerTest, KeepsConnectionsAlive) {
  Start();
  SocketClient client(port());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.Send(PostText("/echo", "body " + std::to_string(i))));
    const std::string response = client.ReadResponse();
    EXPECT_EQ(StatusOf(response), 200);
    EXPECT_EQ(BodyOf(response), "POST /echo body " + std::to_string(i));
  }
  ASSERT_TRUE(client.Send("GET /last HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
  EXPECT_THAT(client.ReadToEnd(), HasSubstr("Connection: close"));
  EXPECT_EQ(server_->counters().accepted, 1);
}

TEST_F(HttpServerTest, RequestsInARow) {
  Start();
  SocketClient client(port());
  ASSERT_TRUE(client.Send(PostText("/echo", "one") + PostText("/echo", "two") + PostText("/echo", "three")));
  for (const char* body : {"one", "two", "three"}) EXPECT_EQ(BodyOf(client.ReadResponse()), std::string("POST /echo ") + body);
}

TEST_F(HttpServerTest, ChunkedBodiesAndContinue) {
  Start();
  EXPECT_EQ(BodyOf(Ask(port(), "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")),
            "POST /echo abcde");
  SocketClient client(port());
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("100 Continue"));
  client.Send("ok");
  EXPECT_EQ(BodyOf(client.ReadResponse()), "POST /echo ok");
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Start();
  SocketClient client(port());
  client.Send("HEAD /x HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  const std::string response = client.ReadToEnd();
  EXPECT_THAT(response, HasSubstr("Content-Length: 8"));
  EXPECT_EQ(BodyOf(response), "");
}

TEST_F(HttpServerTest, StreamsInChunks) {
  Start();
  SocketClient client(port());
  client.Send("GET /stream HTTP/1.1\r\nHost: t\r\n\r\n");
  const std::string response = client.ReadUntil("\r\n0\r\n\r\n");
  EXPECT_THAT(response, HasSubstr("Transfer-Encoding: chunked"));
  for (const char* piece : {"piece 0", "piece 1", "piece 2"}) EXPECT_THAT(response, HasSubstr(piece));
  client.Send("GET /after HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(BodyOf(client.ReadResponse()), "GET /after ");
  // HTTP/1.0 knows no chunks: the end of the connection is the end of the body.
  SocketClient old(port());
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string plain = old.ReadToEnd();
  EXPECT_EQ(plain.find("chunked"), std::string::npos);
  EXPECT_THAT(BodyOf(plain), testing::StartsWith("piece 0"));
}

TEST_F(HttpServerTest, LimitsAreToldAndKept) {
  Start({.max_header_bytes = 4096, .max_body_bytes = 1000});
  const std::string big = Ask(port(), PostText("/echo", std::string(1001, 'x')));
  EXPECT_EQ(StatusOf(big), 413);
  EXPECT_THAT(big, HasSubstr("1000"));
  EXPECT_EQ(StatusOf(Ask(port(), PostText("/echo", std::string(1000, 'x')))), 200);
  // A body of a size that nobody has, announced only.
  EXPECT_EQ(StatusOf(Ask(port(), "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999\r\n\r\nx")), 413);
  EXPECT_EQ(StatusOf(Ask(port(), "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n" + std::string(2000, 'x'))), 413);
  const std::string header = Ask(port(), "GET /x HTTP/1.1\r\nHost: t\r\nX-A: " + std::string(5000, 'a') + "\r\n\r\n");
  EXPECT_EQ(StatusOf(header), 431);
}

TEST_F(HttpServerTest, NonsenseIsRefused) {
  Start();
  for (const char* text : {"\r\n\r\n\r\n\r\n", "hello\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n",
                           "GET / HTTP/1.1\r\nBad Header: x\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                           "GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
                           "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "GET %% HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01"}) {
    SocketClient client(port());
    client.Send(text);
    client.CloseSending();
    const std::string response = client.ReadToEnd();
    EXPECT_TRUE(response.empty() || StatusOf(response) == 400) << text;
  }
  EXPECT_EQ(StatusOf(Ask(port(), PostText("/echo", "still there"))), 200);
}

TEST_F(HttpServerTest, RandomBytesDoNoHarm) {
  Start({.read_timeout_ms = 2000});
  std::mt19937 random(7);
  const std::string good = PostText("/echo", "some body", "X-Header: value\r\n");
  for (int i = 0; i < 300; ++i) {
    std::string text = good;
    for (uint32_t change = random() % 4 + 1; change > 0; --change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, random() % 8); break;
        default: text.insert(at, 1 + random() % 8, static_cast<char>(random())); break;
      }
      if (text.empty()) text = "x";
    }
    SocketClient client(port());
    client.Send(text);
    client.CloseSending();
    client.ReadToEnd(3000);
  }
  EXPECT_EQ(StatusOf(Ask(port(), good)), 200);
}

TEST_F(HttpServerTest, SlowAndIdleConnectionsEnd) {
  Start({.read_timeout_ms = 300, .idle_timeout_ms = 300});
  SocketClient idle(port());
  SocketClient slow(port());
  slow.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Le");
  SocketClient half(port());
  half.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(idle.WaitForEnd(5000));
  EXPECT_TRUE(slow.WaitForEnd(5000));
  EXPECT_TRUE(half.WaitForEnd(5000));
  WaitFor([&] { return server_->counters().connections == 0; });
}

TEST_F(HttpServerTest, AClientThatGoesIsNoticed) {
  Start();
  {
    SocketClient client(port());
    client.Send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
    WaitFor([&] { return held_ == 1; });
    EXPECT_EQ(closed_, 0);
  }
  WaitFor([&] { return closed_ == 1; });
  WaitFor([&] { return server_->counters().connections <= 1; });
}

// Both send the same; what they do with what comes then tells them apart.
TEST_F(HttpServerTest, AClientThatEndsItsSideGetsItsAnswer) {
  Start();
  SocketClient whole(port());
  whole.Send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  whole.CloseSending();
  EXPECT_THAT(whole.ReadUntil("\r\n\r\n"), testing::StartsWith("HTTP/1.1 100 Continue\r\n"));
  WaitFor([&] { return held_ == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(closed_, 0);
  hold_[0]->Post([exchange = hold_[0]] { exchange->Respond({.body = "late"}); });
  const std::string response = whole.ReadToEnd();
  EXPECT_EQ(StatusOf(response), 200);
  EXPECT_THAT(response, HasSubstr("Connection: close"));
  EXPECT_EQ(BodyOf(response), "late");
  // The next request may have come with it.
  SocketClient two(port());
  two.Send(PostText("/echo", "one") + PostText("/echo", "two"));
  two.CloseSending();
  EXPECT_THAT(two.ReadToEnd(), testing::AllOf(HasSubstr("POST /echo one"), HasSubstr("POST /echo two")));
  // Whoever is gone is noticed for those behind it too.
  {
    SocketClient gone(port());
    gone.Send("GET /stream HTTP/1.1\r\nHost: t\r\n\r\nGET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
    WaitFor([&] { return held_ == 2; });  // otherwise the first answer may fail to leave, and the second request is never begun
    gone.Close();
  }
  WaitFor([&] { return closed_ == 1; });
  closed_ = 0;
  held_ = 1;
  SocketClient stream(port());
  stream.Send("GET /stream HTTP/1.1\r\nHost: t\r\n\r\n");
  stream.CloseSending();
  EXPECT_THAT(stream.ReadToEnd(), testing::EndsWith("\r\n0\r\n\r\n"));
  // HTTP/1.0 knows nothing that could be sent before the answer.
  SocketClient old(port());
  old.Send("GET /hold HTTP/1.0\r\n\r\n");
  WaitFor([&] { return held_ == 2; });
  old.CloseSending();
  WaitFor([&] { return closed_ == 1; });
}

TEST_F(HttpServerTest, QuietStreamsAskWhoIsThere) {
  Start();
  for (const bool there : {true, false}) {
    const int closed = closed_;
    auto client = std::make_unique<SocketClient>(port());
    client->Send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
    WaitFor([&] { return held_ == (there ? 1 : 2); });
    const std::shared_ptr<Exchange> exchange = hold_.back();
    exchange->Post([exchange] {
      exchange->on_half_closed = [exchange = exchange.get()] { exchange->Write("are you there?"); };
      exchange->StartStream({.content_type = "text/event-stream"});
    });
    client->ReadUntil("\r\n\r\n");
    if (there) {
      client->CloseSending();
      EXPECT_THAT(client->ReadUntil("?"), HasSubstr("are you there?"));
      EXPECT_EQ(closed_, closed);
      exchange->Post([exchange] { exchange->EndStream(); });
      EXPECT_TRUE(client->WaitForEnd(5000));
    } else {
      client.reset();
      WaitFor([&] { return closed_ == closed + 1; });
    }
  }
}

TEST_F(HttpServerTest, CertificatesThatAreNone) {
  const std::string dir = testing::TempDir();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir + name) << text;
    return dir + name;
  };
  const auto error = [](const std::string& cert, const std::string& key) {
    const auto server = HttpServer::Start({.port = 0, .ssl_cert_file = cert, .ssl_key_file = key}, [](std::shared_ptr<Exchange>) {},
                                          [](int, std::string_view) { return ""; });
    return server.ok() ? "" : server.status().message();
  };
  const std::string nothing = write("empty.pem", "");
  const std::string noise = write("noise.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_THAT(error("/no/such.pem", nothing), HasSubstr("/no/such.pem"));
  EXPECT_THAT(error(nothing, nothing), HasSubstr("--ssl-cert-file " + nothing));
  EXPECT_THAT(error(noise, nothing), HasSubstr("--ssl-cert-file " + noise));
}

TEST_F(HttpServerTest, AReaderThatDoesNotReadIsGivenUp) {
  Start({.max_stream_bytes = 200'000});
  SocketClient client(port(), 4096);
  client.Send("GET /flood HTTP/1.1\r\nHost: t\r\n\r\n");
  WaitFor([&] { return closed_ == 1; });
  EXPECT_EQ(server_->counters().slow_readers, 1);
}

TEST_F(HttpServerTest, ConnectionsAreCounted) {
  Start({.max_connections = 3});
  std::vector<std::unique_ptr<SocketClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<SocketClient>(port()));
    clients.back()->Send(PostText("/echo", "x"));
    EXPECT_EQ(StatusOf(clients.back()->ReadResponse()), 200);
  }
  SocketClient fourth(port());
  const std::string refused = fourth.ReadToEnd();
  EXPECT_EQ(StatusOf(refused), 503);
  EXPECT_THAT(refused, HasSubstr("Retry-After"));
  clients.pop_back();
  WaitFor([&] { return server_->counters().connections == 2; });
  EXPECT_EQ(StatusOf(Ask(port(), PostText("/echo", "x"))), 200);
}

TEST_F(HttpServerTest, ManyOpenRequestsOnFewThreads) {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const int count = static_cast<int>(std::min<rlim_t>(500, (limit.rlim_cur - 64) / 2));
  Start();
  std::vector<std::unique_ptr<SocketClient>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<SocketClient>(port()));
    ASSERT_TRUE(clients.back()->Send("GET /stream HTTP/1.1\r\nHost: t\r\n\r\n"));
    if (i % 50 == 49) {
      for (int j = i - 49; j <= i; ++j) ASSERT_THAT(clients[static_cast<size_t>(j)]->ReadUntil("\r\n0\r\n\r\n"), HasSubstr("piece 2"));
    }
  }
  EXPECT_EQ(server_->counters().connections, count);
  clients.clear();
  WaitFor([&] { return server_->counters().connections == 0; });
}

TEST_F(HttpServerTest, StopBreaksOffWhatIsLeft) {
  Start();
  SocketClient held(port());
  held.Send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
  SocketClient idle(port());
  WaitFor([&] { return held_ == 1; });
  server_->Stop();
  EXPECT_EQ(closed_, 1);
  EXPECT_TRUE(held.WaitForEnd(5000));
  EXPECT_TRUE(idle.WaitForEnd(5000));
  hold_.clear();
}

TEST_F(HttpServerTest, AddressesThatAreNone) {
  const auto start = [](const char* host, int port) {
    return HttpServer::Start({.host = host, .port = port}, [](std::shared_ptr<Exchange>) {}, [](int, std::string_view) { return ""; });
  };
  EXPECT_FALSE(start("no.such.host.invalid", 0).ok());
  Start();
  EXPECT_FALSE(start("127.0.0.1", port()).ok());
}

}  // namespace
}  // namespace cachalot
