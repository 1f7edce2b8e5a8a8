// KvDisk: what its callers see, and how it begins. The threads' work is in kv_disk_io.cc and kv_disk_read.cc.
#include "kv/kv_disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

namespace cachalot {
namespace {

constexpr std::string_view kPrefix = "kv-", kSuffix = ".segment";
constexpr int64_t kSegments = 16;    // that fill the directory

// 0: not the name of a segment.
uint64_t NumberOf(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return 0;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number, 16);
  return error == std::errc() && end == name.data() + name.size() ? number : 0;
}

Status MakeDirectory(const std::string& dir) {
  for (size_t slash = dir.find('/', 1); slash != std::string::npos; slash = dir.find('/', slash + 1)) {
    ::mkdir(dir.substr(0, slash).c_str(), 0700);
  }
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return InvalidArgument("{}: the directory cannot be made: {}", dir, std::strerror(errno));
  }
  return Status::Ok();
}

}  // namespace

KvDisk::KvDisk(const KvDiskOptions& options, std::string_view identity, std::vector<int64_t> block_bytes)
    : options_(options),
      identity_(identity),
      block_bytes_(std::move(block_bytes)),
      fingerprint_(FingerprintOf(identity_, block_bytes_)) {}

Result<std::unique_ptr<KvDisk>> KvDisk::Open(const KvDiskOptions& options, std::string_view identity,
                                             std::vector<int64_t> block_bytes) {
  const int64_t largest = block_bytes.empty() ? 0 : *std::max_element(block_bytes.begin(), block_bytes.end());
  const int64_t least = kSegments * (static_cast<int64_t>(kSegmentHeaderBytes + kRecordHeaderBytes) + largest);
  if (options.max_bytes < least) {
    return InvalidArgument("a KV cache on disk of {} bytes: at least {} are needed, 16 blocks of this model", options.max_bytes, least);
  }
  std::unique_ptr<KvDisk> disk(new KvDisk(options, identity, std::move(block_bytes)));
  RETURN_IF_ERROR(disk->Prepare());
  disk->threads_.emplace_back([raw = disk.get()] { raw->Run(); });
  for (int32_t i = 0; i < options.num_readers; ++i) disk->threads_.emplace_back([raw = disk.get()] { raw->RunReader(); });
  return disk;
}

Status KvDisk::Prepare() {
  segment_bytes_ = options_.max_bytes / kSegments;
  RETURN_IF_ERROR(MakeDirectory(options_.dir));
  const std::string lock = options_.dir + "/lock";
  lock_fd_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) return InvalidArgument("{}: cannot be opened: {}", lock, std::strerror(errno));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return InvalidArgument("{}: another process keeps its KV cache there", options_.dir);
  }
  stats_.present = true;
  stats_.max_bytes = options_.max_bytes;
  return ScanDirectory();
}

KvDisk::~KvDisk() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_writer_.notify_all();
  wake_readers_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (write_fd_ >= 0) ::close(write_fd_);
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

std::string KvDisk::PathOf(uint64_t number) const {
  return fmt::format("{}/{}{:016x}{}", options_.dir, kPrefix, number, kSuffix);
}

Status KvDisk::ScanDirectory() {
  std::vector<uint64_t> numbers;
  DIR* dir = ::opendir(options_.dir.c_str());
  if (dir == nullptr) return InvalidArgument("{}: cannot be read: {}", options_.dir, std::strerror(errno));
  while (const dirent* entry = ::readdir(dir)) {
    const uint64_t number = NumberOf(entry->d_name);
    if (number != 0 && PathOf(number) == options_.dir + "/" + entry->d_name) numbers.push_back(number);
  }
  ::closedir(dir);
  std::sort(numbers.begin(), numbers.end());
  for (const uint64_t number : numbers) ScanFile(PathOf(number), number);
  if (!numbers.empty()) next_number_ = numbers.back() + 1;
  stats_.bytes = total_bytes_;
  return Status::Ok();
}

