#include "server/outbox.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cachalot {
namespace {

class FakeExchange final : public Exchange {
 public:
  FakeExchange(const void* loop_in, std::vector<std::function<void()>>* posted) : loop_(loop_in), posted_(posted) {}
  const HttpRequest& request() const override { return request_; }
  void Respond(HttpResponse) override {}
  void StartStream(HttpResponse) override {}
  bool Write(std::string_view) override { return true; }
  void EndStream() override {}
  void Abort() override {}
  bool closed() const override { return false; }
  bool responded() const override { return false; }
  void OnClosed(std::function<void()>) override {}
  void CallAfter(int32_t, std::function<void()>) override {}
  void Post(std::function<void()> fn) override { posted_->push_back(std::move(fn)); }
  const void* loop() const override { return loop_; }

 private:
  HttpRequest request_;
  const void* const loop_;
  std::vector<std::function<void()>>* const posted_;
};

class FakeReceiver final : public EventReceiver {
 public:
  void Take(size_t choice, TokenEvent& event) override { taken.emplace_back(choice, std::move(event)); }
  void Flush() override { num_at_flush.push_back(taken.size()); }
  std::vector<std::pair<size_t, TokenEvent>> taken;
  std::vector<size_t> num_at_flush;
};

// What they post too.
void RunAll(std::vector<std::function<void()>>* posted) {
  for (size_t i = 0; i < posted->size(); ++i) {
    const std::function<void()> fn = (*posted)[i];
    fn();
  }
  posted->clear();
}

TokenEvent Event(int32_t token, std::string text) {
  TokenEvent event;
  event.token_ids = {token, token + 1};
  event.text = std::move(text);
  event.time_us = token * 10;
  event.queue_us = 5;
  event.num_prompt_computed = token + 2;
  event.num_cached_tokens = token + 3;
  event.num_reasoning_tokens = token + 4;
  return event;
}

TEST(Outbox, OnePieceForEachLoopInOrder) {
  std::vector<std::function<void()>> posted;
  int loops[2] = {};
  std::vector<std::shared_ptr<Exchange>> exchanges;
  std::vector<std::shared_ptr<FakeReceiver>> receivers;
  for (int i = 0; i < 6; ++i) {
    exchanges.push_back(std::make_shared<FakeExchange>(&loops[i % 2], &posted));
    receivers.push_back(std::make_shared<FakeReceiver>());
  }
  Outbox outbox;
  outbox.Flush();
  EXPECT_TRUE(posted.empty());
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 6; ++i) {
      for (int32_t part = 0; part < 2; ++part) {
        outbox.Add(exchanges[i], exchanges[i]->loop(), receivers[i], i, Event(100 * round + static_cast<int32_t>(i) + 10 * part, part == 0 ? "" : "text"));
      }
    }
    outbox.Flush();
    ASSERT_EQ(posted.size(), 1u) << "one loop is woken, and wakes the other";
    RunAll(&posted);
    for (size_t i = 0; i < 6; ++i) {
      auto& taken = receivers[i]->taken;
      ASSERT_EQ(taken.size(), 2u);
      for (int32_t part = 0; part < 2; ++part) {
        const auto& [choice, event] = taken[static_cast<size_t>(part)];
        const int32_t token = 100 * round + static_cast<int32_t>(i) + 10 * part;
        EXPECT_EQ(choice, i);
        EXPECT_EQ(event.token_ids, (std::vector<int32_t>{token, token + 1}));
        EXPECT_EQ(event.text, part == 0 ? "" : "text");
        EXPECT_EQ(event.time_us, token * 10);
        EXPECT_EQ(event.queue_us, 5);
        EXPECT_EQ(event.num_prompt_computed, token + 2);
        EXPECT_EQ(event.num_cached_tokens, token + 3);
        EXPECT_EQ(event.num_reasoning_tokens, token + 4);
        EXPECT_FALSE(event.finished);
      }
      EXPECT_EQ(receivers[i]->num_at_flush, (std::vector<size_t>{2, 2})) << "behind all that came together";
      taken.clear();
      receivers[i]->num_at_flush.clear();
    }
  }
  EXPECT_EQ(exchanges[0].use_count(), 1) << "nobody is kept";
  EXPECT_EQ(receivers[0].use_count(), 1);
}

TEST(Outbox, LogprobsEndsAndErrorsArriveWhole) {
  std::vector<std::function<void()>> posted;
  int loop = 0;
  std::shared_ptr<Exchange> exchange = std::make_shared<FakeExchange>(&loop, &posted);
  auto receiver = std::make_shared<FakeReceiver>();
  const FakeReceiver* seen = receiver.get();
  std::weak_ptr<FakeReceiver> weak = receiver;
  Outbox outbox;
  TokenEvent event = Event(1, "a");
  event.logprobs = {-1, -2};
  event.top_logprobs = {{{7, -1.0f}}, {}};
  outbox.Add(exchange, &loop, receiver, 0, event);
  outbox.Add(exchange, &loop, receiver, 1, Event(3, "b"));
  event = Event(5, "c");
  event.finished = true;
  event.finish_reason = FinishReason::kError;
  event.error = Internal("why");
  outbox.Add(exchange, &loop, receiver, 0, event);
  receiver.reset();  // as the loop does behind the last event
  outbox.Flush();
  outbox.Flush();
  ASSERT_EQ(posted.size(), 1u);
  ASSERT_FALSE(weak.expired());
  const auto keeper = weak.lock();
  posted[0]();
  ASSERT_EQ(seen->taken.size(), 3u);
  EXPECT_EQ(seen->taken[0].second.logprobs, (std::vector<float>{-1, -2}));
  ASSERT_EQ(seen->taken[0].second.top_logprobs.size(), 2u);
  EXPECT_EQ(seen->taken[0].second.top_logprobs[0][0].token_id, 7);
  EXPECT_EQ(seen->taken[1].first, 1u);
  EXPECT_EQ(seen->taken[1].second.text, "b");
  EXPECT_TRUE(seen->taken[2].second.finished);
  EXPECT_EQ(seen->taken[2].second.error.message(), "why");
  EXPECT_EQ(keeper.use_count(), 1);
}

