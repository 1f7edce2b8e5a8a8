// The tiers below a KV cache on the GPU: far too little of it, a tier in the host's memory, one on the disk, or both. The answers
// are those without any cache, bit for bit, since these models run deterministically.
#include <filesystem>

#include <unistd.h>

#include "base/fault.h"
#include "golden/tiers_harness.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

class GpuTiers : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + fmt::format("cachalot_gpu_tiers_{}", ::getpid());
    fs::remove_all(folder_);
    setup_.device = "cuda";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_;
  TierSetup setup_;
};

constexpr int64_t kMuch = 64 << 20;

// Tokens that are found again when all prompts were computed once. A sliding window drops blocks before they are known, so that of a prompt that
// ends a block behind a page a block less is found.
int64_t NumFoundAgain(std::string_view model) { return kTierPrompts * (kTierPromptTokens - (model == "tiny-mistral" ? 32 : 16)); }

// Of the size that so many of the prompts take.
int64_t HostBytes(const TierSetup& setup, double prompts) {
  TierModel model(setup);
  int64_t token_bytes = 0;
  for (const KvGroupInfo& group : model.bundle().runtime->info().kv_groups) token_bytes += group.block_bytes / group.block_tokens;
  return static_cast<int64_t>(prompts * 200) * token_bytes;
}

TEST_F(GpuTiers, TheHostsMemoryChangesNoAnswer) {
  for (const auto& [model, type] : std::vector<std::pair<std::string, std::string>>{
           {"tiny-llama", "auto"}, {"tiny-llama", "k6v8"}, {"tiny-llama", "fp8"}, {"tiny-llama", "k4v4"}, {"tiny-mistral", "auto"},
           {"tiny-mistral", "k8v8"}, {"tiny-deepseek-v3", "auto"}, {"tiny-deepseek-v3", "k6v8"}}) {
    setup_.model = model;
    setup_.kv_type = type;
    setup_.host_bytes = 0;
    const auto want = PlainAnswers(setup_);
    // Blocks come whole, or some layers at a time.
    for (const auto& [depth, graphs, slice] : {std::tuple{1, true, 1}, std::tuple{1, false, 1}, std::tuple{0, true, 0}, std::tuple{1, true, 0}}) {
      SCOPED_TRACE(fmt::format("{}, {}, depth {}, {}, slices of {}", model, type, depth, graphs ? "graphs" : "ops", slice));
      setup_.gpu_depth = depth;
      setup_.gpu_graphs = graphs;
      setup_.slice_bytes = slice;
      setup_.host_bytes = kMuch;
      TierModel tiers(setup_);
      for (int32_t round = 0; round < 3; ++round) {
        const auto got = tiers.AskAll();
        ExpectSameAnswers(got, want, fmt::format("round {}", round));
        if (round > 0) {
          EXPECT_GE(NumCached(got), NumFoundAgain(model)) << "what was computed once is found again";
        }
      }
      EXPECT_GT(tiers.engine().stats().cache_evictions, 20);
      EXPECT_GT(tiers.host().promoted_blocks, 40);
      EXPECT_EQ(tiers.host().declined, 0);
      EXPECT_GT(tiers.host().read_bytes_per_second, 0) << "measured";
      EXPECT_FALSE(tiers.disk().present);
    }
  }
}

TEST_F(GpuTiers, ADiskOutlivesTheProcess) {
  for (const auto& [model, type] : std::vector<std::pair<std::string, std::string>>{
           {"tiny-llama", "auto"}, {"tiny-llama", "k6v8"}, {"tiny-mistral", "auto"}, {"tiny-deepseek-v3", "k8v8"}}) {
    setup_.model = model;
    setup_.kv_type = type;
    setup_.disk = "";
    setup_.host_bytes = 0;
    const auto want = PlainAnswers(setup_);
    for (const int64_t host_bytes : {int64_t{0}, HostBytes(setup_, 3)}) {
      fs::remove_all(folder_);
      setup_.disk = folder_;
      setup_.host_bytes = host_bytes;
      for (int32_t process = 0; process < 2; ++process) {
        SCOPED_TRACE(fmt::format("{}, {}, {} bytes of the host, process {}", model, type, host_bytes, process));
        TierModel tiers(setup_);
        for (int32_t round = 0; round < 2; ++round) {
          const auto got = tiers.AskAll();
          ExpectSameAnswers(got, want, fmt::format("round {}", round));
          if (process + round > 0) {
            EXPECT_GE(NumCached(got), NumFoundAgain(model));
          }
        }
        if (host_bytes > 0 && process == 1) {  // some of them come back into the host's memory before they are asked for
          EXPECT_GE(tiers.disk().read_blocks, 40);
          EXPECT_GE(tiers.disk().promoted_blocks + tiers.host().promoted_blocks, 40);
        } else {
          EXPECT_GE(tiers.disk().promoted_blocks, 40);
        }
        EXPECT_EQ(tiers.disk().unreadable_blocks, 0);
        if (host_bytes > 0 && process == 0) {
          EXPECT_GT(tiers.host().evicted_blocks, 0);
        }
      }
    }
  }
}

