// The KV lifecycle under random use, against a naive model that knows what every token's bytes are: sequences start (from
// the cache or a lower tier), grow, are quantised, share, fork, take back drafts, drop what fell out of windows, are swapped
// to the host and back, cancelled there or here; what they leave is offloaded, evicted, recalled, pinned and flushed. Groups
// are those of a model with all kinds of layers: codes, the sinks in front of them, and a window. 10^5 operations here;
// `make soak` runs 10^7.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "kv/block_manager.h"
#include "kv/kv_host.h"
#include "kv/policy/eviction_policies.h"
#include "quant/kv_code.h"

namespace cachalot {
namespace {

constexpr int32_t kBlockTokens = 4;
constexpr int32_t kNumSlots = 5;
constexpr int32_t kMaxTokens = 36;
constexpr uint64_t kMaxInFlight = 3;
constexpr int kCodes = 0;  // the first group; whatever else there is has BF16

// A token's bytes as a group keeps them: 32 values and their scale.
struct Cell {
  std::array<uint8_t, 2 * kKvUnit + 2> bytes = {};
  bool operator==(const Cell&) const = default;
};

// What stands for the model: values that hang on all tokens so far.
Cell Quantise(uint64_t chain, bool codes) {
  float values[kKvUnit];
  for (int i = 0; i < kKvUnit; ++i) {
    chain = chain * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
    values[i] = static_cast<float>(static_cast<int32_t>(chain >> 32)) * 0x1p-31f;
  }
  Cell cell;
  uint16_t scale = 0;
  const KvCoding coding = {codes ? KvCode::kInt6 : KvCode::kBF16, kKvUnit, kKvUnit};
  EncodeKvVector(coding, values, cell.bytes.data(), cell.bytes.data() + 16, &scale);
  std::memcpy(cell.bytes.data() + 2 * kKvUnit, &scale, sizeof(scale));
  return cell;
}

struct Token {
  int32_t id = 0;
  uint64_t chain = 0;
  Cell codes, exact;
};

struct Sequence {
  std::vector<Token> tokens;
  std::vector<BlockKey> keys;  // of its whole pages
  size_t num_published = 0;    // pages
  int32_t num_kept = 0;        // tokens that nobody takes back
  uint64_t last_step = 0;
  bool live = false;
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
};

using Memory = std::vector<std::vector<Cell>>;  // [groups][block * kBlockTokens + place]

class Tiers {
 public:
  Tiers(uint64_t seed, std::string_view policy) : rng_(seed), sinks_(seed % 4 == 0 ? 0 : 4 * Random(1, 2)) {
    groups_.push_back({.name = "codes", .block_tokens = kBlockTokens, .num_blocks = Random(10, 30), .block_bytes = 1, .num_swap_blocks = Random(4, 20),
                       .first_token = sinks_});
    if (sinks_ > 0) {
      groups_.push_back({.name = "sinks", .block_tokens = kBlockTokens, .num_blocks = Random(3, 14), .block_bytes = 1, .num_swap_blocks = Random(2, 8),
                         .end_token = sinks_});
    }
    if (seed % 3 == 0) {
      groups_.push_back({.name = "window", .block_tokens = kBlockTokens, .num_blocks = Random(10, 24), .window = Random(1, 12), .block_bytes = 1,
                         .num_swap_blocks = Random(4, 20)});
    }
    manager_ = std::make_unique<BlockManager>(groups_, kNumSlots, kMaxTokens, *FindEvictionPolicy(policy), Random(0, 10));
    manager_->ReportPublished(&published_);
    std::vector<KvGroupInfo> below = groups_;
    for (KvGroupInfo& group : below) {
      group.num_blocks = Random(8, 24);
      group.block_bytes = kBlockTokens * static_cast<int64_t>(sizeof(Cell));
    }
    below_memory_.resize(static_cast<size_t>(KvHost::SumBytes(below)));
    below_ = std::make_unique<KvHost>(below, below_memory_, *FindEvictionPolicy(policy));
    for (const KvGroupInfo& group : groups_) {
      device_.emplace_back(static_cast<size_t>(group.num_blocks * kBlockTokens));
      host_.emplace_back(static_cast<size_t>(group.num_swap_blocks * kBlockTokens));
      tables_.emplace_back(kNumSlots, std::vector<int32_t>(kMaxTokens / kBlockTokens + 1, kNoBlock));
    }
  }

