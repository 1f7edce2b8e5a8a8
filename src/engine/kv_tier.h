// KvTier: moves KV blocks between the prefix cache and the disk, on the engine's thread but never waiting for the disk
// while anything else can be done. What commits make known is written behind; a request whose prefix is on the disk stands
// aside while it is read, others run meanwhile.
// Invariants: a block is filled before any plan can name it. Nothing on the disk makes a request fail. A request waits
// only while that promises to be faster than computing (IsWorthReading), and for no longer than half of what that would
// take.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "kv/kv_disk.h"
#include "runtime/executor.h"
#include "sched/scheduler.h"

namespace cachalot {

// Rates of 0 are not known yet: then it is tried, which measures them.
struct ReadOrCompute {
  int64_t read_bytes = 0;  // also those that others wait for
  double bytes_per_second = 0;
  int64_t compute_tokens = 0;
  double tokens_per_second = 0;
};
// Reading takes at most half of the time.
bool IsWorthReading(const ReadOrCompute& choice);
// How long a read may take.
int64_t PatienceUs(const ReadOrCompute& choice);

class KvTier {
 public:
  // Executor, scheduler and clock outlive it.
  static Result<std::unique_ptr<KvTier>> Open(const KvDiskOptions& options, StepExecutor* executor, Scheduler* scheduler, const Clock* clock);

  // Before a plan: looks newcomers up, and puts into the cache what has been read since.
  void Seek();
  // Sequences stand aside.
  bool IsAwaited() const { return !promotions_.empty(); }
  // There is nothing else to do: until something has been read, or some milliseconds.
  void Wait();
  // Behind a commit, before the next plan.
  void Save();
  // The time that a step took, if it was one of prompts.
  void ObserveStep(int32_t prompt_tokens, int32_t decode_tokens, int64_t step_us);
  // The sequence is about to be removed.
  void Leave(const Sequence* seq);
  // The executor lost what it held.
  void Abandon();
  // Everything is forgotten, on the disk too.
  void Flush();
  KvTierStats stats() const;

 private:
  struct Promotion {
    uint64_t ticket = 0;
    Sequence* seq = nullptr;
    std::vector<TierBlock> blocks = {};
    size_t num_started = 0;
    size_t num_ended = 0;
    int64_t end_us = 0;  // then it is given up
  };

  KvTier(std::unique_ptr<KvDisk> disk, StepExecutor* executor, Scheduler* scheduler, const Clock* clock);
  int64_t BlockBytes(int32_t group) const { return executor_->info().kv_groups[static_cast<size_t>(group)].block_bytes; }
  int64_t SumBytes(const Promotion& promotion) const;
  void LookUp(Sequence* seq);
  void SaveCached(std::span<const BlockKey> page_keys, int32_t num_tokens);
  void SaveBlock(int32_t group, int32_t block, const BlockKey& key);
  void StartReads();
  void TakeReads();
  bool Take(Promotion* promotion, const KvDisk::Read& read);
  void End(size_t idx);

  const std::unique_ptr<KvDisk> disk_;
  StepExecutor* const executor_;
  Scheduler* const scheduler_;
  const Clock& clock_;
  std::vector<PublishedBlock> published_;
  std::vector<Promotion> promotions_;  // in the order in which they began
  std::vector<KvDisk::Read> reads_;    // taken from the disk's thread
  std::deque<KvDisk::Read> arrived_;
  uint64_t last_ticket_ = 0;
  int64_t reading_bytes_ = 0;
  int64_t last_read_us_ = 0;
  double step_tokens_ = 0, step_seconds_ = 0;
  KvTierStats counted_;
};

}  // namespace cachalot
