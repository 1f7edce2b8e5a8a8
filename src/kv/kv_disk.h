// KvDisk: KV blocks in files, so that prefixes outlive memory and the process. Append-only segments
// (kv_segment.h) in one directory; an index in memory, rebuilt from the records' headers at Open. All file work
// but that of Open is done by threads: one writes, some read, and while they do it waits; nobody who calls waits for the disk.
// Blocks stand in the caller's memory, which is the disk's until TakeDone says so.
// Invariants: what a read brings is what was written under that key, bit for bit, or nothing: payloads are
// checked, and an unreadable block is forgotten. Files never take more than max_bytes together. No error of
// the disk reaches the caller: a full disk pauses writing. Nothing is synced: after a kill -9 all is there that
// was written, after a loss of power perhaps less, which the checksums find.
// Place is made by dropping the oldest segment, whichever model wrote it; blocks of it that were used since
// they were written move on into the newest, as long as they are not more than half of it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/block_key.h"
#include "kv/kv_segment.h"
#include "kv/tier_stats.h"

namespace cachalot {

struct KvDiskOptions {
  std::string dir = "";        // "": no disk tier
  int64_t max_bytes = 0;
  int64_t max_queued_bytes = 64 << 20;  // that wait to be written; more are refused
  int32_t num_readers = 1;     // reads at a time: one alone has neither the disk's rate nor, of what lies in memory, the machine's
  int32_t retry_ms = 10'000;   // after a failed write nothing is written for so long
};

class KvDisk {
 public:
  struct Done {
    uint64_t tag = 0;  // the caller's
    bool is_read = false;
    bool ok = false;
  };

  // identity: what contents depend on beside keys. block_bytes: by group. The directory is made if need be, and belongs to
  // one process at a time.
  static Result<std::unique_ptr<KvDisk>> Open(const KvDiskOptions& options, std::string_view identity,
                                              std::vector<int64_t> block_bytes);
  // What is queued is written first.
  ~KvDisk();
  KvDisk(const KvDisk&) = delete;
  KvDisk& operator=(const KvDisk&) = delete;

  // What was there at Open, as it was written, the last `most[group]` blocks of each group.
  struct Found {
    int32_t group = 0;
    BlockKey key;
  };
  std::vector<Found> TakeFound(std::span<const int64_t> most);
  // It is there, or will be when what is queued is written.
  bool Contains(int32_t group, const BlockKey& key) const;
  // So too; and somebody uses what it holds.
  bool Touch(int32_t group, const BlockKey& key);
  // There is room in the queue, behind `others` bytes that will come first.
  bool HasRoom(int32_t group, int64_t others = 0) const;
  // Something waits to be written.
  bool HasWrites() const;
  // Nothing is written for a while.
  bool paused() const;
  // A block was not written, since there was no room, or writing is paused.
  void CountRefused();
  void Write(uint64_t tag, int32_t group, const BlockKey& key, std::span<const std::byte> bytes);
  void StartRead(uint64_t tag, int32_t group, const BlockKey& key, std::span<std::byte> out);
  // What has ended, in no order.
  void TakeDone(std::vector<Done>* done);
  // Until there is something to take, or Wake, at most so long.
  void WaitForDone(int64_t timeout_us);
  void Wake();
  // Everything of this model is forgotten, on the disk too.
  void Forget();
  // Until all is written that was queued.
  void Flush();
  // So too, at most so long; then what still waits is refused. Nothing must be written or read afterwards.
  void Finish(int64_t timeout_us);

  KvTierStats stats() const;

 private:
  struct Id {
    BlockKey key;
    int32_t group = 0;
    bool operator==(const Id&) const = default;
  };
  struct IdHash {
    size_t operator()(const Id& id) const { return id.key.low ^ (static_cast<uint64_t>(id.group) << 56); }
  };
  static constexpr uint64_t kQueued = 0;  // no segment: its bytes still wait
  struct Entry {
    uint64_t segment = kQueued;
    int64_t offset = 0;
    bool used = false;
  };
  struct Segment {
    uint64_t number = 0;
    bool ours = false;
    int64_t num_bytes = 0;
    std::vector<Id> ids;  // of its records
  };
  struct Job {
    Id id;
    uint64_t tag = 0;
    uint64_t generation = 0;
    std::span<std::byte> out = {};          // of a read
    std::span<const std::byte> bytes = {};  // of a write
  };

  KvDisk(const KvDiskOptions& options, std::string_view identity, std::vector<int64_t> block_bytes);
  Status Prepare();
  Status ScanDirectory();
  void ScanFile(const std::string& path, uint64_t number);
  std::string PathOf(uint64_t number) const;
  int64_t BlockBytes(int32_t group) const { return block_bytes_[static_cast<size_t>(group)]; }

  // Of the threads that read (kv_disk_read.cc).
  void RunReader();
  bool DoRead(const Job& job);
  bool CopyQueued(const Job& job) const;
  bool ReadBlock(const Id& id, const Entry& entry, std::span<std::byte> out) const;
  void CountTime(int32_t num_begun);
  // Of the one that writes (kv_disk_io.cc).
  void Run();
  void DoWrite(const Job& job);
  bool IsIdle() const { return writes_.empty() && reads_.empty() && num_reading_ == 0 && !forget_ && !busy_; }
  bool Append(const Id& id, std::span<const std::byte> payload, Entry* entry);
  bool BeginSegment();
  void EndSegment();
  void MakePlace(int64_t num_bytes);
  void DropOldest();
  void RemoveOurs();
  void WriteFailed(const char* what, int error);

  const KvDiskOptions options_;
  const std::string identity_;
  const std::vector<int64_t> block_bytes_;  // [groups]
  const KvFingerprint fingerprint_;
  int64_t segment_bytes_ = 0;
  int lock_fd_ = -1;

  // The writing thread's own; before it starts, Open's.
  std::deque<Segment> segments_;  // oldest first; the last may be open
  int write_fd_ = -1;
  int64_t write_offset_ = 0;
  uint64_t next_number_ = 1;
  int64_t total_bytes_ = 0;
  bool dropping_ = false;

  std::vector<Id> found_;         // at Open, in the order of segments
  mutable std::mutex mutex_;
  std::condition_variable wake_writer_;
  std::condition_variable wake_readers_;
  std::condition_variable ended_;  // something has, or nothing is left to do
  std::unordered_map<Id, Entry, IdHash> entries_;
  std::deque<Job> reads_, writes_;
  const Job* writing_ = nullptr;
  std::vector<Done> done_;
  int64_t queued_bytes_ = 0;
  uint64_t generation_ = 0;  // Forget begins another
  bool forget_ = false;
  bool busy_ = false;        // the one that writes
  bool stop_ = false;
  bool woken_ = false;       // whoever waits for what has ended
  int64_t paused_until_us_ = 0;
  KvTierStats stats_;
  // Reads, at one time as many as there are.
  int32_t num_reading_ = 0;
  int64_t counted_us_ = 0;
  double rate_bytes_ = 0, rate_seconds_ = 0;

  std::vector<std::thread> threads_;
};

}  // namespace cachalot