  void Operate() {
    manager_->SetTime(now_us_ += Random(0, 1'000'000));
    below_->SetTime(now_us_);
    const int what = Random(0, 99);
    if (what < 40) Grow();
    else if (what < 50) Start();
    else if (what < 56) Fork();
    else if (what < 64) TakeBack();
    else if (what < 74) Complete();
    else if (what < 80) Cancel();
    else if (what < 86) SwapOut();
    else if (what < 92) SwapIn();
    else if (what < 97) Recall();
    else if (what < 99) Pin();
    else if (Random(0, 50) == 0) Random(0, 1) == 0 ? manager_->ForgetCached() : below_->Forget();
    if (++num_operations_ % 16 == 0) CheckAll();
  }

  std::map<std::string, int64_t> counts;

 private:
  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  KeepTerms Terms() { return {.priority = Random(0, 9) == 0 ? Random(-1, 1) : 0, .tenant = Random(0, 2)}; }
  int32_t AnySlot(bool live) {
    const int start = Random(0, kNumSlots - 1);
    for (int i = 0; i < kNumSlots; ++i) {
      if (running_[static_cast<size_t>((start + i) % kNumSlots)].live == live) return (start + i) % kNumSlots;
    }
    return -1;
  }
  Sequence& At(int32_t slot) { return running_[static_cast<size_t>(slot)]; }

  static Token Next(const std::vector<Token>& before, int32_t id) {
    Token token;
    token.id = id;
    token.chain = ((before.empty() ? 1 : before.back().chain) ^ static_cast<uint64_t>(id + 1)) * 0xbf58476d1ce4e5b9u;
    token.codes = Quantise(token.chain, true);
    token.exact = Quantise(token.chain, false);
    return token;
  }
  // Texts share beginnings: few tokens, drawn unevenly.
  int32_t AnyToken() { return Random(0, 9) == 0 ? 1 : 0; }
  void ExtendKeys(Sequence* seq) const {
    while ((seq->keys.size() + 1) * kBlockTokens <= seq->tokens.size()) {
      int32_t ids[kBlockTokens];
      for (int i = 0; i < kBlockTokens; ++i) ids[i] = seq->tokens[seq->keys.size() * kBlockTokens + static_cast<size_t>(i)].id;
      seq->keys.push_back(ChildKey(seq->keys.empty() ? RootKey("model", "") : seq->keys.back(), ids));
    }
  }
  const Cell& Expected(const Token& token, int32_t g) const { return g == kCodes ? token.codes : token.exact; }
  Cell& CellAt(Memory* memory, int32_t g, int32_t block, int32_t place) const {
    return (*memory)[static_cast<size_t>(g)].at(static_cast<size_t>(block * kBlockTokens + place));
  }
  void MoveBlock(const Memory& from, int32_t from_block, Memory* to, int32_t to_block, int32_t g) const {
    for (int32_t i = 0; i < kBlockTokens; ++i) {
      CellAt(to, g, to_block, i) = from[static_cast<size_t>(g)].at(static_cast<size_t>(from_block * kBlockTokens + i));
    }
  }
  void Apply(const std::vector<BlockWrite>& writes) {
    for (const BlockWrite& write : writes) {
      tables_[static_cast<size_t>(write.group)][static_cast<size_t>(write.slot)].at(static_cast<size_t>(write.index)) = write.block_id;
    }
  }