// Many at once, some of them cancelled while their blocks are on their way, and the cache flushed between: nobody's answer changes.
TEST_F(GpuTiers, CancelsAndFlushesChangeNoAnswer) {
  const auto want = PlainAnswers(setup_);
  setup_.disk = folder_;
  setup_.host_bytes = HostBytes(setup_, 4);
  TierModel tiers(setup_);
  for (int32_t round = 0; round < 24; ++round) {
    std::vector<TierAnswer> got(kTierPrompts);
    std::vector<uint64_t> ids;
    for (int32_t i = 0; i < kTierPrompts; ++i) {
      const int32_t number = (i * 3 + round) % kTierPrompts;
      ids.push_back(tiers.Submit(number, &got[static_cast<size_t>(number)]));
      for (int32_t steps = 0; steps < round % 4; ++steps) ASSERT_TRUE(tiers.engine().Step().ok());
      if (i >= 2 && i % 3 == 2) {
        tiers.engine().Cancel(ids[static_cast<size_t>(i) - static_cast<size_t>(round) % 2]);
        got[static_cast<size_t>((i - round % 2) * 3 + round) % kTierPrompts].error = Cancelled("");
      }
      if (round % 6 == 5 && i == 4) tiers.engine().FlushCache();
    }
    tiers.Run();
    for (size_t i = 0; i < got.size(); ++i) {
      if (!got[i].error.ok()) got[i] = want[i];
    }
    ExpectSameAnswers(got, want, fmt::format("round {}", round));
    for (const int32_t used : tiers.engine().stats().kv_blocks_used) EXPECT_EQ(used, 0);
  }
  EXPECT_GT(tiers.host().promoted_blocks, 100);
  EXPECT_GT(tiers.disk().promoted_blocks, 0);
  tiers.engine().FlushCache();
  EXPECT_EQ(tiers.host().blocks, 0);
  EXPECT_EQ(tiers.Ask(0).num_cached, 0);
}

// Steps and copies that fail, the device lost or not: who is in such a step ends with an error, and what the host's memory has
// is right, and used, afterwards.
TEST_F(GpuTiers, FaultsChangeNoAnswer) {
  const auto want = PlainAnswers(setup_);
  setup_.host_bytes = kMuch;
  for (const bool lost : {false, true}) {
    for (const char* point : {"device.op", "device.copy"}) {
      SCOPED_TRACE(fmt::format("{}{}", point, lost ? ", and the device is lost" : ""));
      TierModel tiers(setup_);
      ExpectSameAnswers(tiers.AskAll(), want, "before");
      const int64_t before = tiers.host().promoted_blocks;
      int32_t num_failed = 0;
      for (int32_t round = 0; round < 4; ++round) {
        ScopedFault fault(point, 2 * round, 1, /*again=*/std::string_view(point) == "device.copy");
        ScopedFault gone("device.rebuild", lost ? 0 : 1 << 20);
        std::vector<TierAnswer> got(kTierPrompts);
        for (int32_t number = 0; number < kTierPrompts; ++number) tiers.Submit(number, &got[static_cast<size_t>(number)]);
        tiers.Run();
        for (size_t i = 0; i < got.size(); ++i) {
          if (got[i].error.ok()) continue;
          ++num_failed;
          got[i] = want[i];
        }
        ExpectSameAnswers(got, want, fmt::format("round {}", round));
      }
      EXPECT_GT(tiers.engine().stats().recoveries, 0);
      // A copy that cannot begin ends nobody who still waits for it.
      if (std::string_view(point) == "device.op") EXPECT_GT(num_failed, 0);
      EXPECT_GT(tiers.host().promoted_blocks, before + 40) << "it outlives the device";
      ExpectSameAnswers(tiers.AskAll(), want, "after");
    }
  }
}

TEST_F(GpuTiers, LayersOnBothSides) {
  for (const char* model : {"tiny-llama", "tiny-deepseek-v3"}) {
    SCOPED_TRACE(model);
    setup_.model = model;
    setup_.gpu_layers = 1;
    setup_.disk = "";
    setup_.host_bytes = 0;
    const auto want = PlainAnswers(setup_);
    fs::remove_all(folder_);
    setup_.disk = folder_;
    for (const int64_t host_bytes : {kMuch, int64_t{0}}) {
      setup_.host_bytes = host_bytes;
      TierModel tiers(setup_);
      for (int32_t round = 0; round < 2; ++round) ExpectSameAnswers(tiers.AskAll(), want, fmt::format("round {}", round));
      EXPECT_GT((host_bytes > 0 ? tiers.host() : tiers.disk()).promoted_blocks, 40);
    }
  }
}

TEST_F(GpuTiers, SessionsOutliveTheProcess) {
  const auto want = PlainAnswers(setup_);
  const std::string path = folder_ + "/session";
  fs::create_directories(folder_);
  setup_.disk = folder_ + "/disk";  // so that blocks have a name that outlives the process
  {
    TierModel model(setup_);
    EXPECT_TRUE(model.Ask(3).Same(want[3]));
    ASSERT_TRUE(model.engine().SaveSession(path, "a note", TierPrompt(3)).ok());
  }
  fs::remove_all(setup_.disk);
  TierModel model(setup_);
  const auto session = model.engine().LoadSession(path);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  EXPECT_EQ(session->note, "a note");
  EXPECT_TRUE(session->same_model);
  const TierAnswer got = model.Ask(3);
  EXPECT_TRUE(got.Same(want[3]));
  EXPECT_GE(got.num_cached, kTierPromptTokens - 16);
}

}  // namespace
}  // namespace cachalot
