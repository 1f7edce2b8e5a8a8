// KvDisk's threads that read. Fault point: "kvdisk.read" (a read fails).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/fault.h"
#include "kv/kv_disk.h"

namespace cachalot {
namespace {

constexpr double kRateMemory = 0.95;  // of older reads, at each
constexpr int64_t kHeader = kRecordHeaderBytes;

bool ReadAll(int fd, int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    offset += n;
    out = out.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

void KvDisk::RunReader() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_readers_.wait(lock, [this] { return stop_ || !reads_.empty(); });
    if (reads_.empty()) return;
    const Job job = reads_.front();
    reads_.pop_front();
    CountTime(+1);
    lock.unlock();
    const bool ok = DoRead(job);
    lock.lock();
    CountTime(-1);
    done_.push_back({.tag = job.tag, .is_read = true, .ok = ok && job.generation == generation_});
    if (ok) {
      ++stats_.read_blocks;
      stats_.read_bytes += BlockBytes(job.id.group);
    }
    ended_.notify_all();
    if (reads_.empty() && num_reading_ == 0) wake_writer_.notify_one();
  }
}

// The rate is that of all who read together, over the time in which anybody does.
void KvDisk::CountTime(int32_t num_begun) {
  const int64_t now_us = SteadyClock().NowUs();
  if (num_reading_ > 0) rate_seconds_ += static_cast<double>(now_us - counted_us_) * 1e-6;
  counted_us_ = now_us;
  num_reading_ += num_begun;
}

bool KvDisk::DoRead(const Job& job) {
  uint64_t failed = kQueued;
  for (;;) {
    Entry entry;
    {
      const std::lock_guard lock(mutex_);
      const auto found = entries_.find(job.id);
      if (found == entries_.end()) return false;
      entry = found->second;
      if (entry.segment == kQueued) return CopyQueued(job);
      if (entry.segment == failed) {
        ++stats_.unreadable_blocks;
        entries_.erase(found);
        return false;
      }
    }
    if (ReadBlock(job.id, entry, job.out)) {
      const std::lock_guard lock(mutex_);
      rate_bytes_ = rate_bytes_ * kRateMemory + static_cast<double>(job.out.size());
      CountTime(0);
      stats_.read_bytes_per_second = rate_bytes_ / std::max(rate_seconds_, 1e-6);
      rate_seconds_ *= kRateMemory;
      return true;
    }
    failed = entry.segment;  // unless it has moved on meanwhile
  }
}

// It still waits to be written.
bool KvDisk::CopyQueued(const Job& job) const {
  const auto found = std::find_if(writes_.begin(), writes_.end(), [&](const Job& write) { return write.id == job.id; });
  const Job* write = found != writes_.end() ? &*found : writing_;
  if (write == nullptr || !(write->id == job.id)) return false;
  std::memcpy(job.out.data(), write->bytes.data(), job.out.size());
  return true;
}

// Nobody keeps a segment open that makes place meanwhile.
bool KvDisk::ReadBlock(const Id& id, const Entry& entry, std::span<std::byte> out) const {
  if (FaultHits("kvdisk.read")) return false;
  const int fd = ::open(PathOf(entry.segment).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  std::array<std::byte, kRecordHeaderBytes> header;
  KvRecord record;
  const bool ok = ReadAll(fd, entry.offset, header) && DecodeRecordHeader(header, fingerprint_, &record) && record.key == id.key &&
                  record.group == id.group && record.num_bytes == BlockBytes(id.group) &&
                  ReadAll(fd, entry.offset + kHeader, out) && PayloadChecksum(id.key, fingerprint_, out) == record.checksum;
  ::close(fd);
  return ok;
}

}  // namespace cachalot
