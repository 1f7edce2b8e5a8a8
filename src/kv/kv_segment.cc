#include "kv/kv_segment.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cachalot {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'C', 'A', 'C', 'H', 'A', 'L', 'K', 'V'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kRecordMark = 0x6b766231;

struct SegmentHeader {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t header_bytes = kSegmentHeaderBytes;
  uint64_t number = 0;
  KvFingerprint fingerprint;
  std::array<char, 208> identity = {};
  uint64_t checksum = 0;
};
static_assert(sizeof(SegmentHeader) == kSegmentHeaderBytes);

struct RecordHeader {
  uint32_t mark = kRecordMark;
  int32_t group = 0;
  int64_t num_bytes = 0;
  BlockKey key;
  uint64_t checksum = 0;
  std::array<uint64_t, 2> reserved = {};
  uint64_t header_checksum = 0;
};
static_assert(sizeof(RecordHeader) == kRecordHeaderBytes);

uint64_t ChecksumOf(const SegmentHeader& header) {
  return XXH3_64bits(&header, offsetof(SegmentHeader, checksum));
}

uint64_t ChecksumOf(const RecordHeader& header, const KvFingerprint& fingerprint) {
  return XXH3_64bits_withSeed(&header, offsetof(RecordHeader, header_checksum), fingerprint.low ^ fingerprint.high);
}

}  // namespace

KvFingerprint FingerprintOf(std::string_view identity, std::span<const int64_t> block_bytes) {
  const XXH128_hash_t text = XXH3_128bits(identity.data(), identity.size());
  const XXH128_hash_t hash = XXH3_128bits_withSeed(block_bytes.data(), block_bytes.size_bytes(), text.low64);
  return {hash.low64, hash.high64 ^ text.high64};
}

void EncodeSegmentHeader(uint64_t number, const KvFingerprint& fingerprint, std::string_view identity,
                         SegmentHeaderBytes out) {
  SegmentHeader header;
  header.number = number;
  header.fingerprint = fingerprint;
  std::copy_n(identity.data(), std::min(identity.size(), header.identity.size()), header.identity.data());
  header.checksum = ChecksumOf(header);
  std::memcpy(out.data(), &header, sizeof(header));
}

SegmentKind DecodeSegmentHeader(std::span<const std::byte, kSegmentHeaderBytes> bytes,
                                const KvFingerprint& fingerprint) {
  SegmentHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return SegmentKind::kGarbage;
  if (header.version != kVersion) return SegmentKind::kOther;
  if (header.checksum != ChecksumOf(header)) return SegmentKind::kGarbage;
  return header.fingerprint == fingerprint ? SegmentKind::kOurs : SegmentKind::kOther;
}

uint64_t PayloadChecksum(const BlockKey& key, const KvFingerprint& fingerprint, std::span<const std::byte> payload) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(),
                              key.low ^ std::rotl(key.high, 17) ^ std::rotl(fingerprint.low, 31) ^ fingerprint.high);
}

void EncodeRecordHeader(const KvRecord& record, const KvFingerprint& fingerprint, RecordHeaderBytes out) {
  RecordHeader header;
  header.group = record.group;
  header.num_bytes = record.num_bytes;
  header.key = record.key;
  header.checksum = record.checksum;
  header.header_checksum = ChecksumOf(header, fingerprint);
  std::memcpy(out.data(), &header, sizeof(header));
}

bool DecodeRecordHeader(std::span<const std::byte, kRecordHeaderBytes> bytes, const KvFingerprint& fingerprint,
                        KvRecord* record) {
  RecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.mark != kRecordMark || header.header_checksum != ChecksumOf(header, fingerprint)) return false;
  *record = {.group = header.group, .key = header.key, .num_bytes = header.num_bytes, .checksum = header.checksum};
  return record->num_bytes >= 0;
}

SegmentKind ScanSegment(int64_t num_bytes, const KvFingerprint& fingerprint, const ReadBytes& read,
                        const std::function<void(int64_t offset, const KvRecord& record)>& on_record, int64_t begin) {
  std::array<std::byte, kSegmentHeaderBytes> header;
  if (num_bytes < static_cast<int64_t>(header.size()) || !read(0, header)) return SegmentKind::kGarbage;
  const SegmentKind kind = DecodeSegmentHeader(header, fingerprint);
  if (kind != SegmentKind::kOurs) return kind;
  int64_t offset = begin;
  std::array<std::byte, kRecordHeaderBytes> bytes;
  KvRecord record;
  while (offset <= num_bytes - static_cast<int64_t>(bytes.size()) && read(offset, bytes) &&
         DecodeRecordHeader(bytes, fingerprint, &record) &&
         record.num_bytes <= num_bytes - offset - static_cast<int64_t>(bytes.size())) {
    on_record(offset, record);
    offset += static_cast<int64_t>(bytes.size()) + record.num_bytes;
  }
  return kind;
}

}  // namespace cachalot
