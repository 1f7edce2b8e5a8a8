#include "engine/kv_session.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/fault.h"
#include "base/file.h"
#include "kv/kv_segment.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxNoteBytes = 64 << 20;
constexpr KvFingerprint kNoteFingerprint = {};  // anybody's

KvFingerprint OwnFingerprint(const ExecutorInfo& info) {
  std::vector<int64_t> block_bytes;
  for (const KvGroupInfo& group : info.kv_groups) block_bytes.push_back(group.block_bytes);
  return FingerprintOf(info.kv_identity, block_bytes);
}

// A file under another name until it is whole.
class Writer {
 public:
  explicit Writer(const std::string& name) : place_(ResolveOutput(name)) {
    temporary_ = place_.path + ".tmp." + std::to_string(::getpid());
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd_ < 0) error_ = errno;
  }
  ~Writer() {
    if (fd_ >= 0) ::close(fd_);
    if (!done_ && fd_ >= 0) ::unlink(temporary_.c_str());
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void Add(std::span<const std::byte> bytes) {
    if (error_ == 0 && FaultHits("file.write")) error_ = ENOSPC;
    while (error_ == 0 && !bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) error_ = errno;
      else bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  void AddRecord(int32_t group, const BlockKey& key, const KvFingerprint& fingerprint, std::span<const std::byte> payload) {
    std::array<std::byte, kRecordHeaderBytes> header;
    EncodeRecordHeader({.group = group, .key = key, .num_bytes = static_cast<int64_t>(payload.size()),
                        .checksum = PayloadChecksum(key, fingerprint, payload)}, fingerprint, header);
    Add(header);
    Add(payload);
  }
  Status Finish() {
    if (error_ == 0 && ::rename(temporary_.c_str(), place_.path.c_str()) != 0) error_ = errno;
    if (error_ != 0) return Internal("{}: writing failed: {}", place_.path, std::strerror(error_));
    done_ = true;
    return Status::Ok();
  }

 private:
  const OutputPlace place_;
  std::string temporary_;
  int fd_ = -1;
  int error_ = 0;
  bool done_ = false;
};

}  // namespace

Status SaveKvSession(const std::string& path, const std::string& note, std::span<const int32_t> tokens,
                     StepExecutor* executor, const Scheduler& scheduler) {
  if (static_cast<int64_t>(note.size()) > kMaxNoteBytes) {
    return InvalidArgument("{}: a note of {} bytes, the limit is {}", path, note.size(), kMaxNoteBytes);
  }
  const ExecutorInfo& info = executor->info();
  const KvFingerprint fingerprint = OwnFingerprint(info);
  Writer writer(path);
  std::array<std::byte, kSegmentHeaderBytes> header;
  EncodeSegmentHeader(0, fingerprint, info.kv_identity, header);
  writer.Add(header);
  writer.AddRecord(kNoteGroup, {}, kNoteFingerprint, std::as_bytes(std::span(note)));
  const BlockManager& blocks = scheduler.blocks();
  const std::vector<BlockKey> keys = scheduler.PageKeys(tokens, "");
  const int32_t num_pages = executor->can_move_blocks() ? scheduler.FindCached(keys) / blocks.page_tokens() : 0;
  std::vector<std::byte> bytes;
  for (int32_t page = 0; page < num_pages; ++page) {
    for (int32_t g = 0; g < blocks.num_groups(); ++g) {
      for (int32_t i = 0; i < blocks.page_tokens() / blocks.group(g).block_tokens; ++i) {
        const BlockKey key = KeyInPage(keys[static_cast<size_t>(page)], i);
        const int32_t block = blocks.pool(g).index()->Find(key);
        if (block == kNoBlock) continue;  // of a windowed group; nobody reads it
        bytes.resize(static_cast<size_t>(blocks.group(g).block_bytes));
        RETURN_IF_ERROR(executor->ReadBlock(g, block, bytes));
        writer.AddRecord(g, key, fingerprint, bytes);
      }
    }
  }
  return writer.Finish();
}

Result<Engine::LoadedSession> LoadKvSession(const std::string& path, StepExecutor* executor, Scheduler* scheduler) {
  ASSIGN_OR_RETURN(const auto file, File::Open(path));
  const ExecutorInfo& info = executor->info();
  const KvFingerprint fingerprint = OwnFingerprint(info);
  const auto read = [&](int64_t offset, std::span<std::byte> out) { return file->ReadAt(offset, out).ok(); };
  constexpr int64_t kNoteAt = kSegmentHeaderBytes + kRecordHeaderBytes;
  std::array<std::byte, kSegmentHeaderBytes> header;
  std::array<std::byte, kRecordHeaderBytes> note_header;
  if (!read(0, header) || DecodeSegmentHeader(header, fingerprint) == SegmentKind::kGarbage) {
    return Corrupt("{}: no session file", path);
  }
  Engine::LoadedSession session;
  session.same_model = DecodeSegmentHeader(header, fingerprint) == SegmentKind::kOurs;
  KvRecord note;
  if (!read(kSegmentHeaderBytes, note_header) || !DecodeRecordHeader(note_header, kNoteFingerprint, &note) ||
      note.group != kNoteGroup || note.num_bytes > std::min(kMaxNoteBytes, file->size() - kNoteAt)) {
    return Corrupt("{}: the session's text is damaged", path);
  }
  session.note.resize(static_cast<size_t>(note.num_bytes));
  const auto note_bytes = std::as_writable_bytes(std::span(session.note));
  RETURN_IF_ERROR(file->ReadAt(kNoteAt, note_bytes));
  if (PayloadChecksum({}, kNoteFingerprint, note_bytes) != note.checksum) return Corrupt("{}: the session's text is damaged", path);
  if (!session.same_model || !executor->can_move_blocks()) return session;

  std::vector<KvRecord> last(info.kv_groups.size());  // the block in front
  std::vector<bool> begun(info.kv_groups.size());
  std::vector<std::byte> bytes;
  bool goes_on = true;
  Status failed;
  ScanSegment(file->size(), fingerprint, read, [&](int64_t offset, const KvRecord& record) {
    const auto g = static_cast<size_t>(record.group);
    if (!goes_on || record.group < 0 || g >= info.kv_groups.size() || record.num_bytes != info.kv_groups[g].block_bytes) return;
    const TierBlock wanted{.group = record.group, .key = record.key, .parent = last[g].key,
                           .has_parent = begun[g] && info.kv_groups[g].window == 0};
    last[g] = record;
    begun[g] = true;
    bytes.resize(static_cast<size_t>(record.num_bytes));
    if (!read(offset + static_cast<int64_t>(kRecordHeaderBytes), bytes) ||
        PayloadChecksum(record.key, fingerprint, bytes) != record.checksum) {
      goes_on = false;  // nothing stands on what is not there
      return;
    }
    const int32_t block = scheduler->Restore(wanted, {});
    if (block == kNoBlock) return;  // it is cached, or there is no place
    failed = executor->WriteBlock(record.group, block, bytes);
    goes_on = failed.ok();
    ++session.num_blocks;
  }, kNoteAt + note.num_bytes);
  RETURN_IF_ERROR(failed);
  return session;
}

}  // namespace cachalot
