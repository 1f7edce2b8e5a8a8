#include "server/long_work.h"

#include <gtest/gtest.h>

#include <semaphore>
#include <stdexcept>
#include <string>
#include <utility>

namespace cachalot {
namespace {

// Its thread is the test's.
class FakeExchange final : public Exchange {
 public:
  explicit FakeExchange(size_t body_bytes) { request_.body.assign(body_bytes, 'x'); }
  const HttpRequest& request() const override { return request_; }
  void Respond(HttpResponse response) override { statuses.push_back(response.status); }
  void StartStream(HttpResponse) override {}
  bool Write(std::string_view) override { return true; }
  void EndStream() override {}
  void Abort() override { aborted = true; }
  bool closed() const override { return false; }
  bool responded() const override { return !statuses.empty(); }
  void OnClosed(std::function<void()>) override {}
  void CallAfter(int32_t, std::function<void()>) override {}
  void Post(std::function<void()> fn) override {
    const std::lock_guard lock(mutex_);
    posted_ = std::move(fn);
    come_.release();
  }
  const void* loop() const override { return nullptr; }
  void RunPosted() {
    come_.acquire();
    std::function<void()> fn;
    {
      const std::lock_guard lock(mutex_);
      fn = std::exchange(posted_, nullptr);
    }
    fn();
  }

  std::vector<int> statuses;
  bool aborted = false;

 private:
  HttpRequest request_;
  std::mutex mutex_;
  std::function<void()> posted_;
  std::binary_semaphore come_{0};
};

LongWork::Prepare Answer(const std::shared_ptr<FakeExchange>& exchange, int status) {
  return [exchange, status]() -> LongWork::Finish {
    return [exchange, status] {
      HttpResponse response;
      response.status = status;
      exchange->Respond(std::move(response));
    };
  };
}

TEST(LongWork, ShortBodiesPassLongOnes) {
  LongWork work(1);
  const auto slow = std::make_shared<FakeExchange>(LongWork::kShortBody + 1), quick = std::make_shared<FakeExchange>(LongWork::kShortBody);
  std::binary_semaphore hold{0};
  work.Run(slow, [&]() -> LongWork::Finish {
    hold.acquire();
    return Answer(slow, 200)();
  });
  work.Run(quick, Answer(quick, 201));
  EXPECT_EQ(quick->statuses, (std::vector<int>{201}));
  EXPECT_TRUE(slow->statuses.empty());
  EXPECT_FALSE(work.idle());
  hold.release();
  slow->RunPosted();
  EXPECT_EQ(slow->statuses, (std::vector<int>{200}));
  EXPECT_TRUE(work.idle());
}

TEST(LongWork, ExceptionsCostOneRequest) {
  LongWork work(2);
  const auto throws = std::make_shared<FakeExchange>(1 << 20), late = std::make_shared<FakeExchange>(1 << 20), fine = std::make_shared<FakeExchange>(1 << 20);
  work.Run(throws, []() -> LongWork::Finish { throw std::runtime_error("memory"); });
  throws->RunPosted();
  EXPECT_EQ(throws->statuses, (std::vector<int>{500}));
  work.Run(late, [&]() -> LongWork::Finish {
    return [&] {
      Answer(late, 200)()();
      throw std::runtime_error("too late for a response");
    };
  });
  late->RunPosted();
  EXPECT_TRUE(late->aborted);
  work.Run(fine, Answer(fine, 200));
  fine->RunPosted();
  EXPECT_EQ(fine->statuses, (std::vector<int>{200}));
  EXPECT_TRUE(work.idle());
}

TEST(LongWork, WhoWaitsIsToldThatTheServerStops) {
  LongWork work(1);
  std::vector<std::shared_ptr<FakeExchange>> exchanges;
  for (int i = 0; i < 3; ++i) exchanges.push_back(std::make_shared<FakeExchange>(1 << 20));
  std::binary_semaphore begun{0}, hold{0};
  work.Run(exchanges[0], [&]() -> LongWork::Finish {
    begun.release();
    hold.acquire();
    return Answer(exchanges[0], 200)();
  });
  begun.acquire();
  work.Run(exchanges[1], Answer(exchanges[1], 200));
  work.Run(exchanges[2], Answer(exchanges[2], 200));
  std::thread stopper([&] { work.Stop(); });
  hold.release();
  stopper.join();
  // The first was being worked on; whether the second was begun before the end is nobody's choice.
  for (const auto& exchange : exchanges) exchange->RunPosted();
  EXPECT_EQ(exchanges[0]->statuses, (std::vector<int>{200}));
  for (const auto& exchange : exchanges) {
    ASSERT_EQ(exchange->statuses.size(), 1u);
    EXPECT_TRUE(exchange->statuses[0] == 200 || exchange->statuses[0] == 503);
  }
  EXPECT_TRUE(work.idle());
  // And who comes later.
  const auto later = std::make_shared<FakeExchange>(1 << 20);
  work.Run(later, Answer(later, 200));
  EXPECT_EQ(later->statuses, (std::vector<int>{503}));
}

}  // namespace
}  // namespace cachalot