  // A step that adds tokens to one sequence.
  void Grow() {
    const int32_t slot = AnySlot(true);
    if (slot < 0) return;
    Sequence& seq = At(slot);
    const int32_t end = std::min(kMaxTokens, seq.num_tokens() + Random(1, 6));
    if (end == seq.num_tokens()) return;
    std::vector<BlockWrite> writes;
    std::vector<BlockCopy> copies;
    if (!manager_->GrowInPlace(slot, end)) {
      if (manager_->CanAllocate(slot, end) != KvFit::kNow) return;
      manager_->Allocate(slot, end, step_ + 1, &writes, &copies);
    }
    seq.last_step = ++step_;
    for (const BlockCopy& copy : copies) MoveBlock(device_, copy.from_block, &device_, copy.to_block, copy.group);
    Apply(writes);
    while (seq.num_tokens() < end) {
      const int32_t position = seq.num_tokens();
      seq.tokens.push_back(Next(seq.tokens, AnyToken()));
      for (int32_t g = 0; g < num_groups(); ++g) {
        if (!groups_[static_cast<size_t>(g)].Keeps(position / kBlockTokens)) continue;
        const int32_t block = tables_[static_cast<size_t>(g)][static_cast<size_t>(slot)][static_cast<size_t>(position / kBlockTokens)];
        ASSERT_EQ(manager_->pool(g).refcount(block), 1) << "written to by one of several holders";
        CellAt(&device_, g, block, position % kBlockTokens) = Expected(seq.tokens.back(), g);
      }
    }
    ExtendKeys(&seq);
    Check(slot);
    Bound();
  }
  // What only drafts wrote is taken back.
  void TakeBack() {
    const int32_t slot = AnySlot(true);
    if (slot < 0) return;
    Sequence& seq = At(slot);
    const int32_t num_tokens = Random(std::max(seq.num_kept, seq.num_tokens() - 5), seq.num_tokens());
    manager_->Truncate(slot, num_tokens, seq.last_step);
    CutTo(&seq, num_tokens);
    ++counts["taken back"];
    Check(slot);
  }
  static void CutTo(Sequence* seq, int32_t num_tokens) {
    seq->tokens.resize(static_cast<size_t>(num_tokens));
    seq->keys.resize(static_cast<size_t>(num_tokens / kBlockTokens));
  }
  // Steps complete; what they computed is kept, published, and what is behind windows dropped.
  void Complete() {
    completed_ = std::min(step_, completed_ + static_cast<uint64_t>(Random(1, 3)));
    manager_->Release(completed_);
    for (int32_t slot = 0; slot < kNumSlots; ++slot) {
      Sequence& seq = At(slot);
      if (!seq.live || seq.last_step > completed_) continue;
      seq.num_kept = seq.num_tokens();
      published_.clear();
      manager_->Publish(slot, seq.keys, seq.num_published, Terms());
      seq.num_published = seq.keys.size();
      for (const PublishedBlock& block : published_) {
        if (Random(0, 1) == 0) continue;
        const auto& [group, key, parent, has_parent] = block.what;
        const int32_t from = manager_->pool(group).index()->Find(key);
        std::vector<Cell> saved;
        for (int32_t i = 0; i < kBlockTokens; ++i) saved.push_back(CellAt(&device_, group, from, i));
        if (const int32_t place = Random(0, 1) == 0 ? below_->Take(group) : kNoBlock; place != kNoBlock) {
          std::memcpy(below_->Bytes(group, place).data(), saved.data(), below_->Bytes(group, place).size());
          below_->Fill(group, place, block.what, block.terms);
          below_->Release(group, place);
        } else {
          disk_[{group, key.low}] = std::move(saved);
        }
        ++counts["offloaded"];
      }
      manager_->DropBehindWindow(slot, seq.num_kept, seq.last_step);
    }
    if (disk_.size() > 60) disk_.erase(std::next(disk_.begin(), Random(0, 59)));
  }
  void Bound() {
    while (step_ - completed_ > kMaxInFlight) Complete();
  }
  // A text that others may have begun.
  Sequence AnyText() {
    Sequence text;
    const int length = Random(0, kMaxTokens - 4);
    while (text.num_tokens() < length) text.tokens.push_back(Next(text.tokens, AnyToken()));
    ExtendKeys(&text);
    return text;
  }
  void Start() {
    const int32_t slot = AnySlot(false);
    if (slot < 0) return;
    Sequence text = AnyText();
    const int32_t found = manager_->FindPrefix(text.keys, text.num_tokens());
    std::vector<BlockWrite> writes;
    manager_->TakePrefix(slot, text.keys, found, &writes, Terms());
    Apply(writes);
    CutTo(&text, found);
    text.num_published = text.keys.size();
    text.num_kept = found;
    text.last_step = step_;
    text.live = true;
    At(slot) = std::move(text);
    counts["taken over"] += found > 0;
    Check(slot);
  }
  void Fork() {
    const int32_t from = AnySlot(true), to = AnySlot(false);
    if (from < 0 || to < 0) return;
    Sequence& parent = At(from);
    // Drafts are nobody else's: the child publishes what it has.
    const int32_t num_tokens = Random(0, 3) > 0 ? parent.num_kept : Random(0, parent.num_kept);
    if (!manager_->CanFork(from, num_tokens)) return;
    std::vector<BlockWrite> writes;
    manager_->Fork(from, to, num_tokens, &writes);
    Apply(writes);
    Sequence child = parent;
    CutTo(&child, num_tokens);
    child.num_kept = num_tokens;  // a window may begin right there
    child.num_published = std::min(child.num_published, child.keys.size());
    At(to) = std::move(child);
    ++counts["forked"];
    Check(to);
  }
  void Cancel() {
    if (Random(0, 1) == 0 && !swapped_.empty()) {
      const auto at = swapped_.begin() + Random(0, static_cast<int>(swapped_.size()) - 1);
      manager_->DropSwapped(&at->tables, step_);
      swapped_.erase(at);
      ++counts["cancelled on the host"];
      return;
    }
    const int32_t slot = AnySlot(true);
    if (slot < 0) return;
    manager_->Free(slot, At(slot).last_step);
    At(slot) = {};
  }
  void SwapOut() {
    const int32_t slot = AnySlot(true);
    if (slot < 0 || swapped_.size() > 4 || !manager_->CanSwapOut(slot)) return;
    Swapped out = {.seq = std::move(At(slot)), .tables = {}};
    At(slot) = {};
    std::vector<BlockMove> moves;
    manager_->SwapOut(slot, ++step_, &out.tables, &moves);
    for (const BlockMove& move : moves) MoveBlock(device_, move.device_block, &host_, move.host_block, move.group);
    out.seq.last_step = step_;
    if (Random(0, 3) == 0) {
      const int32_t num_tokens = Random(out.seq.num_kept, out.seq.num_tokens());
      manager_->TruncateSwapped(&out.tables, num_tokens, step_);
      CutTo(&out.seq, num_tokens);
    }
    swapped_.push_back(std::move(out));
    ++counts["swapped out"];
    Bound();
  }
  void SwapIn() {
    const int32_t slot = AnySlot(false);
    if (slot < 0 || swapped_.empty()) return;
    Swapped in = std::move(swapped_.front());
    swapped_.erase(swapped_.begin());
    for (int32_t g = 0; g < num_groups(); ++g) {
      if (in.tables.tables[static_cast<size_t>(g)].num_held() <= manager_->pool(g).num_free()) continue;
      swapped_.push_back(std::move(in));
      return;
    }
    std::vector<BlockWrite> writes;
    std::vector<BlockMove> moves;
    manager_->SwapIn(slot, ++step_, &in.tables, &writes, &moves);
    for (const BlockMove& move : moves) MoveBlock(host_, move.host_block, &device_, move.device_block, move.group);
    Apply(writes);
    in.seq.last_step = step_;
    At(slot) = std::move(in.seq);
    ++counts["swapped in"];
    Check(slot);
    Bound();
  }
  // What the cache lost comes back from the host's memory and the disk.
  void Recall() {
    const Sequence text = AnyText();
    const int32_t num_tokens = manager_->FindPrefixWith(text.keys, text.num_tokens(), [&](int32_t g, const BlockKey& key) {
      return below_->Find(g, key) != kNoBlock || disk_.count({g, key.low}) == 1;
    });
    std::vector<TierBlock> blocks;
    manager_->ListPrefix(text.keys, num_tokens, &blocks);
    for (const TierBlock& wanted : blocks) {
      if (manager_->pool(wanted.group).index()->Find(wanted.key) != kNoBlock) continue;
      const int32_t block = manager_->Restore(wanted, Terms());
      if (block == kNoBlock) return;
      const int32_t place = below_->Find(wanted.group, wanted.key);
      std::vector<Cell> saved(kBlockTokens);
      if (place == kNoBlock) saved = disk_.at({wanted.group, wanted.key.low});
      else std::memcpy(saved.data(), below_->Bytes(wanted.group, place).data(), below_->Bytes(wanted.group, place).size());
      for (int32_t i = 0; i < kBlockTokens; ++i) CellAt(&device_, wanted.group, block, i) = saved[static_cast<size_t>(i)];
      ++counts[place == kNoBlock ? "recalled" : "recalled from the host"];
    }
  }
  void Pin() { manager_->SetPinned(AnyText().keys, Random(0, 2) == 0); }