// Of a segment that cannot be read nothing is known but its size.
void KvDisk::ScanFile(const std::string& path, uint64_t number) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    LOG_WARN("{}: is left alone: {}", path, fd < 0 ? std::strerror(errno) : "no regular file");
    if (fd >= 0) ::close(fd);
    return;
  }
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  Segment segment{.number = number, .ours = false, .num_bytes = info.st_size, .ids = {}};
  const auto read = [fd](int64_t offset, std::span<std::byte> out) {
    return ::pread(fd, out.data(), out.size(), offset) == static_cast<ssize_t>(out.size());
  };
  const SegmentKind kind = ScanSegment(info.st_size, fingerprint_, read, [&](int64_t offset, const KvRecord& record) {
    const bool known = record.group >= 0 && record.group < static_cast<int32_t>(block_bytes_.size()) &&
                       record.num_bytes == BlockBytes(record.group);
    if (!known) return;
    const Id id{record.key, record.group};
    entries_[id] = {.segment = number, .offset = offset, .used = false};
    segment.ids.push_back(id);
    found_.push_back(id);
  });
  ::close(fd);
  segment.ours = kind == SegmentKind::kOurs;
  if (kind == SegmentKind::kGarbage) LOG_WARN("{}: no segment of a KV cache, or a damaged one", path);
  total_bytes_ += segment.num_bytes;
  segments_.push_back(std::move(segment));
}

std::vector<KvDisk::Found> KvDisk::TakeFound(std::span<const int64_t> most) {
  std::vector<int64_t> left(most.begin(), most.end());
  std::vector<Found> last;
  for (size_t i = found_.size(); i-- > 0;) {
    const Id& id = found_[i];
    if (left[static_cast<size_t>(id.group)]-- > 0) last.push_back({id.group, id.key});
  }
  std::vector<Id>().swap(found_);
  std::reverse(last.begin(), last.end());
  return last;
}

bool KvDisk::Contains(int32_t group, const BlockKey& key) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains({key, group});
}

bool KvDisk::Touch(int32_t group, const BlockKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find({key, group});
  if (found == entries_.end()) return false;
  found->second.used = true;
  return true;
}

bool KvDisk::HasRoom(int32_t group, int64_t others) const {
  const std::lock_guard lock(mutex_);
  const int64_t in_front = queued_bytes_ + others;
  return in_front == 0 || in_front + BlockBytes(group) <= options_.max_queued_bytes;
}

bool KvDisk::HasWrites() const {
  const std::lock_guard lock(mutex_);
  return queued_bytes_ > 0;
}

bool KvDisk::paused() const {
  const std::lock_guard lock(mutex_);
  return paused_until_us_ != 0 && SteadyClock().NowUs() < paused_until_us_;
}

void KvDisk::CountRefused() {
  const std::lock_guard lock(mutex_);
  ++stats_.refused_blocks;
}

void KvDisk::Write(uint64_t tag, int32_t group, const BlockKey& key, std::span<const std::byte> bytes) {
  CHECK(static_cast<int64_t>(bytes.size()) == BlockBytes(group)) << bytes.size() << " bytes of a block of group " << group;
  {
    const std::lock_guard lock(mutex_);
    const Id id{key, group};
    if (!entries_.emplace(id, Entry{}).second) {  // known
      done_.push_back({.tag = tag, .is_read = false, .ok = true});
      return;
    }
    queued_bytes_ += BlockBytes(group);
    writes_.push_back({.id = id, .tag = tag, .generation = generation_, .bytes = bytes});
  }
  wake_writer_.notify_one();
}

void KvDisk::StartRead(uint64_t tag, int32_t group, const BlockKey& key, std::span<std::byte> out) {
  CHECK(static_cast<int64_t>(out.size()) == BlockBytes(group)) << out.size() << " bytes for a block of group " << group;
  {
    const std::lock_guard lock(mutex_);
    reads_.push_back({.id = {key, group}, .tag = tag, .generation = generation_, .out = out});
  }
  wake_readers_.notify_one();
}

void KvDisk::TakeDone(std::vector<Done>* done) {
  done->clear();
  const std::lock_guard lock(mutex_);
  done->swap(done_);
}

void KvDisk::WaitForDone(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return !done_.empty() || woken_; });
  woken_ = false;
}

void KvDisk::Wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  ended_.notify_all();
}

void KvDisk::Forget() {
  {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    ++generation_;
    for (const Job& job : writes_) {
      queued_bytes_ -= static_cast<int64_t>(job.bytes.size());
      done_.push_back({.tag = job.tag, .is_read = false, .ok = false});
    }
    writes_.clear();
    forget_ = true;
  }
  wake_writer_.notify_one();
}

void KvDisk::Flush() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return IsIdle(); });
}

void KvDisk::Finish(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, std::chrono::microseconds(timeout_us), [this] { return IsIdle(); })) return;
  reads_.clear();
  for (const Job& job : writes_) entries_.erase(job.id);
  stats_.refused_blocks += static_cast<int64_t>(writes_.size());
  writes_.clear();
}

KvTierStats KvDisk::stats() const {
  const std::lock_guard lock(mutex_);
  KvTierStats stats = stats_;
  stats.blocks = static_cast<int64_t>(entries_.size());
  return stats;
}

}  // namespace cachalot
