// The KV tier on disk: what it brings back is what was written, or nothing, whatever became of the files.
#include "kv/kv_disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "base/fault.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

const std::vector<int64_t> kBlockBytes = {1000, 333};

std::vector<std::byte> Content(int32_t group, uint64_t n) {
  std::mt19937_64 rng(n * 31 + static_cast<uint64_t>(group));
  std::vector<std::byte> bytes(static_cast<size_t>(kBlockBytes[static_cast<size_t>(group)]));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
  return bytes;
}

BlockKey Key(uint64_t n) { return {n * 0x9e3779b97f4a7c15u, n}; }

class KvDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / fmt::format("cachalot_kv_disk_{}", ::getpid());
    fs::remove_all(dir_);
  }
  void TearDown() override {
    disk_.reset();
    fs::remove_all(dir_);
  }
  void Open(std::string_view identity = "model-a") {
    disk_.reset();
    auto disk = KvDisk::Open({.dir = dir_.string(), .max_bytes = max_bytes_, .num_readers = 3, .retry_ms = retry_ms_}, identity, kBlockBytes);
    ASSERT_TRUE(disk.ok()) << disk.status().ToString();
    disk_ = std::move(*disk);
  }
  bool Write(int32_t group, uint64_t n) {
    Take();
    if (disk_->paused() || !disk_->HasRoom(group)) {
      disk_->CountRefused();
      return false;
    }
    const auto& bytes = written_[++tag_] = Content(group, n);
    disk_->Write(tag_, group, Key(n), bytes);
    return true;
  }
  // What was written is the disk's until it says so.
  void Take() {
    disk_->TakeDone(&done_);
    for (const KvDisk::Done& done : done_) {
      if (done.is_read) {
        ended_.emplace(done.tag, done.ok);
      } else {
        EXPECT_EQ(written_.erase(done.tag), 1u);
      }
    }
  }
  // Whether the block is there; what there is must be right.
  bool Read(int32_t group, uint64_t n) {
    std::vector<std::byte> bytes(static_cast<size_t>(kBlockBytes[static_cast<size_t>(group)]));
    disk_->StartRead(++tag_, group, Key(n), bytes);
    for (Take(); !ended_.contains(tag_); Take()) disk_->WaitForDone(1'000'000);
    if (ended_.at(tag_)) {
      EXPECT_EQ(bytes, Content(group, n)) << "block " << n << " of group " << group;
    }
    return ended_.at(tag_);
  }
  int64_t CountReadable(uint64_t begin, uint64_t end) {
    int64_t count = 0;
    for (uint64_t n = begin; n < end; ++n) count += Read(static_cast<int32_t>(n % 2), n);
    return count;
  }
  void WriteMany(uint64_t begin, uint64_t end) {
    for (uint64_t n = begin; n < end; ++n) ASSERT_TRUE(Write(static_cast<int32_t>(n % 2), n));
    disk_->Flush();
  }
  std::vector<fs::path> Segments() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      if (entry.path().extension() == ".segment") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  int64_t BytesOnDisk() const {
    int64_t bytes = 0;
    for (const auto& path : Segments()) bytes += static_cast<int64_t>(fs::file_size(path));
    return bytes;
  }
  static std::string Slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void Put(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }

  fs::path dir_;
  int64_t max_bytes_ = 1 << 20;
  int32_t retry_ms_ = 10'000;
  uint64_t tag_ = 0;
  std::vector<KvDisk::Done> done_;
  std::map<uint64_t, std::vector<std::byte>> written_;  // by tag
  std::map<uint64_t, bool> ended_;                      // reads
  std::unique_ptr<KvDisk> disk_;
};

TEST_F(KvDiskTest, SurvivesARestart) {
  Open();
  WriteMany(0, 40);
  EXPECT_EQ(CountReadable(0, 40), 40);
  EXPECT_FALSE(Read(1, 0)) << "the same key in another group is another block";
  EXPECT_TRUE(disk_->Contains(0, Key(2)));
  EXPECT_FALSE(disk_->Contains(0, Key(100)));
  Open();
  EXPECT_EQ(disk_->stats().blocks, 40);
  EXPECT_EQ(disk_->stats().bytes, BytesOnDisk());
  EXPECT_EQ(CountReadable(0, 50), 40);
  EXPECT_EQ(disk_->stats().read_blocks, 40);
  EXPECT_EQ(disk_->stats().unreadable_blocks, 0);
  WriteMany(40, 60);
  Open();
  EXPECT_EQ(CountReadable(0, 60), 60);
}

TEST_F(KvDiskTest, WhatIsQueuedIsThereAndIsWrittenAtTheEnd) {
  Open();
  for (uint64_t n = 0; n < 30; ++n) Write(0, n);
  for (uint64_t n = 30; n-- > 0;) EXPECT_TRUE(Read(0, n));
  Open();
  EXPECT_EQ(disk_->stats().blocks, 30);
}

