#include "engine/kv_tier.h"

#include <algorithm>
#include <limits>

#include "base/log.h"

namespace cachalot {
namespace {

constexpr double kShare = 0.5;                    // of the time of computing that reading may take
constexpr int64_t kFirstPatienceUs = 2'000'000;   // where nothing is known
constexpr int64_t kReadAheadBytes = 32 << 20;
constexpr int64_t kBytesBesideSteps = 8 << 20;    // put into the cache between two steps, while others run
constexpr int64_t kWaitUs = 5'000;
constexpr int64_t kRateAgeUs = 30'000'000;        // a read rate that is older is no longer believed
constexpr double kRateMemory = 0.9;
constexpr int32_t kLeastPromptTokens = 16;

double ComputeSeconds(const ReadOrCompute& choice) {
  return static_cast<double>(choice.compute_tokens) / choice.tokens_per_second;
}

}  // namespace

bool IsWorthReading(const ReadOrCompute& choice) {
  if (choice.tokens_per_second <= 0 || choice.bytes_per_second <= 0) return true;
  return static_cast<double>(choice.read_bytes) / choice.bytes_per_second <= kShare * ComputeSeconds(choice);
}

int64_t PatienceUs(const ReadOrCompute& choice) {
  return choice.tokens_per_second <= 0 ? kFirstPatienceUs : static_cast<int64_t>(kShare * 1e6 * ComputeSeconds(choice));
}

Result<std::unique_ptr<KvTier>> KvTier::Open(const KvDiskOptions& options, StepExecutor* executor, Scheduler* scheduler, const Clock* clock) {
  if (!executor->can_move_blocks()) {
    return Unsupported("a KV cache on disk needs all layers on the CPU (--device cpu)");
  }
  std::vector<int64_t> block_bytes;
  for (const KvGroupInfo& group : executor->info().kv_groups) block_bytes.push_back(group.block_bytes);
  ASSIGN_OR_RETURN(auto disk, KvDisk::Open(options, executor->info().kv_identity, std::move(block_bytes)));
  const KvTierStats stats = disk->stats();
  LOG_INFO("KV cache on disk: {} blocks found in {}", stats.blocks, options.dir);
  return std::unique_ptr<KvTier>(new KvTier(std::move(disk), executor, scheduler, clock));
}

KvTier::KvTier(std::unique_ptr<KvDisk> disk, StepExecutor* executor, Scheduler* scheduler, const Clock* clock)
    : disk_(std::move(disk)), executor_(executor), scheduler_(scheduler), clock_(*clock) {
  scheduler_->ReportPublished(&published_);
}

void KvTier::Seek() {
  TakeReads();
  while (Sequence* seq = scheduler_->NextToSeek()) LookUp(seq);
  const int64_t now_us = promotions_.empty() ? 0 : clock_.NowUs();
  for (size_t i = promotions_.size(); i-- > 0;) {
    if (now_us < promotions_[i].end_us) continue;
    ++counted_.given_up;
    End(i);
  }
  StartReads();
}

void KvTier::LookUp(Sequence* seq) {
  const std::span<const BlockKey> keys = scheduler_->SeekKeys(seq);
  if (keys.empty()) return;
  const int32_t num_cached = scheduler_->FindCached(keys);
  SaveCached(keys, num_cached);
  Promotion promotion{.ticket = ++last_ticket_, .seq = seq};
  const int32_t num_found = scheduler_->FindWith(
      keys, [this](int32_t group, const BlockKey& key) { return disk_->Touch(group, key); }, &promotion.blocks);
  if (num_found <= num_cached) return;
  counted_.hit_blocks += static_cast<int64_t>(promotion.blocks.size());
  const KvTierStats rates = stats();
  const int64_t now_us = clock_.NowUs();
  ReadOrCompute choice{.read_bytes = SumBytes(promotion),
                       .bytes_per_second = now_us - last_read_us_ < kRateAgeUs ? rates.read_bytes_per_second : 0,
                       .compute_tokens = num_found - num_cached,
                       .tokens_per_second = rates.prefill_tokens_per_second};
  for (const Promotion& other : promotions_) choice.read_bytes += SumBytes(other);
  if (!IsWorthReading(choice)) {
    ++counted_.declined;
    return;
  }
  promotion.end_us = now_us + PatienceUs(choice);
  scheduler_->Hold(seq, true);
  ++counted_.promotions;
  promotions_.push_back(std::move(promotion));
}

// Those still to be read.
int64_t KvTier::SumBytes(const Promotion& promotion) const {
  int64_t bytes = 0;
  for (size_t i = promotion.num_ended; i < promotion.blocks.size(); ++i) bytes += BlockBytes(promotion.blocks[i].group);
  return bytes;
}

// What was in memory all the time may have lost its place on the disk, or never got one.
void KvTier::SaveCached(std::span<const BlockKey> page_keys, int32_t num_tokens) {
  const BlockManager& blocks = scheduler_->blocks();
  for (int32_t page = 0; page < num_tokens / blocks.page_tokens(); ++page) {
    for (int32_t g = 0; g < blocks.num_groups(); ++g) {
      for (int32_t i = 0; i < blocks.page_tokens() / blocks.group(g).block_tokens; ++i) {
        const BlockKey key = KeyInPage(page_keys[static_cast<size_t>(page)], i);
        const int32_t block = blocks.pool(g).index()->Find(key);
        if (block != kNoBlock && !disk_->Touch(g, key)) SaveBlock(g, block, key);
      }
    }
  }
}

void KvTier::StartReads() {
  for (Promotion& promotion : promotions_) {
    for (; promotion.num_started < promotion.blocks.size() && reading_bytes_ < kReadAheadBytes; ++promotion.num_started) {
      const TierBlock& block = promotion.blocks[promotion.num_started];
      disk_->StartRead(promotion.ticket, block.group, block.key);
      reading_bytes_ += BlockBytes(block.group);
    }
  }
}

void KvTier::TakeReads() {
  disk_->TakeReads(&reads_);
  for (KvDisk::Read& read : reads_) {
    reading_bytes_ -= static_cast<int64_t>(read.bytes.size());
    last_read_us_ = clock_.NowUs();
    arrived_.push_back(std::move(read));
  }
  reads_.clear();
  int64_t room = scheduler_->num_running() > 0 ? kBytesBesideSteps : std::numeric_limits<int64_t>::max();
  for (; !arrived_.empty() && room > 0; arrived_.pop_front()) {
    KvDisk::Read& read = arrived_.front();
    room -= static_cast<int64_t>(read.bytes.size());
    const auto found = std::find_if(promotions_.begin(), promotions_.end(),
                                    [&](const Promotion& promotion) { return promotion.ticket == read.ticket; });
    if (found != promotions_.end()) {
      const bool goes_on = Take(&*found, read);
      if (!goes_on || ++found->num_ended == found->blocks.size()) End(static_cast<size_t>(found - promotions_.begin()));
    }
    disk_->GiveBuffer(std::move(read.bytes));
  }
}

bool KvTier::Take(Promotion* promotion, const KvDisk::Read& read) {
  if (!read.ok) return false;
  const TierBlock& wanted = promotion->blocks[promotion->num_ended];
  const int32_t block = scheduler_->Restore(wanted, promotion->seq->spec.keep);
  // Somebody else may have brought it; where there is no place, there will be none for those behind it.
  if (block == kNoBlock) return scheduler_->blocks().pool(wanted.group).index()->Find(wanted.key) != kNoBlock;
  const Status status = executor_->WriteBlock(wanted.group, block, read.bytes);
  CHECK(status.ok()) << status.ToString();
  ++counted_.promoted_blocks;
  return true;
}

void KvTier::End(size_t idx) {
  scheduler_->Hold(promotions_[idx].seq, false);
  promotions_.erase(promotions_.begin() + static_cast<ptrdiff_t>(idx));
}

void KvTier::Wait() {
  if (arrived_.empty()) disk_->WaitForRead(kWaitUs);
}

void KvTier::Save() {
  for (const PublishedBlock& block : published_) {
    if (!disk_->Contains(block.group, block.key)) SaveBlock(block.group, block.block, block.key);
  }
  published_.clear();
}

void KvTier::SaveBlock(int32_t group, int32_t block, const BlockKey& key) {
  if (!disk_->CanWrite(group)) return;
  std::vector<std::byte> bytes = disk_->TakeBuffer(group);
  const Status status = executor_->ReadBlock(group, block, bytes);
  CHECK(status.ok()) << status.ToString();
  disk_->Write(group, key, std::move(bytes));
}

void KvTier::ObserveStep(int32_t prompt_tokens, int32_t decode_tokens, int64_t step_us) {
  if (prompt_tokens < kLeastPromptTokens || prompt_tokens < 4 * decode_tokens || step_us <= 0) return;
  step_tokens_ = step_tokens_ * kRateMemory + prompt_tokens;
  step_seconds_ = step_seconds_ * kRateMemory + static_cast<double>(step_us) * 1e-6;
}

void KvTier::Leave(const Sequence* seq) {
  for (size_t i = promotions_.size(); i-- > 0;) {
    if (promotions_[i].seq == seq) End(i);
  }
}

void KvTier::Abandon() {
  published_.clear();
  while (!promotions_.empty()) End(promotions_.size() - 1);
}

void KvTier::Flush() {
  Abandon();
  disk_->Forget();
}

KvTierStats KvTier::stats() const {
  KvTierStats stats = disk_->stats();
  stats.hit_blocks = counted_.hit_blocks;
  stats.promoted_blocks = counted_.promoted_blocks;
  stats.promotions = counted_.promotions;
  stats.declined = counted_.declined;
  stats.given_up = counted_.given_up;
  stats.prefill_tokens_per_second = step_seconds_ > 0 ? step_tokens_ / step_seconds_ : 0;
  return stats;
}

}  // namespace cachalot
