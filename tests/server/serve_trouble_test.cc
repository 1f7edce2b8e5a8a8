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
  SocketClient running(port());
  running.Send(Completion(R"(,"max_tokens":200,"ignore_eos":true,"stream":true)"));
  running.ReadUntil("data: ");
  server_->BeginDrain();
  const std::string refused = Ask(port(), Completion(""));
  EXPECT_EQ(StatusOf(refused), 503);
  EXPECT_THAT(refused, HasSubstr("Connection: close"));
  EXPECT_EQ(StatusOf(Ask(port(), "GET /ready HTTP/1.1\r\nHost: t\r\n\r\n")), 503);
  EXPECT_EQ(StatusOf(Ask(port(), "GET /health HTTP/1.1\r\nHost: t\r\n\r\n")), 200);
  EXPECT_THAT(running.ReadUntil("data: [DONE]"), HasSubstr("\"length\""));
  WaitFor([&] { return server_->idle(); }, "idle");
}

TEST_F(ServeSocketTest, StopTellsWhatIsLeft) {
  Start({}, 4, 2048, "tiny-deepseek-v3");
  SocketClient stream(port());
  stream.Send(Completion(R"(,"max_tokens":2000,"ignore_eos":true,"stream":true)"));
  stream.ReadUntil("data: ");
  std::vector<std::unique_ptr<SocketClient>> waiting;
  for (int i = 0; i < 12; ++i) {
    waiting.push_back(std::make_unique<SocketClient>(port()));
    waiting.back()->Send(Completion(R"(,"max_tokens":2000,"ignore_eos":true)"));
  }
  WaitFor([&] { return server_->context().loop->live() == 13; }, "thirteen live");
  server_->Stop();
  EXPECT_THAT(stream.ReadToEnd(), HasSubstr("data: [DONE]"));
  for (auto& client : waiting) {
    const std::string response = client->ReadResponse();
    EXPECT_TRUE(StatusOf(response) == 503 || StatusOf(response) == 200) << response;
  }
}

TEST_F(ServeSocketTest, LateRequestsEndWithAnError) {
  Start({.deadline_us = 20'000}, 2, 2048, "tiny-deepseek-v3");
  const std::string late = Ask(port(), Completion(R"(,"max_tokens":2000,"ignore_eos":true)"));
  EXPECT_EQ(StatusOf(late), 504) << late;
  EXPECT_THAT(late, HasSubstr("deadline_exceeded"));
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, ARequestMaySayWhenItIsLate) {
  Start({}, 2, 2048, "tiny-deepseek-v3");
  const std::string late = Ask(port(), Completion(R"(,"max_tokens":2000,"ignore_eos":true,"timeout":0.02)"));
  EXPECT_EQ(StatusOf(late), 504) << late;
  EXPECT_EQ(StatusOf(Ask(port(), Completion(R"(,"max_tokens":2,"timeout":600)"))), 200);
  EXPECT_EQ(StatusOf(Ask(port(), Completion(R"(,"timeout":0)"))), 400);
  WaitUntilAtRest();
}

// One key asks for a lot; the one request of the other is not the last to be answered.
TEST_F(ServeSocketTest, KeysShareFairly) {
  policy_ = "fair";
  Start({.api_keys = {"many", "few"}}, 1, 256, "tiny-deepseek-v3");
  const auto ask = [this](const char* key, const char* more) {
    return Ask(port(), PostText("/v1/completions", std::string(R"({"prompt":"taneba","max_tokens":60,"ignore_eos":true)") + more + "}",
                                std::string("X-Api-Key: ") + key + "\r\n"));
  };
  std::atomic<int> answered{0};
  std::vector<std::thread> flood;
  for (int i = 0; i < 12; ++i) {
    flood.emplace_back([&] {
      EXPECT_EQ(StatusOf(ask("many", "")), 200);
      ++answered;
    });
  }
  WaitFor([&] { return server_->context().loop->live() >= 8; }, "the flood");
  EXPECT_EQ(StatusOf(ask("few", "")), 200);
  EXPECT_LE(answered, 8);
  for (auto& thread : flood) thread.join();
  WaitUntilAtRest();
}

// Forwards to an engine, and stands still in a step when told to.
class StandingEngine final : public Engine {
 public:
  explicit StandingEngine(Engine* engine) : engine_(engine) {}
  Result<uint64_t> Submit(Request request, OutputCallback on_output) override { return engine_->Submit(std::move(request), std::move(on_output)); }
  void Cancel(uint64_t id) override { engine_->Cancel(id); }
  bool HasWork() const override { return engine_->HasWork(); }
  Status Step() override {
    while (stands) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return engine_->Step();
  }
  const EngineStats& stats() const override { return engine_->stats(); }
  const StepResult& last_result() const override { return engine_->last_result(); }
  std::atomic<bool> stands{false};

 private:
  Engine* const engine_;
};

TEST_F(ServeSocketTest, HealthIsRedWhileWorkWaitsForAStep) {
  Start();
  server_->Stop();
  StandingEngine engine(engine_.get());
  auto server = Server::Start({.http = {.port = 0}, .stall_ms = 30, .request_log = ""}, bundle_.get(), &engine, info_);
  ASSERT_TRUE(server.ok());
  const int at = (*server)->port();
  const std::string ask = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  EXPECT_EQ(StatusOf(Ask(at, ask)), 200);
  engine.stands = true;
  EXPECT_EQ(StatusOf(Ask(at, ask)), 200) << "nothing waits";
  std::thread asking([&] { EXPECT_EQ(StatusOf(Ask(at, Completion(R"(,"max_tokens":3)"))), 200); });
  WaitFor([&] { return StatusOf(Ask(at, ask)) == 503; }, "red");
  EXPECT_THAT(BodyOf(Ask(at, ask)), HasSubstr("no step has ended"));
  engine.stands = false;
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