TEST_F(KvDiskTest, ModelsDoNotMeet) {
  Open("model-a");
  WriteMany(0, 20);
  Open("model-b");
  EXPECT_EQ(disk_->stats().blocks, 0);
  EXPECT_EQ(disk_->stats().bytes, BytesOnDisk()) << "the other's count";
  EXPECT_EQ(CountReadable(0, 20), 0);
  WriteMany(100, 110);
  Open("model-a");
  EXPECT_EQ(CountReadable(0, 20), 20);
  EXPECT_EQ(CountReadable(100, 110), 0);
}

TEST_F(KvDiskTest, ADirectoryBelongsToOne) {
  Open();
  const auto second = KvDisk::Open({.dir = dir_.string(), .max_bytes = max_bytes_}, "model-a", kBlockBytes);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("another process"), std::string::npos) << second.status().ToString();
  EXPECT_FALSE(KvDisk::Open({.dir = dir_.string() + "/2", .max_bytes = 1000}, "model-a", kBlockBytes).ok()) << "too small";
  Put(dir_ / "file", "");
  EXPECT_FALSE(KvDisk::Open({.dir = (dir_ / "file").string(), .max_bytes = max_bytes_}, "model-a", kBlockBytes).ok());
}

TEST_F(KvDiskTest, KeepsToItsSizeAndKeepsWhatIsUsed) {
  max_bytes_ = 160 << 10;
  Open();
  WriteMany(0, 10);
  for (uint64_t n = 10; n < 2000; ++n) {
    for (uint64_t used = 0; used < 4; ++used) disk_->Touch(static_cast<int32_t>(used % 2), Key(used));
    ASSERT_TRUE(Write(static_cast<int32_t>(n % 2), n));
    if (n % 50 != 0) continue;
    disk_->Flush();
    ASSERT_LE(BytesOnDisk(), max_bytes_);
    ASSERT_EQ(BytesOnDisk(), disk_->stats().bytes);
  }
  EXPECT_GT(disk_->stats().evicted_blocks, 1500);
  EXPECT_EQ(CountReadable(0, 4), 4) << "used all the time";
  EXPECT_EQ(CountReadable(4, 1000), 0);
  EXPECT_GT(CountReadable(1900, 2000), 60);
  EXPECT_EQ(disk_->stats().unreadable_blocks, 0);
  Open();
  EXPECT_EQ(CountReadable(0, 4), 4);
  // Another model's files make place too.
  Open("model-b");
  WriteMany(0, 300);
  EXPECT_LE(BytesOnDisk(), max_bytes_);
  EXPECT_GT(CountReadable(0, 300), 60);
  Open("model-a");
  EXPECT_EQ(CountReadable(0, 2000), 0);
}

TEST_F(KvDiskTest, ForgetsOnTheDiskToo) {
  Open("model-b");
  WriteMany(0, 10);
  Open("model-a");
  WriteMany(0, 40);
  for (uint64_t n = 40; n < 60; ++n) Write(0, n);
  disk_->Forget();
  EXPECT_EQ(disk_->stats().blocks, 0);
  disk_->Flush();
  EXPECT_EQ(CountReadable(0, 60), 0);
  EXPECT_EQ(Segments().size(), 1u) << "the other model's";
  WriteMany(100, 110);
  EXPECT_EQ(CountReadable(100, 110), 10);
  Open("model-a");
  EXPECT_EQ(disk_->stats().blocks, 10);
  Open("model-b");
  EXPECT_EQ(disk_->stats().blocks, 10);
}

TEST_F(KvDiskTest, AFullDiskPausesWriting) {
  for (const char* point : {"kvdisk.write", "kvdisk.torn"}) {
    retry_ms_ = 1'000'000;
    Open();
    WriteMany(0, 10);
    {
      ScopedFault fault(point);
      Write(0, 10);
      disk_->Flush();
    }
    EXPECT_EQ(disk_->stats().write_errors, 1);
    EXPECT_FALSE(Write(1, 11)) << "paused";
    EXPECT_EQ(disk_->stats().refused_blocks, 1);
    EXPECT_FALSE(disk_->Contains(0, Key(10)));
    EXPECT_EQ(CountReadable(0, 12), 10) << "what is there can be read";
    retry_ms_ = 0;
    Open();
    EXPECT_EQ(CountReadable(0, 12), 10);
    {
      ScopedFault fault(point, 3, 5);
      for (uint64_t n = 20; n < 40; ++n) {
        Write(0, n);
        disk_->Flush();
      }
    }
    int64_t count = 0;
    for (uint64_t n = 20; n < 40; ++n) count += Read(0, n);
    EXPECT_EQ(count, 15);
    Open();
    count = 0;
    for (uint64_t n = 20; n < 40; ++n) count += Read(0, n);
    EXPECT_EQ(count, 15);
    disk_.reset();
    fs::remove_all(dir_);
  }
}

