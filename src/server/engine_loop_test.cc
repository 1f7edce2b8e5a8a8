// The loop around an engine that does what the test says.
#include "server/engine_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <semaphore>
#include <thread>

#include "obs/metrics.h"
#include "server/server_metrics.h"

namespace cachalot {
namespace {

// Each step gives every choice one token; a request ends after max_tokens.
class ScriptedEngine final : public Engine {
 public:
  Result<uint64_t> Submit(Request request, OutputCallback on_output) override {
    if (request.prompt_ids.empty()) return InvalidArgument("the prompt is empty");
    const uint64_t id = ++last_id_;
    live_[id] = {std::move(request), std::move(on_output), 0, false};
    return id;
  }
  void Cancel(uint64_t id) override {
    if (live_.contains(id)) live_[id].cancelled = true;
  }
  bool HasWork() const override { return !live_.empty(); }
  Status Step() override {
    if (stall) hold.acquire();
    if (broken) return Internal("it is broken");
    ++stats_.steps;
    for (auto it = live_.begin(); it != live_.end();) {
      auto current = it++;
      Live& live = current->second;
      ++live.done;
      const bool ends = live.cancelled || live.done >= live.request.max_tokens;
      for (int32_t choice = 0; choice < live.request.n; ++choice) {
        const int32_t token = 7;
        RequestOutput output;
        output.choice = choice;
        output.num_prompt_computed = 1;
        if (!live.cancelled) output.token_ids = std::span(&token, 1);
        output.finished = ends;
        output.finish_reason = live.cancelled ? FinishReason::kCancelled : FinishReason::kLength;
        live.on_output(output);
      }
      if (ends) live_.erase(current);
    }
    return Status::Ok();
  }
  void Wake() override { ++num_wakes; }
  const EngineStats& stats() const override { return stats_; }
  EngineStats* mutable_stats() { return &stats_; }
  const StepResult& last_result() const override { return result_; }

  std::atomic<bool> stall{false};
  std::atomic<bool> broken{false};
  std::atomic<int> num_wakes{0};
  std::counting_semaphore<> hold{0};

 private:
  struct Live {
    Request request;
    OutputCallback on_output;
    int32_t done = 0;
    bool cancelled = false;
  };
  std::map<uint64_t, Live> live_;
  uint64_t last_id_ = 0;
  EngineStats stats_;
  StepResult result_;
};

class EngineLoopTest : public testing::Test {
 protected:
  void Start(EngineLoopOptions options) {
    info_.max_seqs = options.max_seqs;
    info_.max_step_tokens = 16;
    metrics_ = std::make_unique<ServerMetrics>(&registry_, info_);
    loop_ = std::make_unique<EngineLoop>(&engine_, info_, metrics_.get(), options);
  }
  uint64_t Ask(int32_t max_tokens, int32_t n = 1) {
    EXPECT_TRUE(loop_->Reserve(n).ok());
    Request request;
    request.prompt_ids = {1};
    request.max_tokens = max_tokens;
    request.n = n;
    return loop_->Submit(std::move(request), SinkOf([this](const TokenEvent& event) {
      tokens_ += static_cast<int>(event.token_ids.size());
      if (!event.finished) return;
      last_reason_ = event.finish_reason;
      if (!event.error.ok()) ++errors_;
      ++finished_;
    }));
  }
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }

