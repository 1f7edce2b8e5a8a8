// KvDisk's thread that writes, when nobody reads. Fault points: "kvdisk.write" (the disk is full), "kvdisk.torn" (it is after
// half of a record), "kvdisk.slow" (20 ms for a block).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "kv/kv_disk.h"

namespace cachalot {
namespace {

constexpr int64_t kHeader = kRecordHeaderBytes;

// 0, or the error.
int WriteAll(int fd, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    offset += n;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

}  // namespace

void KvDisk::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_writer_.wait(lock, [this] { return stop_ || forget_ || (!writes_.empty() && reads_.empty() && num_reading_ == 0); });
    busy_ = true;
    if (forget_) {
      lock.unlock();
      RemoveOurs();
      lock.lock();
      forget_ = false;
    } else if (!writes_.empty()) {
      const Job job = writes_.front();
      writes_.pop_front();
      writing_ = &job;
      lock.unlock();
      DoWrite(job);
      lock.lock();
    } else {
      return;  // stop_, and nothing is left
    }
    busy_ = false;
    stats_.bytes = total_bytes_;
    ended_.notify_all();
  }
}

void KvDisk::DoWrite(const Job& job) {
  Entry entry;
  const auto num_bytes = static_cast<int64_t>(job.bytes.size());
  if (FaultHits("kvdisk.slow")) ::usleep(20'000);
  const bool refused = paused();
  const bool written = !refused && Append(job.id, job.bytes, &entry);
  const std::lock_guard lock(mutex_);
  writing_ = nullptr;
  queued_bytes_ -= num_bytes;
  stats_.refused_blocks += refused;
  done_.push_back({.tag = job.tag, .is_read = false, .ok = written});
  if (job.generation != generation_) return;
  const auto found = entries_.find(job.id);
  CHECK(found != entries_.end() && found->second.segment == kQueued) << "a queued block was forgotten";
  if (!written) {
    entries_.erase(found);
    return;
  }
  entry.used = found->second.used;
  found->second = entry;
  segments_.back().ids.push_back(job.id);
  ++stats_.written_blocks;
  stats_.written_bytes += num_bytes;
}

bool KvDisk::Append(const Id& id, std::span<const std::byte> payload, Entry* entry) {
  const int64_t num_bytes = kHeader + static_cast<int64_t>(payload.size());
  if (write_fd_ >= 0 && write_offset_ + num_bytes > segment_bytes_) EndSegment();
  if (!dropping_) MakePlace(num_bytes + static_cast<int64_t>(kSegmentHeaderBytes));
  if (write_fd_ < 0 && !BeginSegment()) return false;
  KvRecord record{.group = id.group, .key = id.key, .num_bytes = static_cast<int64_t>(payload.size()),
                  .checksum = PayloadChecksum(id.key, fingerprint_, payload)};
  std::array<std::byte, kRecordHeaderBytes> header;
  EncodeRecordHeader(record, fingerprint_, header);
  // The payload first: a record without its header is the end of the segment.
  int error = 0;
  if (FaultHits("kvdisk.write")) error = ENOSPC;
  if (error == 0 && FaultHits("kvdisk.torn")) {
    static_cast<void>(WriteAll(write_fd_, write_offset_, header));
    static_cast<void>(WriteAll(write_fd_, write_offset_ + kHeader, payload.first(payload.size() / 2)));
    error = ENOSPC;
  }
  if (error == 0) error = WriteAll(write_fd_, write_offset_ + kHeader, payload);
  if (error == 0) error = WriteAll(write_fd_, write_offset_, header);
  if (error != 0) {
    // What stands behind the last whole record goes; if it cannot, no header vouches for it, or no checksum.
    if (::ftruncate(write_fd_, write_offset_) != 0) LOG_WARN("{}: {}", PathOf(segments_.back().number), std::strerror(errno));
    WriteFailed("writing", error);
    EndSegment();
    return false;
  }
  *entry = {.segment = segments_.back().number, .offset = write_offset_, .used = false};
  write_offset_ += num_bytes;
  total_bytes_ += num_bytes;
  segments_.back().num_bytes += num_bytes;
  return true;
}

bool KvDisk::BeginSegment() {
  const uint64_t number = next_number_++;
  write_fd_ = ::open(PathOf(number).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int error = write_fd_ < 0 ? errno : 0;
  std::array<std::byte, kSegmentHeaderBytes> header;
  EncodeSegmentHeader(number, fingerprint_, identity_, header);
  if (error == 0) error = WriteAll(write_fd_, 0, header);
  if (error != 0) {
    if (write_fd_ >= 0) {
      ::close(write_fd_);
      ::unlink(PathOf(number).c_str());
    }
    write_fd_ = -1;
    WriteFailed("beginning a segment", error);
    return false;
  }
  write_offset_ = kSegmentHeaderBytes;
  total_bytes_ += write_offset_;
  segments_.push_back({.number = number, .ours = true, .num_bytes = write_offset_, .ids = {}});
  return true;
}

void KvDisk::EndSegment() {
  ::close(write_fd_);
  write_fd_ = -1;
}

void KvDisk::WriteFailed(const char* what, int error) {
  LOG_WARN("KV cache on disk, {}: {} failed: {}; nothing is written for {} ms", options_.dir, what, std::strerror(error), options_.retry_ms);
  const std::lock_guard lock(mutex_);
  ++stats_.write_errors;
  paused_until_us_ = SteadyClock().NowUs() + int64_t{options_.retry_ms} * 1000;
}

// A segment's place stays free, so that what is used can move on before the oldest goes.
void KvDisk::MakePlace(int64_t num_bytes) {
  while (!segments_.empty() && total_bytes_ + num_bytes > options_.max_bytes - segment_bytes_) DropOldest();
}

void KvDisk::DropOldest() {
  if (segments_.size() == 1 && write_fd_ >= 0) EndSegment();
  const Segment oldest = std::move(segments_.front());
  segments_.pop_front();
  dropping_ = true;
  int64_t room = segment_bytes_ / 2;
  int64_t num_evicted = 0;
  std::vector<std::byte> bytes;
  for (const Id& id : oldest.ids) {
    Entry entry;
    uint64_t generation = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = entries_.find(id);
      if (found == entries_.end() || found->second.segment != oldest.number) continue;
      entry = found->second;
      generation = generation_;
    }
    const int64_t num_bytes = kHeader + BlockBytes(id.group);
    Entry moved;
    bytes.resize(static_cast<size_t>(BlockBytes(id.group)));
    const bool moves = entry.used && num_bytes <= room && ReadBlock(id, entry, bytes) && Append(id, bytes, &moved);
    const std::lock_guard lock(mutex_);
    if (generation != generation_) break;
    if (moves) {
      room -= num_bytes;
      entries_[id] = moved;
      segments_.back().ids.push_back(id);
    } else {
      entries_.erase(id);
      ++num_evicted;
    }
  }
  dropping_ = false;
  if (::unlink(PathOf(oldest.number).c_str()) != 0 && errno != ENOENT) {
    LOG_WARN("{}: cannot be removed: {}", PathOf(oldest.number), std::strerror(errno));
  }
  total_bytes_ -= oldest.num_bytes;
  const std::lock_guard lock(mutex_);
  stats_.evicted_blocks += num_evicted;
}

void KvDisk::RemoveOurs() {
  if (write_fd_ >= 0) EndSegment();
  std::deque<Segment> others;
  for (Segment& segment : segments_) {
    if (segment.ours && (::unlink(PathOf(segment.number).c_str()) == 0 || errno == ENOENT)) {
      total_bytes_ -= segment.num_bytes;
    } else {
      segment.ids.clear();
      others.push_back(std::move(segment));
    }
  }
  segments_ = std::move(others);
}

}  // namespace cachalot
