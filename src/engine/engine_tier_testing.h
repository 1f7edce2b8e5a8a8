// EngineTierTest: the KV tiers under an engine, over a fake device whose answers depend on what its blocks
// hold.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "engine/engine_testing.h"
#include "sched/fake_device.h"

namespace cachalot {

class EngineTierTest : public EngineTest {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(::testing::TempDir()) / fmt::format("cachalot_engine_tier_{}", ::getpid());
    std::filesystem::remove_all(dir_);
  }
  void TearDown() override {
    engine_.reset();
    std::filesystem::remove_all(dir_);
  }
  // A new engine over a new device: as after a restart.
  void Restart(int32_t depth = 0, int32_t num_blocks = 256, SchedulerTrace* trace = nullptr) {
    engine_.reset();
    ExecutorInfo info = Info(num_blocks, depth);
    for (KvGroupInfo& group : info.kv_groups) {
      group.block_bytes = group.block_tokens * FakeDevice::kCellBytes;
      group.on_device = on_device_;
    }
    if (on_both_sides_) {  // the first group's blocks are large, and on the host
      info.kv_groups[0].block_bytes = kLargeBlock;
      info.kv_groups[0].on_device = false;
    }
    info.kv_identity = identity_;
    info.kv_on_device = on_device_;
    info_ = info;
    EngineOptions options;
    options.kv_host_bytes =
        host_blocks_ * (on_both_sides_ ? kLargeBlock + 8 * FakeDevice::kCellBytes : kBytesOfBlocks);
    if (has_disk_) options.kv_disk_dir = dir_.string();
    options.kv_disk_bytes = max_bytes_;
    options.clock = &clock_;  // a slow disk is waited for
    options.trace = trace;
    Create(info, options);
  }
  const KvTierStats& stats() { return engine_->stats().kv_disk; }
  const KvTierStats& host() { return engine_->stats().kv_host; }
  // A block of each group.
  static constexpr int64_t kBytesOfBlocks = 12 * FakeDevice::kCellBytes;
  static constexpr int64_t kLargeBlock = 1 << 20;

  std::filesystem::path dir_;
  int64_t max_bytes_ = 1 << 20;
  bool has_disk_ = true;
  bool on_device_ = false;  // then copies are late
  bool on_both_sides_ = false;
  int64_t host_blocks_ = 0;  // of each group; 0: no tier in the host's memory
  ManualClock clock_;
  std::string identity_ = "model-a";
  ExecutorInfo info_;
};

}  // namespace cachalot
