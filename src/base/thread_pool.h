// A pool that runs one parallel loop at a time, without allocating: made for kernels of tens of microseconds.
// Invariant: when ParallelFor returns, every index has run once and no worker touches the caller's data.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace cachalot {

class ThreadPool {
 public:
  // num_threads counts the caller: a pool of 1 has no workers.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(index, thread_idx) for index in [0, count); thread_idx is in [0, num_threads). A thread works
  // through a range of its own, in order, so that it may ask memory for what comes next, and then helps with
  // the others', whose indices may be smaller. Not reentrant: fn must not call ParallelFor.
  template <typename Fn>
  void ParallelFor(int64_t count, Fn&& fn) {
    if (count <= 0) return;
    if (num_threads_ == 1 || count == 1) {
      for (int64_t i = 0; i < count; ++i) fn(i, 0);
      return;
    }
    Run(
        count,
        [](void* context, int64_t index, int thread_idx) {
          (*static_cast<std::remove_reference_t<Fn>*>(context))(index, thread_idx);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Task = void (*)(void* context, int64_t index, int thread_idx);

  // Of many threads several share a range: whoever is out of work looks at all of them.
  static constexpr int kMaxRanges = 8;
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void Run(int64_t count, Task task, void* context);
  void Work(int thread_idx);
  void Drain(int thread_idx);

  const int num_threads_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  const int num_ranges_;
  Range ranges_[kMaxRanges];
  alignas(64) std::atomic<uint32_t> epoch_{0};    // a new value starts a loop
  alignas(64) std::atomic<uint32_t> running_{0};  // workers still inside the loop
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace cachalot