  // Every position that a next token would read has the bytes that the model's token has in that group.
  void Check(int32_t slot) {
    const Sequence& seq = At(slot);
    for (int32_t g = 0; g < num_groups(); ++g) {
      const KvGroupInfo& group = groups_[static_cast<size_t>(g)];
      const int32_t first = group.window > 0 ? std::max(0, seq.num_tokens() - group.window + 1) : group.first_token;
      for (int32_t p = first; p < std::min(seq.num_tokens(), group.end_token); ++p) {
        const auto index = static_cast<size_t>(p / kBlockTokens);
        const int32_t block = tables_[static_cast<size_t>(g)][static_cast<size_t>(slot)][index];
        ASSERT_EQ(block, manager_->table(slot, g).blocks.at(index)) << group.name << ", position " << p;
        ASSERT_TRUE(CellAt(&device_, g, block, p % kBlockTokens) == Expected(seq.tokens[static_cast<size_t>(p)], g))
            << group.name << ", slot " << slot << ", position " << p << " of " << seq.num_tokens();
      }
    }
  }
  // And a block's holders are the tables that name it.
  void CheckAll() {
    for (int32_t g = 0; g < num_groups(); ++g) {
      std::vector<int32_t> holders(static_cast<size_t>(groups_[static_cast<size_t>(g)].num_blocks));
      for (int32_t slot = 0; slot < kNumSlots; ++slot) {
        const BlockTable& table = manager_->table(slot, g);
        ASSERT_EQ(table.num_tokens, At(slot).num_tokens());
        for (int32_t i = 0; i < table.num_entries(); ++i) {
          const int32_t block = table.blocks[static_cast<size_t>(i)];
          ASSERT_EQ(block == kNoBlock, i < table.num_dropped);
          if (block != kNoBlock) ++holders[static_cast<size_t>(block)];
        }
      }
      for (size_t block = 0; block < holders.size(); ++block) {
        ASSERT_EQ(manager_->pool(g).refcount(static_cast<int32_t>(block)), holders[block]);
      }
    }
    for (int32_t slot = 0; slot < kNumSlots; ++slot) {
      if (At(slot).live) Check(slot);
    }
  }