// The thread of a loop is slower than the engine's: it is woken once, and finds all.
TEST(Outbox, WhatIsNotTakenYetWaitsInOrder) {
  std::vector<std::function<void()>> posted;
  int loop = 0;
  const std::shared_ptr<Exchange> exchange = std::make_shared<FakeExchange>(&loop, &posted);
  const auto receiver = std::make_shared<FakeReceiver>();
  Outbox outbox;
  for (int32_t step = 0; step < 20; ++step) {
    outbox.Add(exchange, &loop, receiver, 0, Event(step, "x"));
    outbox.Flush();
  }
  ASSERT_EQ(posted.size(), 1u);
  posted[0]();
  ASSERT_EQ(receiver->taken.size(), 20u);
  for (int32_t step = 0; step < 20; ++step) EXPECT_EQ(receiver->taken[static_cast<size_t>(step)].second.token_ids[0], step);
  outbox.Add(exchange, &loop, receiver, 0, Event(20, "x"));
  outbox.Flush();
  EXPECT_EQ(posted.size(), 2u);
}

// A loop is busy that was to wake another one: that waits for no more than a step.
TEST(Outbox, ABusyLoopHoldsUpOthersForOneStepOnly) {
  std::vector<std::function<void()>> posted, busy;
  int loops[2] = {};
  const std::shared_ptr<Exchange> first = std::make_shared<FakeExchange>(&loops[0], &busy), second = std::make_shared<FakeExchange>(&loops[1], &posted);
  const auto receivers = std::make_pair(std::make_shared<FakeReceiver>(), std::make_shared<FakeReceiver>());
  Outbox outbox;
  for (int32_t step = 0; step < 6; ++step) {
    outbox.Add(first, &loops[0], receivers.first, 0, Event(step, "x"));
    outbox.Add(second, &loops[1], receivers.second, 0, Event(step, "y"));
    outbox.Flush();
    EXPECT_EQ(busy.size(), 1u);
    RunAll(&posted);
    EXPECT_EQ(receivers.second->taken.size(), step == 0 ? 0u : static_cast<size_t>(step) + 1);
  }
  RunAll(&busy);
  RunAll(&posted);
  EXPECT_EQ(receivers.first->taken.size(), 6u);
  ASSERT_EQ(receivers.second->taken.size(), 6u);
  for (int32_t step = 0; step < 6; ++step) EXPECT_EQ(receivers.second->taken[static_cast<size_t>(step)].second.token_ids[0], step);
}

TEST(Outbox, TokensAloneArriveLikeOtherEventsAndAmongThem) {
  std::vector<std::function<void()>> posted;
  int loop = 0;
  const std::shared_ptr<Exchange> exchange = std::make_shared<FakeExchange>(&loop, &posted);
  const auto receiver = std::make_shared<FakeReceiver>();
  Outbox outbox;
  for (int round = 0; round < 2; ++round) {
    outbox.Add(exchange, &loop, receiver, 4, Event(1, "x"));
    outbox.AddTokens(exchange, &loop, receiver.get(), 0, std::vector<int32_t>{7}, 100);
    outbox.AddTokens(exchange, &loop, receiver.get(), 1, std::vector<int32_t>{8, 9, 10}, 100);
    outbox.AddTokens(exchange, &loop, receiver.get(), 2, std::vector<int32_t>{11}, 101);
    outbox.Add(exchange, &loop, receiver, 4, Event(3, "y"));
    outbox.AddTokens(exchange, &loop, receiver.get(), 3, {}, 100);
    outbox.AddTokens(exchange, &loop, receiver.get(), (1u << 30) - 1, std::vector<int32_t>{12}, 100);
    outbox.Flush();
    ASSERT_EQ(posted.size(), 1u);
    posted[0]();
    posted.clear();
    const std::vector<size_t> choices = {4, 0, 1, 2, 4, 3, (1u << 30) - 1};
    const std::vector<std::vector<int32_t>> tokens = {{1, 2}, {7}, {8, 9, 10}, {11}, {3, 4}, {}, {12}};
    const std::vector<int64_t> times = {10, 100, 100, 101, 30, 100, 100};
    ASSERT_EQ(receiver->taken.size(), choices.size());
    for (size_t i = 0; i < choices.size(); ++i) {
      const auto& [choice, event] = receiver->taken[i];
      EXPECT_EQ(choice, choices[i]);
      EXPECT_EQ(event.token_ids, tokens[i]);
      EXPECT_EQ(event.time_us, times[i]);
      EXPECT_EQ(event.text, i == 0 ? "x" : i == 4 ? "y" : "");
      EXPECT_EQ(event.queue_us, choice == 4 ? 5 : 0);
    }
    receiver->taken.clear();
  }
}

}  // namespace
}  // namespace cachalot
