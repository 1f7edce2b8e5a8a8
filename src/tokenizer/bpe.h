// BpeModel: byte pair encoding of one pre-tokenized piece. The pair of lowest rank is merged first, the
// leftmost of equals. The pairs are a list of merges (AddMerge), or all that make a token, ranked by the
// tokens' scores (AddScoredTokens: SentencePiece). Invariant: only tokens that the model's own vocabulary
// holds come out, never added or control tokens; time is O(n log n) in the bytes of a piece.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/piece_model.h"
#include "tokenizer/vocab.h"

namespace cachalot {

struct BpeOptions {
  bool byte_level = true;  // a symbol per byte, written in the byte alphabet; false: a symbol per character
  bool ignore_merges = false;  // a piece that is a token of its own is taken without merging
  bool byte_fallback = false;  // a character without a token becomes the tokens <0xNN> of its bytes
  int32_t unk_id = -1;         // for what is left without a token; -1: it is dropped
  bool fuse_unk = false;       // one unk for a run of such characters
};

class BpeModel final : public PieceModel {
 public:
  // The ids for which `ordinary` holds are the model's own. The vocabulary must outlive the model.
  BpeModel(const Vocab* vocab, std::vector<bool> ordinary, BpeOptions options);

  void ReserveMerges(int64_t num_merges);
  // Ranks count up from 0 with each call. False (and the merge skipped) when one of the two parts or the
  // result is no token of the model.
  bool AddMerge(std::string_view left, std::string_view right);
  // Instead of merges: any two neighbours whose texts together are a token may merge, the token of highest
  // score first. scores: one for each id, numbers. Tokens <0xNN> are bytes and are not made by merging.
  // fixed: tokens that are taken wherever their text stands, the longest first, and never merge.
  void AddScoredTokens(const std::vector<float>& scores, const std::vector<int32_t>& fixed = {});
  int64_t num_merges() const { return num_merges_; }
  // The pairs of tokens in the order of their ranks.
  struct Merge {
    int32_t left = -1, right = -1, merged = -1;
  };
  std::vector<Merge> Merges() const;
  const BpeOptions& options() const { return options_; }

  void Encode(std::string_view piece, PieceScratch* scratch, std::vector<int32_t>* out) const override;

  // Byte-level: whether the byte has a token of its own.
  bool HasByte(uint8_t byte) const override { return byte_ids_[byte] >= 0; }

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
  // Nothing if there is one for the pair already.
  void AddPair(int32_t left, int32_t right, uint32_t rank, int32_t merged_id);
  // The id of what may stand beside another symbol: a token, or a character that only tokens hold. -1:
  // neither.
  int32_t SymbolOf(std::string_view text) const;
  void InitSymbols(std::string_view piece, PieceScratch* scratch) const;
  // The fixed token that the text begins with, as an index of parts_; -1: none.
  int32_t FixedAt(std::string_view text) const;
  // Fixed tokens become themselves; characters that stayed alone and are no tokens become bytes or unk.
  void ExpandParts(std::vector<int32_t>* ids) const;
  void MergeShort(PieceScratch* scratch) const;
  void MergeLong(PieceScratch* scratch) const;

  const Vocab* vocab_;
  std::vector<bool> ordinary_;
  BpeOptions options_;
  std::array<int32_t, 256> byte_ids_;
  size_t max_token_bytes_ = 0;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int64_t num_merges_ = 0;
  uint32_t next_rank_ = 0;
  // Scored: what merges (or must not) under an id behind the vocabulary's: characters that are no tokens but
  // parts of some, and fixed tokens.
  struct Part {
    std::string text;
    int32_t token = -1;  // of a fixed one
  };
  std::unordered_map<std::string, int32_t> part_ids_;  // of characters
  std::vector<Part> parts_;
  std::vector<int32_t> fixed_;  // indices of parts, by length, longest first
  // Of the last AddMerge.
  int32_t last_merged_id_ = -1;
  std::string merged_text_;
};

}  // namespace cachalot
