// UnigramModel: the cut of a piece into tokens whose scores (logarithms of probabilities) sum to the most. A
// character that no token covers alone costs ten more than the worst token. Invariant: only tokens of the
// model's own vocabulary come out; time is O(n) times the longest token.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/piece_model.h"
#include "tokenizer/vocab.h"

namespace cachalot {

struct UnigramOptions {
  bool byte_fallback = false;  // what is unknown becomes the tokens <0xNN> of its bytes
  int32_t unk_id = -1;         // else one unk for a run of unknown characters; -1: it is dropped
};

class UnigramModel final : public PieceModel {
 public:
  // `ordinary`: the ids that are the model's own. scores: one for each id, finite. fixed: tokens that win
  // over any other cut. The vocabulary must outlive the model.
  UnigramModel(const Vocab* vocab, std::vector<bool> ordinary, std::vector<float> scores,
               const std::vector<int32_t>& fixed, UnigramOptions options);

  void Encode(std::string_view piece, PieceScratch* scratch, std::vector<int32_t>* out) const override;
  bool HasByte(uint8_t byte) const override { return byte_ids_[byte] >= 0; }

 private:
  const Vocab* vocab_;
  std::vector<float> scores_;
  std::vector<bool> fixed_;
  UnigramOptions options_;
  float unk_score_ = 0, best_score_ = 0;
  std::array<int32_t, 256> byte_ids_;
  std::vector<int32_t> sorted_;             // ids by text
  std::array<uint32_t, 257> first_byte_{};  // where in sorted_ the texts with this first byte begin
};

}  // namespace cachalot
