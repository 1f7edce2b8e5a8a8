// What turns a pre-tokenized piece into tokens: byte pair encoding (bpe.h) or the most probable cut
// (unigram.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

// Buffers of one Encode call; reused from piece to piece.
struct PieceScratch {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<uint32_t> next, prev;
  std::vector<uint64_t> pairs;  // rank << 32 | merged id, of a symbol with its next
  std::vector<uint64_t> heap;   // rank << 32 | position
  // Unigram: for each byte of the piece the best way to get there.
  std::vector<float> scores;
  std::vector<int32_t> begins, tokens;
};

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  virtual void Encode(std::string_view piece, PieceScratch* scratch, std::vector<int32_t>* out) const = 0;
  // Whether the byte has a token of its own.
  virtual bool HasByte(uint8_t byte) const = 0;
};

}  // namespace cachalot
