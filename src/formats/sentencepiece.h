// A SentencePiece model file (tokenizer.model): a protobuf message, of which what encoding needs is read. Any
// bytes may be given: what is no such message is kCorrupt, fields that are not known are skipped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct SentencePieceModel {
  enum class Algorithm { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class Kind : uint8_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;  // a finite number
    Kind kind = Kind::kNormal;
  };

  std::vector<Piece> pieces;  // by id; at least one
  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;  // -1: none
  // What is done to a text before.
  std::string charsmap;  // a table of replacements ("nmt_nfkc"): tokenizer/charsmap.h; "" for none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// `place` starts error messages.
Result<SentencePieceModel> ParseSentencePiece(std::span<const std::byte> bytes, const std::string& place);

}  // namespace cachalot
