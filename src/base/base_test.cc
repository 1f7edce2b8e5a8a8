#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/available_memory.h"
#include "base/cpu_features.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/status.h"
#include "base/thread_pool.h"

namespace cachalot {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("{} is odd", x);
  return x / 2;
}

Status Quarter(int x, int* out) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  ASSIGN_OR_RETURN(*out, Half(half));
  return Status::Ok();
}

TEST(AvailableMemory, IsPlausible) {
  EXPECT_GT(AvailableMemoryBytes(), int64_t{16} << 20);
}

TEST(Status, PropagatesValueAndPlace) {
  int out = 0;
  EXPECT_TRUE(Quarter(12, &out).ok());
  EXPECT_EQ(out, 3);
  const Status status = Quarter(6, &out).WithContext("here");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.ToString(), "invalid_argument: here: 3 is odd");
}

TEST(ThreadPool, RunsEveryIndexOnceOnValidThreads) {
  for (int threads : {1, 2, 5, 19}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::atomic<int> bad_thread{0};
      for (int round = 0; round < 20; ++round) {
        pool.ParallelFor(count, [&](int64_t i, int thread) {
          hits[static_cast<size_t>(i)].fetch_add(1);
          if (thread < 0 || thread >= threads) bad_thread.fetch_add(1);
        });
      }
      for (auto& hit : hits) EXPECT_EQ(hit.load(), 20);
      EXPECT_EQ(bad_thread.load(), 0);
    }
  }
}

// Each thread begins with a range of its own and goes through it in order; what is left of the others' comes
// after it.
TEST(ThreadPool, AThreadWorksThroughItsRange) {
  ThreadPool pool(2);
  std::vector<int64_t> done[2];
  for (auto& indices : done) indices.reserve(10);
  std::atomic<int> begun{0};
  pool.ParallelFor(10, [&](int64_t i, int thread) {
    auto& mine = done[thread];
    mine.push_back(i);
    if (mine.size() > 1) return;
    begun.fetch_add(1);
    while (begun.load() < 2) std::this_thread::yield();
  });
  ASSERT_FALSE(done[0].empty() || done[1].empty());
  EXPECT_EQ(done[0].front(), 0);
  EXPECT_EQ(done[1].front(), 5);
  for (const auto& mine : done) {
    for (size_t i = 1; i < mine.size(); ++i)
      EXPECT_TRUE(mine[i] > mine[i - 1] || (mine[i] < 5 && mine[i - 1] >= 5));
  }
}

TEST(CpuFeatures, ParseIsa) {
  EXPECT_EQ(*ParseIsa("ref"), Isa::kRef);
  EXPECT_EQ(*ParseIsa("auto"), std::min(BestIsa(), Isa::kAvx512));
  EXPECT_EQ(ParseIsa("mmx").status().code(), StatusCode::kInvalidArgument);
  EXPECT_GE(NumPhysicalCores(), 1);
}

TEST(Fault, HitsTheCallsItNames) {
  EXPECT_FALSE(FaultHits("x"));
  {
    ScopedFault fault("x", /*skip=*/1, /*times=*/2);
    EXPECT_FALSE(FaultHits("x"));
    EXPECT_FALSE(FaultHits("y"));
    EXPECT_TRUE(FaultHits("x"));
    EXPECT_TRUE(FaultHits("x"));
    EXPECT_FALSE(FaultHits("x"));
  }
  EXPECT_FALSE(FaultHits("x"));
}

TEST(File, ReadsWritesAndRefuses) {
  const auto dir = std::filesystem::temp_directory_path() / "cachalot_base_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const std::string path = (dir / "a.bin").string();
  ASSERT_TRUE(WriteFileAtomically(path, "hello").ok());
  auto file = File::Open(path);
  ASSERT_TRUE(file.ok());
  std::byte out[3];
  ASSERT_TRUE((*file)->ReadAt(2, out).ok());
  EXPECT_EQ(static_cast<char>(out[0]), 'l');
  EXPECT_EQ((*file)->ReadAt(3, out).code(), StatusCode::kCorrupt);
  EXPECT_EQ((*file)->ReadAt(-1, out).code(), StatusCode::kCorrupt);
  EXPECT_EQ((*file)->ReadAt(INT64_MAX, out).code(), StatusCode::kCorrupt);
  EXPECT_EQ(File::Open((dir / "none").string()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(File::Open(dir.string()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTextFile(path, 4).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*ReadTextFile(path, 5), "hello");
  {
    ScopedFault fault("file.write");
    EXPECT_FALSE(WriteFileAtomically(path, "broken").ok());
  }
  // A link's target is replaced, not the link; what is no regular file is written to and stays what it is.
  const std::string link = (dir / "link").string();
  std::filesystem::create_symlink(path, link);
  ASSERT_TRUE(WriteFileAtomically(link, "again").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(*ReadTextFile(path, 5), "again");
  ASSERT_TRUE(WriteFileAtomically(path, "hello").ok());
  // A link to what is not there yet: that is made, and the link stays.
  const std::string dangling = (dir / "dangling").string();
  std::filesystem::create_symlink("later", dangling);
  ASSERT_TRUE(WriteFileAtomically(dangling, "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(dangling));
  EXPECT_EQ(*ReadTextFile((dir / "later").string(), 5), "new");
  std::filesystem::create_symlink("circle", dir / "circle");
  EXPECT_FALSE(ResolveOutput((dir / "circle").string()).in_place);
  EXPECT_TRUE(ResolveOutput("/dev/null").in_place);
  EXPECT_FALSE(ResolveOutput((dir / "new").string()).in_place);
  EXPECT_EQ(*ReadTextFile(path, 5), "hello");
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace cachalot
