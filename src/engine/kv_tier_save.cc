// KvTier: the way down. Blocks are saved when they become known, not when they give way: then the copy is beside a step that does
// not touch them, and whoever needs their place has it at once. The price is that the host's memory has twice what the device still has.
#include <algorithm>

#include "base/log.h"
#include "engine/kv_tier.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxOutBytes = 1 << 30;   // under way out of blocks: a promotion waits behind them, 20 ms at 50 GB/s
constexpr size_t kMaxPublished = 1 << 16;     // that wait to be saved; the oldest are left out
constexpr int64_t kDrainUs = 2'000'000;

}  // namespace

// Transfers that have ended.
Status KvTier::TakeTransfers() {
  if (transfers_.empty()) return Status::Ok();
  ASSIGN_OR_RETURN(const int64_t num_done, executor_->TransfersDone());
  for (; num_taken_ < num_done; ++num_taken_) {
    const Moving moving = transfers_.front();
    transfers_.pop_front();
    const TierBlock& what = moving.block.what;
    if (!moving.into_block) {
      out_bytes_ -= BlockBytes(what.group);
      saving_.erase(NumberOf(what));
      if (moving.generation == generation_) {
        host_.Fill(what.group, moving.host, what, moving.block.terms);
        ++counted_[0].written_blocks;
        counted_[0].written_bytes += BlockBytes(what.group);
        // A read may have brought it meanwhile: then that is the one that is known.
        if (const int32_t there = host_.Find(what.group, what.key); there != kNoBlock) WriteToDisk(what, there);
      }
    }
    host_.Release(what.group, moving.host);
  }
  return Status::Ok();
}

void KvTier::Save() {
  WriteMore();
  save_room_ = HostRoom();
  size_t num_saved = 0;
  while (num_saved < published_.size() && SaveBlock(published_[num_saved])) ++num_saved;
  if (published_.size() - num_saved > kMaxPublished) {
    const size_t num_left_out = published_.size() - num_saved - kMaxPublished;
    for (size_t i = 0; i < num_left_out; ++i) CountRefused(published_[num_saved + i].what);
    num_saved += num_left_out;
  }
  published_.erase(published_.begin(), published_.begin() + static_cast<ptrdiff_t>(num_saved));
}

// False: not now.
bool KvTier::SaveBlock(const PublishedBlock& block) {
  const auto& [group, key, parent, has_parent] = block.what;
  const bool to_disk = disk_ != nullptr && !disk_->Contains(group, key);
  const int32_t there = host_.Find(group, key);
  if (!to_disk && (there != kNoBlock || !has_host_)) return true;
  if (to_disk && !has_host_ && disk_->paused()) {
    disk_->CountRefused();
    return true;
  }
  // The host's memory is no reason to wait for the disk where it is a tier of its own.
  if (to_disk && !has_host_ && !disk_->HasRoom(group, out_bytes_)) return false;
  if (there != kNoBlock) {
    WriteToDisk(block.what, there);
    return true;
  }
  if (saving_.contains(NumberOf(block.what))) return true;
  const int32_t from = scheduler_->blocks().pool(group).index()->Find(key);
  if (from == kNoBlock) {  // it has given way
    CountRefused(block.what);
    return true;
  }
  if (out_bytes_ > 0 && out_bytes_ + BlockBytes(group) > kMaxOutBytes) return false;
  if (!IsOnDevice(group) && save_room_ <= 0) return false;
  const int32_t place = host_.Take(group);
  if (place == kNoBlock) return false;
  if (!IsOnDevice(group)) save_room_ -= BlockBytes(group);
  out_bytes_ += BlockBytes(group);
  saving_.insert(NumberOf(block.what));
  batch_.push_back({.group = group, .block = from, .into_block = false, .host = host_.Bytes(group, place).data()});
  batched_.push_back({.block = block, .host = place, .into_block = false, .generation = generation_});
  return true;
}

// It is not, or not everywhere, below.
void KvTier::CountRefused(const TierBlock& what) {
  if (has_host_ && host_.Find(what.group, what.key) == kNoBlock) ++counted_[0].refused_blocks;
  if (disk_ != nullptr && !disk_->Contains(what.group, what.key)) disk_->CountRefused();
}

// What waits in the host's memory for the disk, which is behind.
void KvTier::WriteMore() {
  for (; !unwritten_.empty(); unwritten_.pop_front()) {
    const TierBlock& block = unwritten_.front();
    const int32_t there = host_.Find(block.group, block.key);
    if (there == kNoBlock) disk_->CountRefused();  // it has given way
    else if (!disk_->paused() && !disk_->HasRoom(block.group)) return;
    else WriteToDisk(block, there);
  }
}

// Its place is the disk's until it is written.
void KvTier::WriteToDisk(const TierBlock& block, int32_t host) {
  if (disk_ == nullptr || disk_->Contains(block.group, block.key)) return;
  if (disk_->paused()) return disk_->CountRefused();
  if (!disk_->HasRoom(block.group)) {
    unwritten_.push_back(block);
    if (unwritten_.size() <= kMaxPublished) return;
    unwritten_.pop_front();
    return disk_->CountRefused();
  }
  host_.Hold(block.group, host, {.again = true});
  disk_->Write(TagOf(block.group, host), block.group, block.key, host_.Bytes(block.group, host));
}

Status KvTier::Start() {
  if (batch_.empty()) return Status::Ok();
  const Status status = executor_->StartTransfers(batch_);
  for (const Moving& moving : batched_) {
    if (status.ok()) {
      transfers_.push_back(moving);
      continue;
    }
    if (!moving.into_block) {
      out_bytes_ -= BlockBytes(moving.block.what.group);
      saving_.erase(NumberOf(moving.block.what));
    }
    host_.Release(moving.block.what.group, moving.host);
  }
  batch_.clear();
  batched_.clear();
  return status;
}

// What is under way to the disk, for a while; what is in the host's memory goes with the process.
void KvTier::Drain() {
  promotions_.clear();  // whose sequences may have gone
  returning_.clear();
  if (disk_ == nullptr) return;
  std::erase_if(published_, [this](const PublishedBlock& block) { return disk_->Contains(block.what.group, block.what.key); });
  const int64_t end_us = SteadyClock().NowUs() + kDrainUs;
  while (HasWork() && SteadyClock().NowUs() < end_us) {
    Status status = TakeTransfers();
    TakeDone();
    Save();
    if (status.ok()) status = Start();
    if (!status.ok()) {
      LOG_WARN("KV blocks are not saved: {}", status.ToString());
      break;
    }
    if (HasWork()) Wait();
  }
  disk_->Finish(std::max<int64_t>(0, end_us - SteadyClock().NowUs()));
}

}  // namespace cachalot
