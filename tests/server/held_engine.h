// Forwards to an engine that a test holds and releases, so that what is to happen while a request runs does not depend on
// how fast either is.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace cachalot {

class HeldEngine final : public Engine {
 public:
  explicit HeldEngine(Engine* engine) : engine_(engine) {}

  // From any thread. After so many steps more, until Release, steps bring nothing;
  void Hold(int64_t after_steps = 0) { Set(after_steps, /*stands=*/false); }
  // or do not end.
  void Stand(int64_t after_steps = 0) { Set(after_steps, /*stands=*/true); }
  void Release() { Set(kAny, false); }
  int num_submitted() const { return num_submitted_.load(); }
  int num_cancelled() const { return num_cancelled_.load(); }
  // Whose requests have ended, in order.
  std::vector<std::string> ended_tenants() const {
    const std::lock_guard lock(mutex_);
    return ended_tenants_;
  }

  Result<uint64_t> Submit(Request request, OutputCallback on_output) override {
    const std::string tenant = request.tenant;
    auto id = engine_->Submit(std::move(request), [this, tenant, on_output = std::move(on_output)](const RequestOutput& output) {
      if (output.finished) {
        const std::lock_guard lock(mutex_);
        ended_tenants_.push_back(tenant);
      }
      on_output(output);
    });
    ++num_submitted_;
    return id;
  }
  void Cancel(uint64_t id) override {
    engine_->Cancel(id);
    ++num_cancelled_;
  }
  Status Step() override {
    {
      std::unique_lock lock(mutex_);
      if (steps_left_ == 0 && !stands_) {
        changed_.wait_for(lock, std::chrono::milliseconds(1));
        return Status::Ok();
      }
      changed_.wait(lock, [this] { return steps_left_ > 0; });
      if (steps_left_ != kAny) --steps_left_;
    }
    return engine_->Step();
  }
  void Wake() override { engine_->Wake(); }
  bool HasWork() const override { return engine_->HasWork(); }
  int32_t PinPrefix(std::span<const int32_t> prompt_ids, const std::string& cache_salt, bool pinned) override {
    return engine_->PinPrefix(prompt_ids, cache_salt, pinned);
  }
  void FlushCache() override { engine_->FlushCache(); }
  const EngineStats& stats() const override { return engine_->stats(); }
  const StepResult& last_result() const override { return engine_->last_result(); }

 private:
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

  void Set(int64_t steps, bool stands) {
    {
      const std::lock_guard lock(mutex_);
      steps_left_ = steps;
      stands_ = stands;
    }
    changed_.notify_all();
  }

  Engine* const engine_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t steps_left_ = kAny;               // guarded by mutex_
  bool stands_ = false;                     // guarded by mutex_
  std::vector<std::string> ended_tenants_;  // guarded by mutex_
  std::atomic<int> num_submitted_{0}, num_cancelled_{0};
};

}  // namespace cachalot
