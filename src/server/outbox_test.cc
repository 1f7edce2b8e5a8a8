#include "server/outbox.h"

#include <gtest/gtest.h>

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

TEST(Outbox, OnePieceForEachLoopInOrder) {
  std::vector<std::function<void()>> posted;
  int loops[2] = {};
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (int i = 0; i < 6; ++i) exchanges.push_back(std::make_shared<FakeExchange>(&loops[i % 2], &posted));
  Outbox outbox;
  outbox.Flush();
  EXPECT_TRUE(posted.empty());
  std::vector<int> ran;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 6; ++i) outbox.Add(exchanges[static_cast<size_t>(i)], [&ran, i] { ran.push_back(i); });
    outbox.Flush();
    ASSERT_EQ(posted.size(), 2u);
    for (const auto& fn : posted) fn();
    EXPECT_EQ(ran, (std::vector<int>{0, 2, 4, 1, 3, 5}));
    ran.clear();
    posted.clear();
  }
  EXPECT_EQ(exchanges[0].use_count(), 1) << "nobody is kept";
}

}  // namespace
}  // namespace cachalot