  MetricRegistry registry_;
  ExecutorInfo info_;
  ScriptedEngine engine_;
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<EngineLoop> loop_;
  std::atomic<int> tokens_{0}, finished_{0}, errors_{0};
  std::atomic<FinishReason> last_reason_{FinishReason::kStop};
};

TEST_F(EngineLoopTest, EveryChoiceEndsOnce) {
  Start({.max_seqs = 4});
  Ask(3, 2);
  Ask(5);
  EXPECT_TRUE(Eventually([&] { return finished_ == 3; }));
  EXPECT_EQ(tokens_, 11);
  EXPECT_EQ(loop_->live(), 0);
  EXPECT_TRUE(Eventually([&] { return metrics_->generation_tokens->value() == 11u; })) << "counted behind the step's events";
}

// What is so before the first step is shown before it.
TEST_F(EngineLoopTest, TiersAreThereFromTheStart) {
  engine_.mutable_stats()->kv_host = {.present = true, .blocks = 2};
  engine_.mutable_stats()->kv_disk = {.present = true, .blocks = 3};
  Start({});
  EXPECT_EQ(registry_.AddGauge("cachalot:kv_host_blocks", "")->value(), 2);
  EXPECT_EQ(registry_.AddGauge("cachalot:kv_disk_blocks", "")->value(), 3);
  EXPECT_EQ(loop_->GetSnapshot().stats.kv_disk.blocks, 3);
}

// An engine may wait for its tiers within a step.
TEST_F(EngineLoopTest, WhatComesInWakesTheEngine) {
  Start({});
  const auto wakes = [this](const std::function<void()>& call) {
    const int before = engine_.num_wakes;
    call();
    return engine_.num_wakes > before;
  };
  uint64_t ticket = 0;
  EXPECT_TRUE(wakes([&] { ticket = Ask(1000000); }));
  EXPECT_TRUE(wakes([&] { loop_->Cancel(ticket); }));
  EXPECT_TRUE(wakes([&] { loop_->Post([](Engine*) { return [] {}; }); }));
  EXPECT_TRUE(wakes([&] { loop_->CancelAll(); }));
  EXPECT_TRUE(wakes([&] { loop_->Stop(); }));
}

TEST_F(EngineLoopTest, TheQueueIsBounded) {
  Start({.max_waiting = 2, .max_seqs = 1});
  engine_.stall = true;
  Ask(1, 3);
  const Status full = loop_->Reserve(1);
  EXPECT_EQ(full.code(), StatusCode::kExhausted);
  EXPECT_GE(loop_->RetryAfterSeconds(), 1);
  engine_.stall = false;
  engine_.hold.release();
  EXPECT_TRUE(Eventually([&] { return finished_ == 3; }));
  EXPECT_TRUE(loop_->Reserve(3).ok());
}

TEST_F(EngineLoopTest, RefusedRequestsEndWithTheReason) {
  Start({.max_seqs = 2});
  ASSERT_TRUE(loop_->Reserve(2).ok());
  Request request;
  request.n = 2;
  loop_->Submit(std::move(request), SinkOf([this](const TokenEvent& event) {
    EXPECT_EQ(event.error.code(), StatusCode::kInvalidArgument);
    ++finished_;
  }));
  EXPECT_TRUE(Eventually([&] { return finished_ == 2; }));
  EXPECT_EQ(loop_->live(), 0);
}

TEST_F(EngineLoopTest, HealthTurnsRedWhileAStepHangs) {
  Start({.max_seqs = 1, .stall_us = 20'000});
  EXPECT_TRUE(loop_->Health().ok());
  engine_.stall = true;
  Ask(1);
  EXPECT_TRUE(Eventually([&] { return loop_->Health().code() == StatusCode::kDeadline; }));
  engine_.stall = false;
  engine_.hold.release();
  EXPECT_TRUE(Eventually([&] { return finished_ == 1 && loop_->Health().ok(); }));
  // Without work there is nothing to wait for, however long.
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  EXPECT_TRUE(loop_->Health().ok());
}

TEST_F(EngineLoopTest, ABrokenEngineFailsEverythingAndSaysSo) {
  Start({.max_seqs = 2});
  engine_.stall = true;
  Ask(5, 2);
  engine_.broken = true;
  engine_.stall = false;
  engine_.hold.release();
  EXPECT_TRUE(Eventually([&] { return errors_ == 2; }));
  EXPECT_TRUE(Eventually([&] { return !loop_->Health().ok(); }));
  EXPECT_FALSE(loop_->Reserve(1).ok());
  EXPECT_EQ(loop_->live(), 0);
}

TEST_F(EngineLoopTest, CancelAndStop) {
  Start({.max_seqs = 2});
  engine_.stall = true;
  const uint64_t first = Ask(1 << 20);
  Ask(1 << 20);
  loop_->Cancel(first);
  loop_->Cancel(12345);
  engine_.stall = false;
  engine_.hold.release();
  EXPECT_TRUE(Eventually([&] { return finished_ == 1; }));
  EXPECT_EQ(last_reason_, FinishReason::kCancelled);
  loop_->Stop();
  EXPECT_EQ(finished_, 2);
  EXPECT_EQ(loop_->Reserve(1).code(), StatusCode::kCancelled);
  EXPECT_EQ(loop_->live(), 0);
}

}  // namespace
}  // namespace cachalot
