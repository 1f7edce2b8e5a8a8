// Clock: the time as whatever decides by it sees it, so that tests and replays can put their own in its
// place.
#pragma once

#include <chrono>
#include <cstdint>

namespace cachalot {

class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since some fixed point; never backwards.
  virtual int64_t NowUs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowUs() const override {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Stands still until it is told to go on.
class ManualClock final : public Clock {
 public:
  int64_t NowUs() const override { return now_us_; }
  void Advance(int64_t us) { now_us_ += us; }

 private:
  int64_t now_us_ = 0;
};

}  // namespace cachalot