TEST_F(KvDiskTest, AFailingReadIsAMiss) {
  Open();
  WriteMany(0, 10);
  ScopedFault fault("kvdisk.read", 2, 3);
  EXPECT_EQ(CountReadable(0, 10), 7);
  EXPECT_EQ(disk_->stats().unreadable_blocks, 3);
  EXPECT_EQ(disk_->stats().blocks, 7) << "and forgotten";
}

// Writes as fast as it can until it is killed; afterwards everything that is found is right.
TEST_F(KvDiskTest, KilledWhileItWrites) {
  max_bytes_ = 256 << 10;
  std::mt19937 rng(7);
  int64_t num_found = 0;
  for (int round = 0; round < 12; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto disk = KvDisk::Open({.dir = dir_.string(), .max_bytes = max_bytes_}, "model-a", kBlockBytes);
      if (!disk.ok()) ::_exit(1);
      disk_ = std::move(*disk);
      for (uint64_t n = static_cast<uint64_t>(round) * 100'000;; ++n) {
        if (!Write(static_cast<int32_t>(n % 2), n)) ::usleep(100);
        if (n % 7 == 0) disk_->Touch(static_cast<int32_t>(n % 2), Key(n));
        if (n % 100'000 != 50) continue;
        disk_->Flush();
        if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      }
    }
    ::close(ready[1]);
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1) << "it has written 50 blocks";
    ::close(ready[0]);
    ::usleep(rng() % 30'000);
    ::kill(child, SIGKILL);
    int state = 0;
    ::waitpid(child, &state, 0);
    ASSERT_TRUE(WIFSIGNALED(state)) << "the child ended by itself";
    Open();
    EXPECT_LE(BytesOnDisk(), max_bytes_);
    const int64_t blocks = disk_->stats().blocks;
    int64_t found = 0;
    for (uint64_t n = static_cast<uint64_t>(round) * 100'000, gone = 0; found < blocks && gone < 20'000; ++n) {
      if (!disk_->Contains(static_cast<int32_t>(n % 2), Key(n))) {
        ++gone;
        continue;
      }
      found += Read(static_cast<int32_t>(n % 2), n);
    }
    EXPECT_EQ(disk_->stats().unreadable_blocks, 0) << "a record whose header is there is whole";
    num_found += found;
    disk_.reset();
  }
  EXPECT_GT(num_found, 12 * 40);
}

TEST_F(KvDiskTest, FlippedBits) {
  Open();
  WriteMany(0, 60);
  disk_.reset();
  const fs::path path = Segments().front();
  const std::string good = Slurp(path);
  std::mt19937_64 rng(3);
  int64_t num_missed = 0;
  for (int round = 0; round < 150; ++round) {
    std::string bad = good;
    // Some within the headers, where they matter most.
    const size_t at = round < 60 ? rng() % (kSegmentHeaderBytes + 2 * kRecordHeaderBytes) : rng() % bad.size();
    bad[at] = static_cast<char>(bad[at] ^ (1 << rng() % 8));
    for (const auto& other : Segments()) fs::remove(other);
    Put(path, bad);
    Open();
    const int64_t found = CountReadable(0, 60);
    EXPECT_LT(found, 60) << "byte " << at << " was flipped and nobody saw it";
    num_missed += 60 - found;
    disk_.reset();
  }
  EXPECT_GT(num_missed, 150);
}

TEST_F(KvDiskTest, TruncatedFiles) {
  Open();
  WriteMany(0, 60);
  disk_.reset();
  const fs::path path = Segments().front();
  const std::string good = Slurp(path);
  for (size_t size = 0; size < good.size(); size += 1 + good.size() / 97) {
    for (const auto& other : Segments()) fs::remove(other);
    Put(path, good.substr(0, size));
    Open();
    EXPECT_EQ(CountReadable(0, 60), disk_->stats().blocks + disk_->stats().unreadable_blocks);
    EXPECT_EQ(disk_->stats().unreadable_blocks, 0);
    WriteMany(200, 203);
    EXPECT_EQ(CountReadable(200, 203), 3);
    disk_.reset();
  }
  // And while it is open.
  Put(path, good);
  Open();
  fs::resize_file(path, good.size() / 2);
  const int64_t found = CountReadable(0, 60);
  EXPECT_GT(found, 0);
  EXPECT_LT(found, 60);
  fs::remove(path);
  CountReadable(0, 60);
}

