// Blocks that come back from the disk into the host's memory before anybody asks for them.
#include "engine/engine_tier_testing.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

// After a restart the disk's blocks come back into the host's memory before anybody asks: all, or those that were written last.
TEST_F(EngineTierTest, TheHostIsFullAgainAfterARestart) {
  on_device_ = true;
  for (const int64_t host_blocks : {300, 20}) {
    SCOPED_TRACE(host_blocks);
    host_blocks_ = host_blocks;
    engine_.reset();
    fs::remove_all(dir_);
    Restart(1, 256);
    for (int32_t i = 0; i < 8; ++i) SubmitAndRun(MakeRequest(Prompt(58, i), 10));
    const int64_t num_blocks = stats().blocks;
    Restart(1, 256);
    EXPECT_EQ(host().blocks, 0);
    EXPECT_TRUE(engine_->HasWork());
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    EXPECT_EQ(host().blocks, host_blocks == 300 ? num_blocks : 2 * host_blocks) << "of both groups";
    EXPECT_EQ(host().evicted_blocks, 0);
    EXPECT_EQ(stats().read_blocks, host().blocks);
    const Request last = MakeRequest(Prompt(58, 7), 10);
    const auto got = SubmitAndRun(last);
    ExpectSame(*got, Expected(last));
    EXPECT_EQ(got->num_cached_tokens, 56);
    EXPECT_GT(host().promoted_blocks, 0);
    EXPECT_EQ(stats().promoted_blocks, 0) << "nothing from the disk";
    ExpectNothingHeld();
    // Those who ask come first.
    Restart(1, 256);
    const Request first = MakeRequest(Prompt(58, 0), 10);
    const auto at_once = SubmitAndRun(first);
    ExpectSame(*at_once, Expected(first));
    EXPECT_EQ(at_once->num_cached_tokens, 56);
    EXPECT_GT(stats().promoted_blocks, 0);
    Restart(1, 256);
    engine_->FlushCache();
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    EXPECT_EQ(host().blocks, 0) << "nothing comes back after a flush";
  }
}

}  // namespace
}  // namespace cachalot
