#include "hub/hub_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/file.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

class HubCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "hub_cache_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    ASSERT_TRUE(HubCache(root_, "org/name").Prepare().ok());
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string root_;
};

TEST_F(HubCacheTest, TheLayoutThatOthersHave) {
  const HubCache cache(root_, "org/name");
  const std::string commit(40, 'b');
  const HubFile file{.path = "sub/dir/x.gguf", .size = 5, .etag = std::string(64, 'e'), .lfs = true};
  EXPECT_FALSE(cache.HasBlob(file));
  ASSERT_TRUE(WriteFileAtomically(cache.BlobPath(file.etag), "bytes").ok());
  EXPECT_TRUE(cache.HasBlob(file));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(cache.Link(commit, file).ok());
    ASSERT_TRUE(cache.SetRef("main", commit).ok());
  }
  const std::string link = root_ + "/models--org--name/snapshots/" + commit + "/sub/dir/x.gguf";
  EXPECT_EQ(fs::read_symlink(link), "../../../../blobs/" + file.etag);
  EXPECT_EQ(ReadTextFile(link, 100).value(), "bytes");
  EXPECT_EQ(ReadTextFile(root_ + "/models--org--name/refs/main", 100).value(), commit);
  EXPECT_EQ(cache.Commit("main").value(), commit);
  EXPECT_EQ(cache.Commit(commit).value(), commit);
  EXPECT_EQ(cache.Commit("dev").status().code(), StatusCode::kNotFound);
  const auto files = cache.SnapshotFiles(commit);
  ASSERT_TRUE(files.ok());
  ASSERT_EQ(files->size(), 1u);
  EXPECT_EQ((*files)[0].path, file.path);
  EXPECT_EQ((*files)[0].size, 5);
  EXPECT_FALSE(cache.Link(commit, {.path = "../x", .size = 1, .etag = file.etag}).ok());
}

TEST_F(HubCacheTest, OneHolderAtATime) {
  const HubCache cache(root_, "org/name");
  std::optional<HubLock> first(HubLock::Take(cache, "e", {}, {}).value());
  std::atomic<bool> waits{false};
  std::thread other([&] {
    const auto second = HubLock::Take(cache, "e", {}, [&] { waits = true; });
    EXPECT_TRUE(second.ok());
  });
  while (!waits) std::this_thread::yield();
  EXPECT_EQ(HubLock::Take(cache, "e", [] { return true; }, {}).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(HubLock::Take(cache, "f", {}, {}).ok());
  first.reset();
  other.join();
}

}  // namespace
}  // namespace cachalot
