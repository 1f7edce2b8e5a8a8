// What a Tokenizer holds, and how the loaders put it together. Private to this module.
// A loader fills the vocabulary, normalizer and pre-tokenizer, then calls SetAddedTokens, SetModel, AddMerge
// …, Finish.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/piece_model.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"
#include "tokenizer/vocab.h"

namespace cachalot {

// How the texts of ordinary tokens become bytes.
struct TokenStyle {
  bool byte_level = true;            // they are written in the byte alphabet
  bool meta_space = false;           // "▁" is a space
  bool byte_fallback = false;        // <0xNN> is a byte
  bool strip_leading_space = false;  // the space that encoding put in front of a text
};

class TokenizerImpl {
 public:
  // Set by the loaders.
  Vocab vocab;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<int32_t> prefix_ids, suffix_ids;  // around a text, when special tokens are wanted
  int32_t bos_id = -1, eos_id = -1, pad_id = -1;
  int32_t unk_id = -1;            // set by SetModel
  std::vector<int32_t> stop_ids;  // until Finish: what the files say
  std::string chat_template;
  std::map<std::string, std::string> named_chat_templates;
  std::string description;
  std::vector<float> scores;  // of a SentencePiece model, by id; empty where there are merges

  // The vocabulary, with the texts of these tokens, and the normalizer are complete.
  Status SetAddedTokens(std::vector<AddedToken> tokens);
  void SetModel(BpeOptions options, TokenStyle style);
  // Instead of merges: one score for each id (BpeModel::AddScoredTokens).
  void SetScores(std::vector<float> token_scores, const std::vector<int32_t>& fixed = {}) {
    bpe_->AddScoredTokens(token_scores, fixed);
    scores = std::move(token_scores);
  }
  // Instead of SetModel: the most probable cut.
  void SetUnigram(std::vector<float> token_scores, const std::vector<int32_t>& fixed, UnigramOptions options,
                  TokenStyle style);
  void ReserveMerges(int64_t num_merges) { bpe_->ReserveMerges(num_merges); }
  bool AddMerge(std::string_view left, std::string_view right) { return bpe_->AddMerge(left, right); }
  void Finish();

  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const;

  std::string_view TokenBytes(int32_t id) const;
  bool HasFlag(int32_t id, uint8_t flag) const {
    return id >= 0 && id < vocab.size() && (flags_[static_cast<size_t>(id)] & flag) != 0;
  }
  const TokenStyle& style() const { return style_; }
  const BpeModel* bpe() const { return bpe_; }  // null: Unigram

  std::string bos_text, eos_text;  // set by Finish

  static constexpr uint8_t kAdded = 1;
  static constexpr uint8_t kControl = 2;
  static constexpr uint8_t kSpecial = 4;
  static constexpr uint8_t kForeign = 8;  // not of the model's own vocabulary: ordinary text never gives it

 private:
  struct Scratch;

  Result<std::vector<int32_t>> EncodeChecked(std::string_view text, const EncodeOptions& options) const;
  Status EncodeNormalized(std::string_view text, bool at_start, Scratch* scratch,
                          std::vector<int32_t>* out) const;
  std::vector<bool> OrdinaryTokens() const;
  void FillTokenBytes();

  std::vector<uint8_t> flags_;
  AddedTokens raw_tokens_;         // matched in the text as it is
  AddedTokens normalized_tokens_;  // matched in the normalized text
  std::unique_ptr<PieceModel> model_;
  BpeModel* bpe_ = nullptr;  // the same, or null
  TokenStyle style_;
  std::string bytes_;
  std::vector<uint32_t> bytes_begin_;  // size()+1 offsets
};

struct SentencePieceModel;

// The parts of a folder, for FromFolder and for tests and fuzzing without files. Each may be null but one of
// tokenizer_json and sentencepiece.
struct TokenizerFiles {
  std::string place;  // starts error messages
  std::string_view tokenizer_json = {};
  const SentencePieceModel* sentencepiece = nullptr;  // instead of tokenizer_json
  const nlohmann::json* tokenizer_config = nullptr;
  const nlohmann::json* generation_config = nullptr;
  const nlohmann::json* config = nullptr;
  std::string chat_template = {};  // of chat_template.jinja
};
Result<std::unique_ptr<TokenizerImpl>> LoadTokenizerJson(const TokenizerFiles& files);
Result<std::unique_ptr<TokenizerImpl>> LoadTokenizerFolder(const std::string& folder);
Result<std::unique_ptr<TokenizerImpl>> LoadTokenizerGguf(const GgufFile& file);

}  // namespace cachalot
