// The KV tiers under an engine, and trouble: of the disk, of the device, of the process, with the host's
// memory in between and without.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "base/fault.h"
#include "engine/engine_tier_testing.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

// Many at once, with what is cancelled, what wants all positions, and a disk whose reads and writes fail now
// and then: every answer is right.
TEST_F(EngineTierTest, TroubleChangesNoAnswer) {
  for (int32_t round = 0; round < 48; ++round) {
    const int32_t depth = round % 2;
    on_device_ = round % 4 >= 2;
    host_blocks_ = on_device_ && round % 8 >= 4 ? 30 : 0;
    Restart(depth, 48);
    ScopedFault reads("kvdisk.read", 5 + round, 2, /*again=*/true);
    ScopedFault writes(round % 3 == 0 ? "kvdisk.torn" : "kvdisk.write", 40, 1);
    std::vector<Request> requests;
    std::vector<std::shared_ptr<CollectedOutput>> got;
    std::vector<uint64_t> ids(10);
    for (int32_t i = 0; i < 10; ++i) {
      requests.push_back(MakeRequest(Prompt(30 + i, (i * round) % 5), 12));
      requests.back().prompt_logprobs = i == 3;
      got.push_back(Submit(requests.back(), &ids[static_cast<size_t>(i)]));
      if (i % 4 == 0) {
        ASSERT_TRUE(engine_->Step().ok());
      }
      if (i == 6) engine_->Cancel(ids[5]);
      if (i == 7 && round % 5 == 0) engine_->FlushCache();
    }
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i != 5) ExpectSame(*got[i], Expected(requests[i]));
    }
    ExpectNothingHeld();
  }
}

TEST_F(EngineTierTest, AnErrorOfTheDeviceLeavesTheDisk) {
  Restart();
  const Request request = MakeRequest(Prompt(50), 10);
  SubmitAndRun(request);
  Restart();
  {
    ScopedFault fault("device.op");
    EXPECT_EQ(SubmitAndRun(request)->reason, FinishReason::kError);
  }
  const auto got = SubmitAndRun(request);
  ExpectSame(*got, Expected(request));
  EXPECT_EQ(got->num_cached_tokens, 48);
}

// A device that fails while blocks are copied ends the requests of its steps, and nothing that is wrong is
// kept.
TEST_F(EngineTierTest, ACopyThatFails) {
  on_device_ = true;
  host_blocks_ = 100;
  int64_t num_failed = 0;
  for (int32_t round = 0; round < 24; ++round) {
    has_disk_ = round % 3 != 0;
    Restart(round % 2, 40);
    ScopedFault copies("device.copy", round, 1, /*again=*/true);
    for (int32_t i = 0; i < 20; ++i) {
      const Request request = MakeRequest(Prompt(60, (i * 7 + round) % 6), 8);
      const auto one = Submit(request), two = SubmitAndRun(request);
      for (const auto& got : {one, two}) {
        if (got->reason == FinishReason::kError)
          ++num_failed;
        else
          ExpectSame(*got, Expected(request));
      }
    }
    ExpectNothingHeld();
  }
  EXPECT_GT(num_failed, 20);
  EXPECT_LT(num_failed, 24 * 20);
}

TEST_F(EngineTierTest, AnErrorOfTheDeviceLeavesTheHost) {
  has_disk_ = false;
  on_device_ = true;
  host_blocks_ = 100;
  Restart();
  const Request request = MakeRequest(Prompt(50), 10);
  SubmitAndRun(request);
  {
    ScopedFault fault("device.op");
    EXPECT_EQ(SubmitAndRun(MakeRequest(Prompt(50, 3), 10))->reason, FinishReason::kError);
  }
  const auto got = SubmitAndRun(request);
  ExpectSame(*got, Expected(request));
  EXPECT_EQ(got->num_cached_tokens, 48);
  EXPECT_EQ(host().promotions, 1);
}

// Of the files nothing wrong is served: each with a disk alone, and with the host's memory between it and a
// device.
class EngineTierFilesTest : public EngineTierTest, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr int32_t kPrompts = 12;

  void SetUp() override {
    EngineTierTest::SetUp();
    on_device_ = GetParam();
    host_blocks_ = on_device_ ? 60 : 0;
  }
  // Of prompts that do not all fit in the cache.
  void AskAll() {
    for (int32_t i = 0; i < kPrompts; ++i) {
      const Request request = MakeRequest(Prompt(58, i), 8);
      ExpectSame(*SubmitAndRun(request), Expected(request));
    }
  }
  // `what` runs in a process of its own, which ends by itself or is killed: its state.
  template <typename Fn>
  int InProcess(Fn what, int32_t kill_after_us = -1) {
    engine_.reset();  // its threads would not be there
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      what(ready[1]);
      ::_exit(HasFailure() ? 1 : 0);
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    if (kill_after_us >= 0) {
      ::usleep(static_cast<useconds_t>(kill_after_us));
      ::kill(child, SIGKILL);
    }
    int state = 0;
    ::waitpid(child, &state, 0);
    ::close(ready[0]);
    return state;
  }
  std::vector<fs::path> Segments() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      if (entry.is_regular_file() && entry.path().extension() == ".segment") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  static std::string Slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void Put(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }
};

