// The file format of KV blocks outside of memory: a segment is a header and, behind it, records, one after the
// other; nothing in it is ever changed. All numbers are little-endian.
//   segment header, 256 bytes: magic "CACHALKV", version, the segment's number, fingerprint (what contents
//   depend on: weights, KV types, layout), the identity in words, XXH3-64 of all that;
//   record, 64 bytes + payload: mark, group, size, key (a salted chained hash), XXH3-64 of the payload,
//   XXH3-64 of the header. Both are seeded with the fingerprint, the payload's with its key too.
// Invariant: what decodes was written as it is, by a process with the same fingerprint. Anything else (torn,
// flipped, foreign) does not decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "kv/block_key.h"

namespace cachalot {

inline constexpr size_t kSegmentHeaderBytes = 256;
inline constexpr size_t kRecordHeaderBytes = 64;
// A record that holds no block but a text: what a conversation was.
inline constexpr int32_t kNoteGroup = -1;

struct KvFingerprint {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const KvFingerprint&) const = default;
};
// block_bytes: by group.
KvFingerprint FingerprintOf(std::string_view identity, std::span<const int64_t> block_bytes);

struct KvRecord {
  int32_t group = 0;
  BlockKey key;
  int64_t num_bytes = 0;
  uint64_t checksum = 0;  // of the payload
};

using SegmentHeaderBytes = std::span<std::byte, kSegmentHeaderBytes>;
using RecordHeaderBytes = std::span<std::byte, kRecordHeaderBytes>;

void EncodeSegmentHeader(uint64_t number, const KvFingerprint& fingerprint, std::string_view identity,
                         SegmentHeaderBytes out);
enum class SegmentKind {
  kOurs,
  kOther,    // a segment, of another model or another version
  kGarbage,  // no segment
};
SegmentKind DecodeSegmentHeader(std::span<const std::byte, kSegmentHeaderBytes> bytes,
                                const KvFingerprint& fingerprint);

uint64_t PayloadChecksum(const BlockKey& key, const KvFingerprint& fingerprint, std::span<const std::byte> payload);
void EncodeRecordHeader(const KvRecord& record, const KvFingerprint& fingerprint, RecordHeaderBytes out);
// False: no record of this fingerprint begins there.
bool DecodeRecordHeader(std::span<const std::byte, kRecordHeaderBytes> bytes, const KvFingerprint& fingerprint,
                        KvRecord* record);

// The records of a segment in a file of num_bytes bytes, in order, up to the first that is not whole.
// read(offset, out) says whether it could. The first record stands at `begin`.
using ReadBytes = std::function<bool(int64_t offset, std::span<std::byte> out)>;
SegmentKind ScanSegment(int64_t num_bytes, const KvFingerprint& fingerprint, const ReadBytes& read,
                        const std::function<void(int64_t offset, const KvRecord& record)>& on_record,
                        int64_t begin = kSegmentHeaderBytes);

}  // namespace cachalot
