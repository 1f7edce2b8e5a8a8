// The whole server in trouble: ends, late requests, floods, steps that stand still, faults.
#include <atomic>
#include <vector>

#include "base/fault.h"
#include "serve_socket_testing.h"

namespace cachalot {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST_F(ServeSocketTest, DrainFinishesWhatRuns) {
  Start();
  held_->Hold(4);
  SocketClient running(port());
  running.Send(Completion(R"(,"max_tokens":200,"ignore_eos":true,"stream":true)"));
  running.ReadUntil("data: ");
  server_->BeginDrain();
  const std::string refused = Ask(port(), Completion(""));
  EXPECT_EQ(StatusOf(refused), 503);
  EXPECT_THAT(refused, HasSubstr("Connection: close"));
  EXPECT_EQ(StatusOf(Ask(port(), "GET /ready HTTP/1.1\r\nHost: t\r\n\r\n")), 503);
  EXPECT_EQ(StatusOf(Ask(port(), "GET /health HTTP/1.1\r\nHost: t\r\n\r\n")), 200);
  EXPECT_FALSE(server_->idle());
  held_->Release();
  EXPECT_THAT(running.ReadUntil("data: [DONE]"), HasSubstr("\"length\""));
  WaitFor([&] { return server_->idle(); }, "idle");
}

TEST_F(ServeSocketTest, StopTellsWhatIsLeft) {
  Start();
  held_->Stand(4);
  SocketClient stream(port());
  stream.Send(Completion(R"(,"max_tokens":200,"ignore_eos":true,"stream":true)"));
  stream.ReadUntil("data: ");
  std::vector<std::unique_ptr<SocketClient>> waiting;
  for (int i = 0; i < 12; ++i) {
    waiting.push_back(std::make_unique<SocketClient>(port()));
    waiting.back()->Send(Completion(R"(,"max_tokens":200,"ignore_eos":true)"));
  }
  EngineLoop* const loop = server_->context().loop.get();
  WaitFor([&] { return loop->live() == 13; }, "thirteen live");
  std::thread stopper([&] { server_->Stop(); });
  WaitFor([&] { return loop->Reserve(1).code() == StatusCode::kCancelled; }, "it is stopping");
  held_->Release();
  EXPECT_THAT(stream.ReadToEnd(), testing::AllOf(HasSubstr("shutting down"), HasSubstr("data: [DONE]")));
  for (auto& client : waiting) {
    const std::string response = client->ReadResponse();
    EXPECT_EQ(StatusOf(response), 503) << response;
  }
  stopper.join();
}

TEST_F(ServeSocketTest, LateRequestsEndWithAnError) {
  Start({.deadline_us = 20'000});
  ExpectLate("");
}

TEST_F(ServeSocketTest, ARequestMaySayWhenItIsLate) {
  Start();
  ExpectLate(R"(,"timeout":0.02)");
  EXPECT_EQ(StatusOf(Ask(port(), Completion(R"(,"max_tokens":2,"timeout":600)"))), 200);
  EXPECT_EQ(StatusOf(Ask(port(), Completion(R"(,"timeout":0)"))), 400);
  WaitUntilAtRest();
}

// One key asks for a lot; the one request of the other, which comes last, is not the last to be answered.
TEST_F(ServeSocketTest, KeysShareFairly) {
  policy_ = "fair";
  Start({.api_keys = {"many", "few"}}, 1);
  held_->Hold(4);
  std::vector<std::thread> asking;
  for (int i = 0; i < 13; ++i) {
    if (i == 12) WaitFor([&] { return held_->num_submitted() == 12; }, "the flood");
    asking.emplace_back([&, key = i < 12 ? "many" : "few"] {
      const std::string body = R"({"prompt":"taneba","max_tokens":60,"ignore_eos":true})";
      EXPECT_EQ(StatusOf(Ask(port(), PostText("/v1/completions", body, std::string("X-Api-Key: ") + key + "\r\n"))), 200);
    });
  }
  WaitFor([&] { return held_->num_submitted() == 13; }, "the last");
  held_->Release();
  for (auto& thread : asking) thread.join();
  const std::vector<std::string> ended = held_->ended_tenants();
  ASSERT_EQ(ended.size(), 13u);
  int num_before = 0;
  while (num_before < 13 && ended[static_cast<size_t>(num_before)] == ended[0]) ++num_before;
  EXPECT_LE(num_before, 8);
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, HealthIsRedWhileWorkWaitsForAStep) {
  Start();
  server_->Stop();
  auto server = Server::Start({.http = {.port = 0}, .stall_ms = 30, .request_log = ""}, bundle_.get(), held_.get(), info_);
  ASSERT_TRUE(server.ok());
  const int at = (*server)->port();
  const std::string ask = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  EXPECT_EQ(StatusOf(Ask(at, ask)), 200);
  held_->Stand();
  EXPECT_EQ(StatusOf(Ask(at, ask)), 200) << "nothing waits";
  std::thread asking([&] { EXPECT_EQ(StatusOf(Ask(at, Completion(R"(,"max_tokens":3)"))), 200); });
  WaitFor([&] { return StatusOf(Ask(at, ask)) == 503; }, "red");
  EXPECT_THAT(BodyOf(Ask(at, ask)), HasSubstr("no step has ended"));
  held_->Release();
  asking.join();
  EXPECT_EQ(StatusOf(Ask(at, ask)), 200);
  (*server)->Stop();
}

TEST_F(ServeSocketTest, FaultsOfTheDeviceEndRequestsAndNotTheServer) {
  Start();
  int failed = 0;
  {
    const ScopedFault fault("device.op", 3, 4);
    for (int i = 0; i < 12; ++i) {
      const std::string whole = Ask(port(), Completion(R"(,"max_tokens":6,"ignore_eos":true)"));
      EXPECT_TRUE(StatusOf(whole) == 200 || StatusOf(whole) == 500) << whole;
      failed += StatusOf(whole) == 500;
    }
  }
  EXPECT_GE(failed, 1);
  {
    const ScopedFault fault("device.op", 4, 1);
    SocketClient stream(port());
    stream.Send(Completion(R"(,"max_tokens":100,"ignore_eos":true,"stream":true)"));
    const std::string text = stream.ReadUntil("data: [DONE]");
    EXPECT_THAT(text, HasSubstr("\"error\""));
    EXPECT_THAT(text, HasSubstr("data: [DONE]"));
  }
  {
    const ScopedFault slow("net.slow", 0, 20);
    EXPECT_EQ(StatusOf(Ask(port(), Completion(""))), 200);
  }
  EXPECT_EQ(StatusOf(Ask(port(), "GET /health HTTP/1.1\r\nHost: t\r\n\r\n")), 200);
  WaitUntilAtRest();
}

}  // namespace
}  // namespace cachalot
