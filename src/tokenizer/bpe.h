// BpeModel: byte pair encoding of one pre-tokenized piece. The pair of lowest rank is merged first, the
// leftmost of equals. Invariant: only tokens that the model's own vocabulary holds come out, never added or
// control tokens; time is O(n log n) in the bytes of a piece.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.h"

namespace cachalot {

struct BpeOptions {
  bool byte_level = true;  // a symbol per byte, written in the byte alphabet; false: a symbol per character
  bool ignore_merges = false;  // a piece that is a token of its own is taken without merging
  bool byte_fallback = false;  // a character without a token becomes the tokens <0xNN> of its bytes
  int32_t unk_id = -1;         // for what is left without a token; -1: it is dropped
  bool fuse_unk = false;       // one unk for a run of such characters
};

// Buffers of one Encode call; reused from piece to piece.
struct BpeScratch {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<uint32_t> next, prev;
  std::vector<uint64_t> pairs;  // rank << 32 | merged id, of a symbol with its next
  std::vector<uint64_t> heap;   // rank << 32 | position
};

class BpeModel {
 public:
  // The ids for which `ordinary` holds are the model's own. The vocabulary must outlive the model.
  BpeModel(const Vocab* vocab, std::vector<bool> ordinary, BpeOptions options);

  void ReserveMerges(int64_t num_merges);
  // Ranks count up from 0 with each call. False (and the merge skipped) when one of the two parts or the
  // result is no token of the model.
  bool AddMerge(std::string_view left, std::string_view right);
  int64_t num_merges() const { return num_merges_; }

  void Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const;

  // Byte-level: whether the byte has a token of its own.
  bool HasByte(uint8_t byte) const { return byte_ids_[byte] >= 0; }

 private:
  static constexpr uint64_t kNoPair = UINT64_MAX;
  struct Slot {
    uint64_t key = kNoPair;    // left << 32 | right
    uint64_t value = kNoPair;  // rank << 32 | merged id
  };

  bool IsOrdinary(int32_t id) const {
    return id >= 0 && id < vocab_->size() && ordinary_[static_cast<size_t>(id)];
  }
  int32_t FindOrdinary(std::string_view text) const;
  // rank << 32 | merged id, kNoPair if the two do not merge.
  uint64_t FindPair(int32_t left, int32_t right) const;
  void GrowPairs(size_t num_slots);
  void InitSymbols(std::string_view piece, BpeScratch* scratch) const;
  void MergeShort(BpeScratch* scratch) const;
  void MergeLong(BpeScratch* scratch) const;

  const Vocab* vocab_;
  std::vector<bool> ordinary_;
  BpeOptions options_;
  std::array<int32_t, 256> byte_ids_;
  size_t max_token_bytes_ = 0;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int64_t num_merges_ = 0;
  uint32_t next_rank_ = 0;
  // Of the last AddMerge.
  int32_t last_merged_id_ = -1;
  std::string merged_text_;
};

}  // namespace cachalot
