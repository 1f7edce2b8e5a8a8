// ServeSocketTest: the whole server on a tiny generated model, in the test's process. What a request gets does not depend on
// those beside it; what must happen while a request runs does so while the engine is held.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "held_engine.h"
#include "runtime/runtime.h"
#include "server/server.h"
#include "socket_client.h"

namespace cachalot {

class ServeSocketTest : public testing::Test {
 protected:
  void Start(ServerOptions options = {}, int32_t max_seqs = 4, int32_t context = 256, const char* spec = "tiny-llama") {
    ModelOptions model;
    model.dummy = spec;
    model.num_threads = 1;
    model.context = context;
    model.max_seqs = max_seqs;
    model.deterministic = true;
    Result<ModelBundle> bundle = OpenModel(model);
    ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = std::make_unique<ModelBundle>(std::move(*bundle));
    info_ = bundle_->runtime->info();
    auto engine = Engine::Create(bundle_->runtime.get(), bundle_->tokenizer.get(), {.policy = policy_});
    ASSERT_TRUE(engine.ok());
    engine_ = std::move(*engine);
    held_ = std::make_unique<HeldEngine>(engine_.get());
    options.http.port = 0;
    options.default_name = "tiny";
    options.request_log = "";
    auto server = Server::Start(std::move(options), bundle_.get(), held_.get(), info_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  void TearDown() override {
    if (held_) held_->Release();
    if (server_) server_->Stop();
  }
  int port() const { return server_->port(); }
  static std::string Completion(const char* more) { return PostText("/v1/completions", std::string(R"({"prompt":"taneba")") + more + "}"); }
  nlohmann::json Complete(const char* more) { return nlohmann::json::parse(BodyOf(Ask(port(), Completion(more))), nullptr, false); }
  int64_t Blocks() {
    int64_t used = 0;
    for (const int32_t blocks : server_->context().loop->GetSnapshot().stats.kv_blocks_used) used += blocks;
    return used;
  }
  void WaitFor(const std::function<bool()>& condition, const char* what) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << what;
  }
  // A request with a deadline of 20 ms, which passes while it runs, is told so.
  void ExpectLate(const char* more) {
    held_->Hold(4);
    SocketClient client(port());
    client.Send(Completion((std::string(R"(,"max_tokens":200,"ignore_eos":true)") + more).c_str()));
    WaitFor([&] { return held_->num_submitted() == 1; }, "submitted");
    std::this_thread::sleep_for(std::chrono::milliseconds(21));
    held_->Release();
    const std::string late = client.ReadResponse();
    EXPECT_EQ(StatusOf(late), 504) << late;
    EXPECT_THAT(late, testing::HasSubstr("deadline_exceeded"));
    WaitUntilAtRest();
  }
  void WaitUntilAtRest() {
    WaitFor([&] { return server_->context().live.size() == 0; }, "no live requests");
    WaitFor([&] { return server_->context().loop->live() == 0; }, "no places taken");
    WaitFor([&] { return Blocks() == 0; }, "no KV blocks in use");
  }

  std::string policy_ = "fcfs";
  std::unique_ptr<ModelBundle> bundle_;
  ExecutorInfo info_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HeldEngine> held_;
  std::unique_ptr<Server> server_;
};

}  // namespace cachalot