TEST_F(KvDiskTest, ForeignFiles) {
  Open("model-b");
  WriteMany(0, 20);
  disk_.reset();
  const std::string other = Slurp(Segments().front());
  fs::remove(Segments().front());
  Open("model-a");
  WriteMany(100, 102);
  disk_.reset();
  const std::string ours = Slurp(Segments().front());

  std::mt19937_64 rng(5);
  std::string noise(5000, '\0');
  for (char& c : noise) c = static_cast<char>(rng());
  Put(dir_ / "kv-0000000000000100.segment", noise);
  Put(dir_ / "kv-0000000000000101.segment", "");
  // Records of another model behind a header of ours, and ours behind it.
  const std::string header = ours.substr(0, kSegmentHeaderBytes);
  Put(dir_ / "kv-0000000000000102.segment", header + other.substr(kSegmentHeaderBytes));
  // A version that is not known.
  std::string later = other;
  later[8] = 2;
  Put(dir_ / "kv-0000000000000103.segment", later);
  Put(dir_ / "kv-xyz.segment", noise);
  Put(dir_ / "notes.txt", "mine");
  fs::create_directory(dir_ / "kv-0000000000000104.segment");
  fs::create_symlink("notes.txt", dir_ / "kv-0000000000000105.segment");
  Open("model-a");
  EXPECT_EQ(disk_->stats().blocks, 2);
  EXPECT_EQ(CountReadable(0, 20), 0);
  EXPECT_EQ(CountReadable(100, 102), 2);
  WriteMany(200, 3000);
  EXPECT_EQ(Slurp(dir_ / "notes.txt"), "mine");
  EXPECT_TRUE(fs::exists(dir_ / "kv-xyz.segment")) << "no name of ours";
  EXPECT_TRUE(fs::is_directory(dir_ / "kv-0000000000000104.segment"));
  // A payload under another key of the same model.
  disk_.reset();
  fs::remove_all(dir_);
  Open("model-a");
  WriteMany(0, 4);
  disk_.reset();
  const fs::path path = Segments().front();
  std::string swapped = Slurp(path);
  const size_t first = kSegmentHeaderBytes + kRecordHeaderBytes, size = 1000;
  const size_t third = first + size + kRecordHeaderBytes + 333 + kRecordHeaderBytes;
  std::swap_ranges(swapped.begin() + static_cast<ptrdiff_t>(first), swapped.begin() + static_cast<ptrdiff_t>(first + size),
                   swapped.begin() + static_cast<ptrdiff_t>(third));
  Put(path, swapped);
  Open("model-a");
  EXPECT_FALSE(Read(0, 0));
  EXPECT_TRUE(Read(1, 1));
  EXPECT_FALSE(Read(0, 2));
  EXPECT_TRUE(Read(1, 3));
}

TEST_F(KvDiskTest, WhoWaitsCanBeWoken) {
  Open();
  std::thread waits([this] { disk_->WaitForDone(int64_t{3'600'000'000}); });
  disk_->Wake();
  waits.join();
}

TEST_F(KvDiskTest, AnEndInAHurryRefusesWhatWaits) {
  Open();
  WriteMany(0, 10);
  {
    const ScopedFault slow("kvdisk.slow", 0, 1000);
    for (uint64_t n = 10; n < 210; ++n) ASSERT_TRUE(Write(static_cast<int32_t>(n % 2), n));
    disk_->Finish(0);
    EXPECT_GT(disk_->stats().refused_blocks, 0);
    EXPECT_FALSE(disk_->Contains(1, Key(209)));
  }
  const int64_t refused = disk_->stats().refused_blocks;
  Open();
  EXPECT_EQ(disk_->stats().blocks, 210 - refused);
  EXPECT_EQ(CountReadable(0, 210), 210 - refused);
  // With time it is a flush.
  for (uint64_t n = 300; n < 310; ++n) ASSERT_TRUE(Write(0, n));
  disk_->Finish(60'000'000);
  EXPECT_EQ(disk_->stats().refused_blocks, 0);
  Open();
  EXPECT_EQ(disk_->stats().blocks, 220 - refused);
}

TEST_F(KvDiskTest, AQueueThatIsFullRefuses) {
  auto disk = KvDisk::Open({.dir = dir_.string(), .max_bytes = max_bytes_, .max_queued_bytes = 2500}, "model-a", kBlockBytes);
  ASSERT_TRUE(disk.ok());
  disk_ = std::move(*disk);
  int64_t written = 0;
  for (uint64_t n = 0; n < 500; ++n) written += Write(0, n);
  disk_->Flush();
  EXPECT_EQ(disk_->stats().refused_blocks, 500 - written);
  EXPECT_EQ(disk_->stats().written_blocks, written);
  EXPECT_GT(written, 0);
}

}  // namespace
}  // namespace cachalot
