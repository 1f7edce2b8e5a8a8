// LongWork: what a long body takes (a million tokens take seconds) is done on threads of its own, so that streams, health
// checks and new connections do not wait behind it. Short ones are worked on at once.
// Invariant: each exchange gets its answer on its own thread, also when the server stops: then it is a 503.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/http_server.h"

namespace cachalot {

class LongWork {
 public:
  // What is left to do on the exchange's thread: the answer.
  using Finish = std::function<void()>;
  // Anywhere; of the exchange only the request may be looked at.
  using Prepare = std::function<Finish()>;

  static constexpr size_t kShortBody = 4 << 10;  // bytes; they take a few milliseconds

  explicit LongWork(int32_t num_threads);
  ~LongWork() { Stop(); }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  // On the exchange's thread.
  void Run(const std::shared_ptr<Exchange>& exchange, Prepare prepare);
  // Nothing waits, is worked on, or is on its way back.
  bool idle() const { return num_pending_ == 0; }
  // Whoever waits is told; returns when what is being worked on is done.
  void Stop();

 private:
  struct Job {
    std::shared_ptr<Exchange> exchange;
    Prepare prepare;
  };
  void Work();

  std::atomic<int64_t> num_pending_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;   // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

// A handler threw: memory ran out, or it is a mistake of ours. This request only is lost. On the exchange's thread.
void AnswerException(const std::shared_ptr<Exchange>& exchange, const char* what);

}  // namespace cachalot