TEST_P(EngineTierFilesTest, KilledWhileItWrites) {
  std::mt19937 rng(11);
  int64_t num_promoted = 0;
  for (int32_t round = 0; round < 10; ++round) {
    const int state = InProcess(
        [&](int ready) {
          Restart(round % 2, 40);
          for (int32_t i = 0;; ++i) {
            // New ones all the time, so that it never has nothing to write.
            const Request request =
                MakeRequest(Prompt(58, i % 2 == 0 ? (i / 2) % kPrompts : 100 * round + i), 8);
            SubmitAndRun(request);
            if (i == 6 && ::write(ready, "x", 1) != 1) ::_exit(1);
          }
        },
        static_cast<int32_t>(rng() % 20'000));
    ASSERT_TRUE(WIFSIGNALED(state)) << "it ended by itself";
    Restart(round % 2, 40);
    EXPECT_GT(stats().blocks, 0);
    AskAll();
    EXPECT_EQ(stats().unreadable_blocks, 0) << "a record whose header is there is whole";
    num_promoted += stats().promoted_blocks;
    ExpectNothingHeld();
    engine_.reset();
  }
  EXPECT_GT(num_promoted, 100);
}

TEST_P(EngineTierFilesTest, AFullDisk) {
  // Every write fails,
  for (const char* point : {"kvdisk.write", "kvdisk.torn"}) {
    Restart(1, 40);
    const ScopedFault full(point, 0, 1'000'000);
    for (int32_t round = 0; round < 2; ++round) AskAll();
    EXPECT_GT(stats().write_errors, 0);
    EXPECT_GT(stats().refused_blocks, 0);
    EXPECT_EQ(stats().written_blocks, 0);
    if (host_blocks_ > 0) {
      EXPECT_GT(host().written_blocks, 0);
    }
    ExpectNothingHeld();
  }
  // or the system takes no more than so much of a file.
  const int state = InProcess([&](int ready) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8000, 8000};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    Restart(1, 40);
    for (int32_t round = 0; round < 2; ++round) AskAll();
    EXPECT_EQ(stats().write_errors, 1) << "then it pauses";
    EXPECT_GT(stats().written_blocks, 5);
    EXPECT_GT(stats().refused_blocks, 0);
    engine_.reset();
    ASSERT_EQ(::write(ready, "x", 1), 1);
  });
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
  Restart(1, 40);
  EXPECT_GT(stats().blocks, 5);
  AskAll();
  EXPECT_EQ(stats().unreadable_blocks, 0);
  EXPECT_GT(stats().promoted_blocks, 0);
}

TEST_P(EngineTierFilesTest, FlippedBits) {
  Restart(1, 40);
  AskAll();
  engine_.reset();
  std::vector<std::pair<fs::path, std::string>> good;
  for (const fs::path& path : Segments()) good.emplace_back(path, Slurp(path));
  ASSERT_FALSE(good.empty());
  std::mt19937_64 rng(3);
  int64_t num_unreadable = 0, num_promoted = 0;
  for (int32_t round = 0; round < 30; ++round) {
    for (const fs::path& path : Segments()) fs::remove(path);
    for (auto [path, bytes] : good) {
      for (int32_t i = 0; i < 10; ++i)
        bytes[256 + rng() % (bytes.size() - 256)] ^= static_cast<char>(1 << rng() % 8);
      Put(path, bytes);
    }
    Restart(round % 2, 40);
    AskAll();
    num_unreadable += stats().unreadable_blocks;
    num_promoted += stats().promoted_blocks;
    ExpectNothingHeld();
    engine_.reset();
  }
  EXPECT_GE(num_unreadable, 20);
  EXPECT_GT(num_promoted, 30);
}

TEST_P(EngineTierFilesTest, ForeignFiles) {
  // The same prompts, of a model whose blocks hold something else.
  identity_ = "model-b";
  Restart(1, 40);
  for (int32_t i = 0; i < kPrompts; ++i) SubmitAndRun(MakeRequest(Prompt(58, i), 8));
  engine_.reset();
  ASSERT_FALSE(Segments().empty());
  const std::string other = Slurp(Segments().front());
  identity_ = "model-a";
  Restart(1, 40);
  SubmitAndRun(MakeRequest(Prompt(58, 0), 8));
  engine_.reset();
  const std::string ours = Slurp(Segments().back());
  std::mt19937_64 rng(5);
  std::string noise(5000, '\0');
  for (char& c : noise) c = static_cast<char>(rng());
  Put(dir_ / "kv-0000000000000100.segment", noise);
  Put(dir_ / "kv-0000000000000101.segment", "");
  Put(dir_ / "kv-0000000000000102.segment",
      ours.substr(0, 256) + other.substr(256));  // the other's records as ours
  Put(dir_ / "kv-0000000000000103.segment", ours.substr(0, 256) + noise);
  Put(dir_ / "notes.txt", "mine");
  fs::create_directory(dir_ / "kv-0000000000000104.segment");
  fs::create_symlink("notes.txt", dir_ / "kv-0000000000000105.segment");
  for (int32_t process = 0; process < 2; ++process) {
    Restart(1, 40);
    EXPECT_GT(stats().blocks, 0);
    for (int32_t round = 0; round < 2; ++round) AskAll();
    EXPECT_GT(stats().promoted_blocks, 0);
    ExpectNothingHeld();
    engine_.reset();
  }
  EXPECT_EQ(Slurp(dir_ / "notes.txt"), "mine");
  EXPECT_TRUE(fs::is_directory(dir_ / "kv-0000000000000104.segment"));
}

INSTANTIATE_TEST_SUITE_P(DiskAndHost, EngineTierFilesTest, ::testing::Bool(),
                         [](const auto& which) { return which.param ? "WithTheHostBetween" : "Alone"; });

}  // namespace
}  // namespace cachalot
