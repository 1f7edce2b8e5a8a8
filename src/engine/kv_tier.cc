// KvTier: what it finds below and brings up. The way down is in kv_tier_save.cc.
#include "engine/kv_tier.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "base/log.h"

namespace cachalot {
namespace {

constexpr double kShare = 0.5;                    // of the time of computing that reading may take
constexpr int64_t kFirstPatienceUs = 2'000'000;   // where nothing is known
constexpr int64_t kReadAheadBytes = 64 << 20;
constexpr int64_t kReturningBytes = 32 << 20;     // at a time: a promotion's reads stand behind them
// Put into the cache between two steps, while others run: by the device beside the one in flight, by the host in front of the next: at
// 5 GB/s, so much or a twentieth of the last step's time.
constexpr int64_t kBytesBesideDeviceSteps = 256 << 20, kBytesInFrontOfSteps = 8 << 20, kBytesInUsOfStep = 250;
constexpr int64_t kWaitUs = 5'000, kWaitToSaveUs = 100'000;
constexpr int64_t kWaitForDeviceUs = 100;         // which nobody tells of
constexpr int64_t kRateAgeUs = 30'000'000;        // a read rate that is older is no longer believed
constexpr double kRateMemory = 0.9;
constexpr int32_t kLeastPromptTokens = 16;
// On the way to the disk and back, where the host's memory is no tier of its own.
constexpr int64_t kStagingBytes = 96 << 20, kDeviceStagingBytes = 256 << 20;
constexpr int64_t kLeastBlocks = 16;
constexpr int64_t kMaxQueuedBytes = int64_t{1} << 30;
// Threads that read: half of the CPUs, or all but so many.
constexpr int32_t kMaxReaders = 16, kOtherCpus = 4;

double ComputeSeconds(const ReadOrCompute& choice) {
  return static_cast<double>(choice.compute_tokens) / choice.tokens_per_second;
}

double Seconds(int64_t bytes, double rate) { return bytes > 0 && rate > 0 ? static_cast<double>(bytes) / rate : 0; }

}  // namespace

// What has been read is copied while others are read.
bool IsWorthReading(const ReadOrCompute& choice) {
  if (choice.tokens_per_second <= 0) return true;
  const double seconds = std::max(Seconds(choice.read_bytes, choice.bytes_per_second), Seconds(choice.copy_bytes, choice.copy_bytes_per_second));
  return seconds <= kShare * ComputeSeconds(choice);
}

int64_t PatienceUs(const ReadOrCompute& choice) {
  return choice.tokens_per_second <= 0 ? kFirstPatienceUs : static_cast<int64_t>(kShare * 1e6 * ComputeSeconds(choice));
}

Result<std::unique_ptr<KvTier>> KvTier::Open(const KvTierOptions& options, StepExecutor* executor, Scheduler* scheduler, const Clock* clock) {
  const ExecutorInfo& info = executor->info();
  if (!executor->can_move_blocks()) return Unsupported("this executor's KV blocks cannot be moved");
  if (options.host_bytes > 0 && !info.kv_on_device) {
    return InvalidArgument("a KV cache of {} bytes in the host's memory, and all layers are on the CPU: the KV cache lies there already (--kv-tokens says how much)",
                           options.host_bytes);
  }
  std::vector<int64_t> block_bytes;
  int64_t least = 0;
  for (const KvGroupInfo& group : info.kv_groups) {
    block_bytes.push_back(group.block_bytes);
    least += kLeastBlocks * group.block_bytes;
  }
  if (options.host_bytes > 0 && options.host_bytes < least) {
    return InvalidArgument("a KV cache of {} bytes in the host's memory: at least {} are needed, {} blocks of this model", options.host_bytes,
                           least, kLeastBlocks);
  }
  const int64_t staging = std::min(info.kv_on_device ? kDeviceStagingBytes : kStagingBytes, KvHost::SumBytes(info.kv_groups) / 2);
  std::vector<KvGroupInfo> groups = KvHost::GroupsOf(info.kv_groups, options.host_bytes > 0 ? options.host_bytes : std::max(staging, least));
  ASSIGN_OR_RETURN(HostMemory memory, HostMemory::Allocate(KvHost::SumBytes(groups)));
  RETURN_IF_ERROR(executor->PinHost(memory.bytes()).WithContext("the host's memory for KV blocks"));
  std::unique_ptr<KvTier> tier(new KvTier(options, std::move(memory), std::move(groups), executor, scheduler, clock));
  if (options.disk.dir.empty()) return tier;
  KvDiskOptions disk = options.disk;
  disk.max_queued_bytes = std::min(tier->host_.size_bytes() / 2, kMaxQueuedBytes);
  const auto num_cpus = static_cast<int32_t>(std::thread::hardware_concurrency());
  disk.num_readers = std::clamp(std::max(num_cpus / 2, num_cpus - kOtherCpus), 1, kMaxReaders);
  ASSIGN_OR_RETURN(tier->disk_, KvDisk::Open(disk, info.kv_identity, std::move(block_bytes)));
  std::vector<int64_t> room;
  for (int32_t group = 0; group < static_cast<int32_t>(info.kv_groups.size()); ++group) room.push_back(tier->has_host_ ? tier->host_.num_blocks(group) : 0);
  for (const KvDisk::Found& found : tier->disk_->TakeFound(room)) tier->returning_.push_back({found.group, found.key, {}, false});
  LOG_INFO("KV cache on disk: {} blocks found in {}", tier->disk_->stats().blocks, disk.dir);
  return tier;
}

KvTier::KvTier(const KvTierOptions& options, HostMemory memory, std::vector<KvGroupInfo> groups, StepExecutor* executor,
               Scheduler* scheduler, const Clock* clock)
    : executor_(executor),
      scheduler_(scheduler),
      clock_(*clock),
      has_host_(options.host_bytes > 0),
      memory_(std::move(memory)),
      host_(std::move(groups), memory_.bytes(), options.make_policy) {
  scheduler_->ReportPublished(&published_);
}

KvTier::~KvTier() {
  scheduler_->ReportPublished(nullptr);
  Drain();
  disk_.reset();
  executor_->UnpinHost(memory_.bytes());
}

Status KvTier::Seek() {
  const int64_t now_us = clock_.NowUs();
  host_.SetTime(now_us);
  RETURN_IF_ERROR(TakeTransfers());
  TakeDone();
  Save();
  while (Sequence* seq = scheduler_->NextToSeek()) LookUp(seq);
  MoveArrived();
  for (size_t i = promotions_.size(); i-- > 0;) {
    const Promotion& late = promotions_[i];
    if (now_us < late.end_us) continue;
    ++Counts(late.pieces[late.num_moved].from_host)->given_up;  // by what it waits for
    End(i);
  }
  StartReads();
  Return();
  return Start();
}

void KvTier::LookUp(Sequence* seq) {
  const std::span<const BlockKey> keys = scheduler_->SeekKeys(seq);
  if (keys.empty()) return;
  const int32_t num_cached = scheduler_->FindCached(keys);
  // What was in the cache all the time may have lost its place below, or never got one.
  scheduler_->blocks().ListPrefix(keys, num_cached, &listed_);
  for (const TierBlock& block : listed_) {
    const bool kept = host_.Find(block.group, block.key) != kNoBlock || !has_host_;
    if (!kept || (disk_ != nullptr && !disk_->Touch(block.group, block.key))) published_.push_back({block, seq->spec.keep});
  }
  Promote(seq, keys, num_cached, /*with_disk=*/disk_ != nullptr);
}

void KvTier::Promote(Sequence* seq, std::span<const BlockKey> keys, int32_t num_cached, bool with_disk) {
  const int32_t num_found = scheduler_->FindWith(keys, [&](int32_t group, const BlockKey& key) {
    return host_.Find(group, key) != kNoBlock || (with_disk && disk_->Touch(group, key));
  });
  if (num_found <= num_cached) return;
  Promotion promotion{.id = ++last_id_, .seq = seq};
  scheduler_->blocks().ListPrefix(keys, num_found, &listed_);
  int64_t num_of[2] = {0, 0};  // on the disk, in the host's memory
  for (const TierBlock& block : listed_) {
    if (IsCached(block)) continue;
    Piece& piece = promotion.pieces.emplace_back(Piece{.what = block, .host = host_.Find(block.group, block.key)});
    piece.from_host = piece.host != kNoBlock;
    if (piece.from_host && disk_ != nullptr && !disk_->Touch(block.group, block.key)) published_.push_back({block, seq->spec.keep});
    ++num_of[piece.from_host ? 1 : 0];
  }
  ReadOrCompute choice = Weigh(promotion);
  choice.compute_tokens = num_found - num_cached;
  const bool worth = IsWorthReading(choice);
  // Where the disk is too slow, what the host's memory has may do.
  const bool again = !worth && num_of[0] > 0 && num_of[1] > 0;
  for (const bool from_host : {false, true}) {
    if (num_of[from_host ? 1 : 0] == 0 || (again && from_host)) continue;
    Counts(from_host)->hit_blocks += num_of[from_host ? 1 : 0];
    ++(worth ? Counts(from_host)->promotions : Counts(from_host)->declined);
  }
  if (again) return Promote(seq, keys, num_cached, /*with_disk=*/false);
  if (!worth) return;
  for (const Piece& piece : promotion.pieces) {
    if (piece.from_host) host_.Hold(piece.what.group, piece.host, seq->spec.keep);
  }
  promotion.end_us = clock_.NowUs() + PatienceUs(choice);
  scheduler_->Hold(seq, true);
  promotions_.push_back(std::move(promotion));
}

// Beside those that wait already.
ReadOrCompute KvTier::Weigh(const Promotion& promotion) const {
  const bool is_fresh = clock_.NowUs() - last_read_us_ < kRateAgeUs;
  ReadOrCompute choice{.bytes_per_second = disk_ != nullptr && is_fresh ? disk_->stats().read_bytes_per_second : 0,
                       .copy_bytes_per_second = executor_->transfer_bytes_per_second(),
                       .tokens_per_second = step_seconds_ > 0 ? step_tokens_ / step_seconds_ : 0};
  AddBytes(promotion, &choice);
  for (const Promotion& other : promotions_) AddBytes(other, &choice);
  return choice;
}

void KvTier::AddBytes(const Promotion& promotion, ReadOrCompute* choice) const {
  for (size_t i = promotion.num_moved; i < promotion.pieces.size(); ++i) {
    const int64_t bytes = BlockBytes(promotion.pieces[i].what.group);
    choice->copy_bytes += bytes;
    if (promotion.pieces[i].host == kNoBlock) choice->read_bytes += bytes;
  }
}

void KvTier::StartReads() {
  for (Promotion& promotion : promotions_) {
    for (; promotion.num_started < promotion.pieces.size(); ++promotion.num_started) {
      Piece& piece = promotion.pieces[promotion.num_started];
      if (piece.host != kNoBlock) continue;
      const auto& [group, key, parent, has_parent] = piece.what;
      if (const int32_t there = host_.Find(group, key); there != kNoBlock) {  // somebody else has read it
        host_.Hold(group, there, promotion.seq->spec.keep);
        piece.host = there;
        continue;
      }
      if (reading_bytes_ >= kReadAheadBytes || disk_ == nullptr) return;
      const int32_t place = host_.Take(group);
      if (place == kNoBlock) return;
      Read({.what = piece.what, .terms = promotion.seq->spec.keep}, promotion.id, promotion.num_started, place);
    }
  }
}

void KvTier::Read(const PublishedBlock& block, uint64_t promotion, size_t piece, int32_t host) {
  const int32_t group = block.what.group;
  reading_bytes_ += BlockBytes(group);
  readings_[TagOf(group, host)] = {.promotion = promotion, .piece = piece, .block = block};
  disk_->StartRead(TagOf(group, host), group, block.what.key, host_.Bytes(group, host));
}

// Behind everything else that the disk has to do, and only into memory that holds nothing.
void KvTier::Return() {
  while (!returning_.empty() && promotions_.empty() && reading_bytes_ < kReturningBytes && !disk_->HasWrites()) {
    const TierBlock block = returning_.front();
    if (!host_.HasEmpty(block.group)) return returning_.clear();
    returning_.pop_front();
    if (host_.Find(block.group, block.key) != kNoBlock || !disk_->Contains(block.group, block.key)) continue;
    Read({.what = block}, /*promotion=*/0, 0, host_.Take(block.group));
  }
}

// What the disk's threads are done with.
void KvTier::TakeDone() {
  if (disk_ == nullptr) return;
  disk_->TakeDone(&done_);
  for (const KvDisk::Done& done : done_) {
    const auto group = static_cast<int32_t>(done.tag >> 32), host = static_cast<int32_t>(done.tag & 0xffffffff);
    if (!done.is_read) {
      host_.Release(group, host);
      continue;
    }
    const auto found = readings_.find(done.tag);
    CHECK(found != readings_.end()) << "a read that nobody began";
    const Reading reading = found->second;
    readings_.erase(found);
    reading_bytes_ -= BlockBytes(group);
    last_read_us_ = clock_.NowUs();
    if (done.ok) host_.Fill(group, host, reading.block.what, reading.block.terms);
    Promotion* promotion = FindPromotion(reading.promotion);
    const bool wanted = promotion != nullptr && reading.piece < promotion->pieces.size();
    if (wanted && done.ok) {
      promotion->pieces[reading.piece].host = host;
      continue;
    }
    host_.Release(group, host);
    if (wanted) Cut(promotion, reading.piece);
  }
}

int64_t KvTier::HostRoom() const {
  if (scheduler_->num_running() == 0) return std::numeric_limits<int64_t>::max();
  return std::max(kBytesInFrontOfSteps, kBytesInUsOfStep * last_step_us_);
}

// In order: nothing stands on what is not there.
void KvTier::MoveArrived() {
  int64_t device_room = scheduler_->num_running() > 0 ? kBytesBesideDeviceSteps : std::numeric_limits<int64_t>::max();
  int64_t host_room = HostRoom();
  for (Promotion& promotion : promotions_) {
    while (promotion.num_moved < promotion.pieces.size()) {
      const Piece& piece = promotion.pieces[promotion.num_moved];
      const int32_t group = piece.what.group;
      int64_t& room = IsOnDevice(group) ? device_room : host_room;
      if (piece.host == kNoBlock || room <= 0) break;
      const int32_t block = scheduler_->Restore(piece.what, promotion.seq->spec.keep);
      if (block != kNoBlock) {
        batch_.push_back({.group = group, .block = block, .into_block = true, .host = host_.Bytes(group, piece.host).data()});
        batched_.push_back({.block = {.what = piece.what}, .host = piece.host, .into_block = true, .generation = generation_});
        room -= BlockBytes(group);
        ++Counts(piece.from_host)->promoted_blocks;
      } else if (IsCached(piece.what)) {  // somebody else has brought it
        host_.Release(group, piece.host);
      } else {  // where there is no place, there will be none for those behind it
        Cut(&promotion, promotion.num_moved);
        break;
      }
      ++promotion.num_moved;
    }
  }
  for (size_t i = promotions_.size(); i-- > 0;) {
    if (promotions_[i].num_moved == promotions_[i].pieces.size()) End(i);
  }
}

// The pieces behind these will not come.
void KvTier::Cut(Promotion* promotion, size_t num_pieces) {
  for (size_t i = std::max(num_pieces, promotion->num_moved); i < promotion->pieces.size(); ++i) {
    const Piece& piece = promotion->pieces[i];
    if (piece.host != kNoBlock) host_.Release(piece.what.group, piece.host);
  }
  promotion->pieces.resize(num_pieces);
  promotion->num_started = std::min(promotion->num_started, num_pieces);
}

void KvTier::End(size_t idx) {
  Cut(&promotions_[idx], promotions_[idx].num_moved);
  scheduler_->Hold(promotions_[idx].seq, false);
  promotions_.erase(promotions_.begin() + static_cast<ptrdiff_t>(idx));
}

KvTier::Promotion* KvTier::FindPromotion(uint64_t id) {
  const auto found = std::find_if(promotions_.begin(), promotions_.end(), [id](const Promotion& promotion) { return promotion.id == id; });
  return found == promotions_.end() ? nullptr : &*found;
}

// Promotions wait for the disk only.
void KvTier::Wait() {
  if (disk_ != nullptr) disk_->WaitForDone(!transfers_.empty() ? kWaitForDeviceUs : IsAwaited() ? kWaitUs : kWaitToSaveUs);
  else std::this_thread::sleep_for(std::chrono::microseconds(kWaitForDeviceUs));
}

void KvTier::Wake() {
  if (disk_ != nullptr) disk_->Wake();
}

void KvTier::ObserveStep(int32_t prompt_tokens, int32_t decode_tokens, int64_t step_us) {
  last_step_us_ = step_us;
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
  ++generation_;
  while (!promotions_.empty()) End(promotions_.size() - 1);
}

void KvTier::Flush() {
  Abandon();
  TakeDone();  // reads that have ended
  host_.Forget();
  unwritten_.clear();
  returning_.clear();
  if (disk_ != nullptr) disk_->Forget();
}

KvTierStats KvTier::host_stats() const {
  KvTierStats stats = counted_[0];
  if (!has_host_) return stats;
  stats.present = true;
  stats.blocks = host_.num_cached();
  stats.bytes = host_.cached_bytes();
  stats.max_bytes = host_.size_bytes();
  stats.evicted_blocks = host_.num_evictions();
  stats.read_bytes_per_second = executor_->transfer_bytes_per_second();
  stats.prefill_tokens_per_second = step_seconds_ > 0 ? step_tokens_ / step_seconds_ : 0;
  return stats;
}

KvTierStats KvTier::disk_stats() const {
  if (disk_ == nullptr) return {};
  KvTierStats stats = disk_->stats();
  stats.hit_blocks = counted_[1].hit_blocks;
  stats.promoted_blocks = counted_[1].promoted_blocks;
  stats.promotions = counted_[1].promotions;
  stats.declined = counted_[1].declined;
  stats.given_up = counted_[1].given_up;
  stats.prefill_tokens_per_second = step_seconds_ > 0 ? step_tokens_ / step_seconds_ : 0;
  return stats;
}

}  // namespace cachalot