  struct Swapped {
    Sequence seq;
    SwappedTables tables;
  };
  std::mt19937_64 rng_;
  const int32_t sinks_;
  std::vector<KvGroupInfo> groups_;
  std::unique_ptr<BlockManager> manager_;
  std::vector<PublishedBlock> published_;
  Memory device_, host_;
  std::vector<std::byte> below_memory_;
  std::unique_ptr<KvHost> below_;
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [groups][slots], as the device has them
  std::array<Sequence, kNumSlots> running_;
  std::vector<Swapped> swapped_;
  std::map<std::pair<int32_t, uint64_t>, std::vector<Cell>> disk_;
  uint64_t step_ = 0, completed_ = 0;
  int64_t now_us_ = 0, num_operations_ = 0;
};

void Stress(int64_t num_operations) {
  std::map<std::string, int64_t> counts;
  const auto num_policies = static_cast<int64_t>(EvictionPolicyNames().size());
  const int64_t rounds = 12 * num_policies;
  for (int64_t round = 0; round < rounds; ++round) {
    const std::string_view policy = EvictionPolicyNames()[static_cast<size_t>(round % num_policies)];
    Tiers tiers(static_cast<uint64_t>(round + 1), policy);
    for (int64_t i = 0; i < num_operations / rounds; ++i) {
      tiers.Operate();
      if (testing::Test::HasFatalFailure()) FAIL() << policy << ", round " << round << ", operation " << i;
    }
    for (const auto& [name, count] : tiers.counts) counts[name] += count;
  }
  for (const char* name : {"taken back", "offloaded", "taken over", "forked", "cancelled on the host", "swapped out", "swapped in", "recalled", "recalled from the host"}) {
    EXPECT_GT(counts[name], num_operations / 500) << name;
  }
}

TEST(KvTiersStress, AgainstANaiveModel) { Stress(100'000); }

// `make soak` runs it, under ASan, by --gtest_also_run_disabled_tests: a minute and a half, where the tests of a change have room for the 100,000 above.
TEST(KvTiersStress, DISABLED_TenMillionOperations) { Stress(10'000'000); }

}  // namespace
}  // namespace cachalot
