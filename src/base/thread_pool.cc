#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cachalot {
namespace {

// How long a worker spins for the next loop before it sleeps. Within a step the gaps between two loops are a few
// microseconds; a sleep costs about 50 us to wake from. Longer spinning would steal time from other processes.
constexpr auto kSpin = std::chrono::microseconds(100);

// running_ while a loop takes workers in; the rest of it counts those inside.
constexpr uint32_t kOpen = uint32_t{1} << 31;

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits until `value` differs from `old`: spins, then sleeps in the kernel.
uint32_t WaitForChange(std::atomic<uint32_t>& value, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      Pause();
    }
    if (std::chrono::steady_clock::now() >= deadline) break;
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(std::max(1, num_threads)), num_ranges_(std::min(num_threads_, kMaxRanges)) {
  workers_.reserve(num_threads_ - 1);
  for (int i = 1; i < num_threads_; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::Drain(int thread_idx) {
  const int first = thread_idx * num_ranges_ / num_threads_;
  for (int i = 0; i < num_ranges_; ++i) {
    Range& range = ranges_[(first + i) % num_ranges_];
    while (range.next.load(std::memory_order_relaxed) < range.end) {
      const int64_t index = range.next.fetch_add(1, std::memory_order_relaxed);
      if (index < range.end) task_(context_, index, thread_idx);
    }
  }
}

// A worker that comes late finds its loop closed, or another one open, which it then helps with: on a busy machine a
// loop waits for workers that have begun something, never for one that has no processor yet.
void ThreadPool::Work(int thread_idx) {
  uint32_t seen = 0;
  for (;;) {
    seen = WaitForChange(epoch_, seen);
    if (stop_.load(std::memory_order_acquire)) return;
    uint32_t state = running_.load(std::memory_order_relaxed);
    while ((state & kOpen) != 0 && !running_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
    }
    if ((state & kOpen) == 0) continue;
    Drain(thread_idx);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();  // closed, and the last
  }
}

void ThreadPool::Run(int64_t count, Task task, void* context) {
  task_ = task;
  context_ = context;
  for (int i = 0; i < num_ranges_; ++i) {
    ranges_[i].next.store(count * i / num_ranges_, std::memory_order_relaxed);
    ranges_[i].end = count * (i + 1) / num_ranges_;
  }
  running_.store(kOpen, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  Drain(0);
  uint32_t left = running_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  while (left != 0) left = WaitForChange(running_, left);
}

}  // namespace cachalot
