// KvTier: the tiers below the prefix cache, on the engine's thread but never waiting for a copy or the disk while anything else
// can be done. Everything goes through blocks in the host's memory (kv/kv_host.h): where the cache is on a device they are a tier
// of their own, of the size that was asked for; and they are the only way to the disk and back. What commits make known is copied out
// beside the steps, and from there written; a request whose prefix is below stands aside while it is read, and the step that
// reads it waits for the copies on the device. At the start, while nobody waits, what the disk has comes back into the host's memory, as far
// as there is room there.
// Invariants: a step that reads a block waits for what fills it. Nothing below makes a request fail. A request is promoted, and
// stands aside, only while that promises to be faster than computing (IsWorthReading), and for no longer than half of what that would take.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/host_memory.h"
#include "kv/kv_disk.h"
#include "kv/kv_host.h"
#include "runtime/executor.h"
#include "sched/scheduler.h"

namespace cachalot {

// Rates of 0 are not known yet: then it is tried, which measures them.
struct ReadOrCompute {
  int64_t read_bytes = 0;  // from the disk, also those that others wait for
  double bytes_per_second = 0;
  int64_t copy_bytes = 0;  // from the host's memory: so too
  double copy_bytes_per_second = 0;
  int64_t compute_tokens = 0;
  double tokens_per_second = 0;
};
// Reading takes at most half of the time.
bool IsWorthReading(const ReadOrCompute& choice);
// How long a read may take.
int64_t PatienceUs(const ReadOrCompute& choice);

struct KvTierOptions {
  int64_t host_bytes = 0;  // 0: no tier in the host's memory
  KvDiskOptions disk;      // dir "": none
  MakeEvictionPolicy make_policy = {};  // of the host's blocks
};

class KvTier {
 public:
  // Executor, scheduler and clock outlive it.
  static Result<std::unique_ptr<KvTier>> Open(const KvTierOptions& options, StepExecutor* executor, Scheduler* scheduler, const Clock* clock);
  // What is on its way to the disk is written, as far as that takes two seconds.
  ~KvTier();

  // Before a plan: takes what has ended, saves what has become known, looks newcomers up and brings what they need. An error is
  // the executor's.
  Status Seek();
  // Sequences stand aside.
  bool IsAwaited() const { return !promotions_.empty(); }
  // Something is under way.
  bool HasWork() const {
    return IsAwaited() || !transfers_.empty() || !published_.empty() || !unwritten_.empty() || !returning_.empty() || !readings_.empty();
  }
  // There is nothing else to do: until something has ended, or Wake, or some milliseconds.
  void Wait();
  // From any thread: whoever waits goes on.
  void Wake();
  // The time that a step took, if it was one of prompts.
  void ObserveStep(int32_t prompt_tokens, int32_t decode_tokens, int64_t step_us);
  // The sequence is about to be removed.
  void Leave(const Sequence* seq);
  // The executor lost what it held, and what it was copying.
  void Abandon();
  // Everything is forgotten, on the disk too.
  void Flush();
  KvTierStats host_stats() const;
  KvTierStats disk_stats() const;

 private:
  struct Piece {
    TierBlock what;
    int32_t host = kNoBlock;  // held by this piece as soon as it has arrived
    bool from_host = false;
  };
  struct Promotion {
    uint64_t id = 0;
    Sequence* seq = nullptr;
    std::vector<Piece> pieces = {};
    size_t num_started = 0;
    size_t num_moved = 0;
    int64_t end_us = 0;  // then it is given up
  };
  // Under way between a block and the host.
  struct Moving {
    PublishedBlock block;
    int32_t host = kNoBlock;
    bool into_block = false;
    uint64_t generation = 0;
  };
  struct Reading {
    uint64_t promotion = 0;
    size_t piece = 0;
    PublishedBlock block;
  };

  KvTier(const KvTierOptions& options, HostMemory memory, std::vector<KvGroupInfo> groups, StepExecutor* executor, Scheduler* scheduler,
         const Clock* clock);
  int64_t BlockBytes(int32_t group) const { return executor_->info().kv_groups[static_cast<size_t>(group)].block_bytes; }
  bool IsOnDevice(int32_t group) const { return executor_->info().kv_groups[static_cast<size_t>(group)].on_device; }
  static uint64_t TagOf(int32_t group, int32_t host) { return static_cast<uint64_t>(group) << 32 | static_cast<uint32_t>(host); }
  static uint64_t NumberOf(const TierBlock& block) { return block.key.low ^ static_cast<uint64_t>(block.group) << 56; }
  bool IsCached(const TierBlock& block) const { return scheduler_->blocks().pool(block.group).index()->Find(block.key) != kNoBlock; }
  // What the host itself may copy between two steps, each way, so that nobody waits long.
  int64_t HostRoom() const;
  KvTierStats* Counts(bool host) { return &counted_[host && has_host_ ? 0 : 1]; }

  // From the cache downwards (kv_tier_save.cc).
  Status TakeTransfers();
  void Save();
  bool SaveBlock(const PublishedBlock& block);
  void CountRefused(const TierBlock& what);
  void WriteMore();
  void WriteToDisk(const TierBlock& block, int32_t host);
  Status Start();
  void Drain();
  // And up.
  void TakeDone();
  void LookUp(Sequence* seq);
  void Promote(Sequence* seq, std::span<const BlockKey> keys, int32_t num_cached, bool with_disk);
  ReadOrCompute Weigh(const Promotion& promotion) const;
  void AddBytes(const Promotion& promotion, ReadOrCompute* choice) const;
  void StartReads();
  void Return();
  void Read(const PublishedBlock& block, uint64_t promotion, size_t piece, int32_t host);
  void MoveArrived();
  void Cut(Promotion* promotion, size_t num_pieces);
  void End(size_t idx);
  Promotion* FindPromotion(uint64_t id);

  StepExecutor* const executor_;
  Scheduler* const scheduler_;
  const Clock& clock_;
  const bool has_host_;
  const HostMemory memory_;
  KvHost host_;
  std::unique_ptr<KvDisk> disk_;  // null: none. It goes first: its threads use the memory

  std::vector<PublishedBlock> published_;  // and not saved yet
  std::deque<TierBlock> unwritten_;        // that are in the host's memory, and not on the disk yet
  std::vector<BlockTransfer> batch_;       // to be started,
  std::vector<Moving> batched_;
  std::deque<Moving> transfers_;           // and those that were, oldest first
  std::unordered_set<uint64_t> saving_;    // blocks that are copied out
  int64_t num_taken_ = 0;                  // transfers that have ended
  int64_t out_bytes_ = 0;                  // of transfers out of blocks
  int64_t save_room_ = 0;                  // what the host may still copy out of blocks in front of the next step
  uint64_t generation_ = 0;                // what was being copied out before is void

  std::vector<Promotion> promotions_;      // in the order in which they began
  std::deque<TierBlock> returning_;        // that were on the disk at the start, and nobody has asked for yet
  std::unordered_map<uint64_t, Reading> readings_;  // by tag
  std::vector<KvDisk::Done> done_;
  std::vector<TierBlock> listed_;
  uint64_t last_id_ = 0;
  int64_t reading_bytes_ = 0;
  int64_t last_read_us_ = 0;
  int64_t last_step_us_ = 0;
  double step_tokens_ = 0, step_seconds_ = 0;
  KvTierStats counted_[2];                 // of the host's memory, the disk
};

}  // namespace cachalot
