// The tiers below the KV cache under tiny models on the CPU, where there is the disk only: the answers are those without any cache.
#include <filesystem>

#include <unistd.h>

#include "base/fault.h"
#include "golden/tiers_harness.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

class TiersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setup_.disk = ::testing::TempDir() + fmt::format("cachalot_tiers_{}", ::getpid());
    fs::remove_all(setup_.disk);
  }
  void TearDown() override { fs::remove_all(setup_.disk); }
  TierSetup setup_;
};

TEST_F(TiersTest, ADiskChangesNoAnswer) {
  for (const char* model : {"tiny-llama", "tiny-mistral", "tiny-deepseek-v3"}) {
    for (const char* type : {"auto", "k6v8"}) {
      SCOPED_TRACE(fmt::format("{}, {}", model, type));
      fs::remove_all(setup_.disk);
      setup_.model = model;
      setup_.kv_type = type;
      const auto want = PlainAnswers(setup_);
      for (int32_t process = 0; process < 2; ++process) {
        TierModel tiers(setup_);
        for (int32_t round = 0; round < 2; ++round) ExpectSameAnswers(tiers.AskAll(), want, fmt::format("process {}, round {}", process, round));
        if (process == 0) {  // of a window only the last blocks come back
          EXPECT_GT(tiers.engine().stats().cache_evictions, 20);
        }
        EXPECT_GT(tiers.disk().promoted_blocks, 40);
        EXPECT_FALSE(tiers.host().present);
      }
    }
  }
}

TEST_F(TiersTest, TroubleChangesNoAnswer) {
  const auto want = PlainAnswers(setup_);
  for (int32_t round = 0; round < 6; ++round) {
    TierModel tiers(setup_);
    ScopedFault reads("kvdisk.read", 3 + round, 2, /*again=*/true);
    ScopedFault writes("kvdisk.torn", 30, 1);
    std::vector<TierAnswer> got(kTierPrompts);
    std::vector<uint64_t> ids;
    for (int32_t number = 0; number < kTierPrompts; ++number) {
      ids.push_back(tiers.Submit(number, &got[static_cast<size_t>(number)]));
      for (int32_t i = 0; i < round; ++i) ASSERT_TRUE(tiers.engine().Step().ok());
      if (number == 5) tiers.engine().Cancel(ids[4]);
      if (number == 6 && round % 2 == 1) tiers.engine().FlushCache();
    }
    tiers.Run();
    got[4] = want[4];
    ExpectSameAnswers(got, want, fmt::format("round {}", round));
  }
}

TEST_F(TiersTest, ATierInTheHostsMemoryNeedsADevice) {
  ModelOptions options;
  options.dummy = "tiny-llama";
  options.kv_host_bytes = 1 << 20;
  const auto bundle = PlanModel(options);
  ASSERT_FALSE(bundle.ok());
  EXPECT_NE(bundle.status().message().find("--kv-offloading-size"), std::string::npos) << bundle.status().ToString();
}

}  // namespace
}  // namespace cachalot
