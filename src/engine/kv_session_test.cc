// Sessions in files: saved by one engine, loaded by another.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/fault.h"
#include "engine/engine_testing.h"
#include "sched/fake_device.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

class KvSessionTest : public EngineTest {
 protected:
  void SetUp() override { path_ = fs::path(::testing::TempDir()) / fmt::format("cachalot_session_{}", ::getpid()); }
  void TearDown() override { fs::remove(path_); }
  void Restart(const std::string& identity = "model-a", int32_t num_blocks = 256) {
    engine_.reset();
    ExecutorInfo info = Info(num_blocks);
    for (KvGroupInfo& group : info.kv_groups) group.block_bytes = group.block_tokens * FakeDevice::kCellBytes;
    info.kv_identity = identity;
    Create(info);
  }
  // A conversation of 50 tokens and an answer; its tokens.
  std::vector<int32_t> Talk() {
    Request request = MakeRequest(Prompt(50), 10);
    std::vector<int32_t> tokens = request.prompt_ids;
    const auto got = SubmitAndRun(request);
    tokens.insert(tokens.end(), got->tokens.begin(), got->tokens.end());
    return tokens;
  }
  std::string Slurp() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Put(const std::string& text) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << text; }

  fs::path path_;
};

TEST_F(KvSessionTest, ComesBack) {
  Restart();
  const std::vector<int32_t> tokens = Talk();
  ASSERT_TRUE(engine_->SaveSession(path_.string(), "what was said", tokens).ok());
  EXPECT_EQ(fs::status(path_).permissions() & fs::perms::others_all, fs::perms::none);
  Restart();
  const auto loaded = engine_->LoadSession(path_.string());
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->note, "what was said");
  EXPECT_TRUE(loaded->same_model);
  EXPECT_GT(loaded->num_blocks, 14);
  Request turn = MakeRequest(tokens, 5);
  turn.prompt_ids.push_back(3);
  const auto got = SubmitAndRun(turn);
  ExpectSame(*got, Expected(turn));
  EXPECT_EQ(got->num_cached_tokens, 56);
  ExpectNothingHeld();
  // Once more, over what is cached already.
  ASSERT_TRUE(engine_->LoadSession(path_.string()).ok());
  ExpectSame(*SubmitAndRun(turn), Expected(turn));
}

TEST_F(KvSessionTest, OfAnotherModelOnlyTheText) {
  Restart();
  ASSERT_TRUE(engine_->SaveSession(path_.string(), "text", Talk()).ok());
  Restart("model-b");
  const auto loaded = engine_->LoadSession(path_.string());
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->note, "text");
  EXPECT_FALSE(loaded->same_model);
  EXPECT_EQ(loaded->num_blocks, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_cached[0], 0);
}

TEST_F(KvSessionTest, ASmallCacheTakesWhatFits) {
  Restart();
  const std::vector<int32_t> tokens = Talk();
  ASSERT_TRUE(engine_->SaveSession(path_.string(), "text", tokens).ok());
  Restart("model-a", 7);
  ASSERT_TRUE(engine_->LoadSession(path_.string()).ok());
  const Request other = MakeRequest(Prompt(20, 9), 4);
  ExpectSame(*SubmitAndRun(other), Expected(other));
  ExpectNothingHeld();
}

// Whatever became of the file: an error, or answers that are right.
TEST_F(KvSessionTest, DamagedFiles) {
  Restart();
  const std::vector<int32_t> tokens = Talk();
  ASSERT_TRUE(engine_->SaveSession(path_.string(), "text", tokens).ok());
  const std::string good = Slurp();
  Request turn = MakeRequest(tokens, 5);
  std::mt19937_64 rng(11);
  int32_t num_refused = 0;
  for (int round = 0; round < 120; ++round) {
    std::string bad = good;
    if (round % 3 == 0) bad.resize(rng() % bad.size());
    else bad[rng() % (round % 3 == 1 ? 600 : bad.size())] ^= static_cast<char>(1 << rng() % 7);
    Put(bad);
    Restart();
    const auto loaded = engine_->LoadSession(path_.string());
    if (loaded.ok()) {
      EXPECT_EQ(loaded->note, "text");
    } else {
      ++num_refused;
      EXPECT_EQ(loaded.status().code(), StatusCode::kCorrupt) << loaded.status().ToString();
    }
    ExpectSame(*SubmitAndRun(turn), Expected(turn));
  }
  EXPECT_GT(num_refused, 5);
  EXPECT_LT(num_refused, 110);
  EXPECT_EQ(engine_->LoadSession(path_.string() + "-not-there").status().code(), StatusCode::kNotFound);
}

TEST_F(KvSessionTest, AFullDiskLeavesTheOldFile) {
  Restart();
  const std::vector<int32_t> tokens = Talk();
  ASSERT_TRUE(engine_->SaveSession(path_.string(), "old", tokens).ok());
  {
    ScopedFault fault("file.write", 3);
    EXPECT_FALSE(engine_->SaveSession(path_.string(), "new", tokens).ok());
  }
  EXPECT_EQ(engine_->LoadSession(path_.string())->note, "old");
  EXPECT_FALSE(engine_->SaveSession("/nowhere/at/all", "new", tokens).ok());
}

}  // namespace
}  // namespace cachalot
