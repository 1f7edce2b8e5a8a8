// A tokenizer from the metadata of a GGUF file.
#include <algorithm>
#include <optional>

#include "base/log.h"
#include "formats/gguf.h"
#include "formats/text.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/known_tokens.h"
#include "tokenizer/pre_tokenizer_table.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";

// The numbers are those of the file format.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// Whether the token is the letter that stands for a byte which no UTF-8 text has. Such letters were added to
// deepseek-llm as ordinary letters; the byte has no token.
bool StandsForImpossibleByte(std::string_view text) {
  const Utf8Char c = NextUtf8Char(text);
  if (static_cast<size_t>(c.size) != text.size()) return false;
  const int byte = AlphabetToByte(c.code_point);
  return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
}

Result<std::vector<AddedToken>> ReadAddedTokens(const GgufFile& file,
                                                const std::vector<std::string>& tokens) {
  std::vector<AddedToken> added;
  if (!file.Has(kTypesKey)) {
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (LooksLikeMarkup(tokens[id])) {
        added.push_back({.id = static_cast<int32_t>(id), .text = tokens[id], .special = true});
      }
    }
    return added;
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> types, file.Ints(kTypesKey));
  if (types.size() != tokens.size()) {
    return Corrupt("{}: {} has {} values for {} tokens", file.path(), kTypesKey, types.size(), tokens.size());
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int64_t type = types[id];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    if (tokens[id].empty()) continue;
    const bool user_defined = type == kUserDefined;
    added.push_back({.id = static_cast<int32_t>(id),
                     .text = tokens[id],
                     .special = !user_defined,
                     .in_model = user_defined && !StandsForImpossibleByte(tokens[id])});
  }
  return added;
}

// -1 for a number that is no token (files say 4294967295).
Result<int32_t> TokenId(const GgufFile& file, std::string_view key, int32_t vocab_size,
                        int32_t default_id = -1) {
  ASSIGN_OR_RETURN(const int64_t id, file.IntOr(key, default_id, INT64_MIN, INT64_MAX));
  if (id >= 0 && id < vocab_size) return static_cast<int32_t>(id);
  if (id != -1) LOG_WARN("{}: {} is {}, not one of {} tokens; ignored", file.path(), key, id, vocab_size);
  return -1;
}

// Files with scores that do not name BOS and EOS mean 1 and 2.
Status ReadIds(const GgufFile& file, bool default_add_bos, bool scored, TokenizerImpl* impl) {
  const int32_t size = impl->vocab.size();
  ASSIGN_OR_RETURN(impl->bos_id, TokenId(file, "tokenizer.ggml.bos_token_id", size, scored ? 1 : -1));
  ASSIGN_OR_RETURN(impl->eos_id, TokenId(file, "tokenizer.ggml.eos_token_id", size, scored ? 2 : -1));
  ASSIGN_OR_RETURN(impl->pad_id, TokenId(file, "tokenizer.ggml.padding_token_id", size));
  for (const std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const int32_t id, TokenId(file, key, size));
    if (id >= 0) impl->stop_ids.push_back(id);
  }
  ASSIGN_OR_RETURN(const bool add_bos, file.BoolOr("tokenizer.ggml.add_bos_token", default_add_bos));
  ASSIGN_OR_RETURN(const bool add_eos, file.BoolOr("tokenizer.ggml.add_eos_token", false));
  if (add_bos && impl->bos_id >= 0) impl->prefix_ids.push_back(impl->bos_id);
  if (add_eos && impl->eos_id >= 0) impl->suffix_ids.push_back(impl->eos_id);
  return Status::Ok();
}

Status ReadTemplates(const GgufFile& file, TokenizerImpl* impl) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  ASSIGN_OR_RETURN(impl->chat_template, file.StringOr(kKey, ""));
  const std::vector<std::string>* names = file.Strings("tokenizer.chat_templates");
  if (names == nullptr) return Status::Ok();
  for (const std::string& name : *names) {
    ASSIGN_OR_RETURN(std::string text, file.StringOr(fmt::format("{}.{}", kKey, name), ""));
    if (!text.empty()) impl->named_chat_templates[name] = std::move(text);
  }
  return Status::Ok();
}

Status ReadMerges(const GgufFile& file, TokenizerImpl* impl) {
  const std::vector<std::string>* merges = file.Strings(kMergesKey);
  if (merges == nullptr) return Corrupt("{}: {} is missing or no list of strings", file.path(), kMergesKey);
  impl->ReserveMerges(static_cast<int64_t>(merges->size()));
  int64_t num_skipped = 0;
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string_view merge = (*merges)[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 >= merge.size()) {
      return Corrupt("{}: {}[{}] is '{}', not two tokens with a space between", file.path(), kMergesKey, i,
                     Printable(merge));
    }
    if (!impl->AddMerge(merge.substr(0, space), merge.substr(space + 1))) ++num_skipped;
  }
  if (num_skipped > 0) {
    LOG_WARN("{}: {} of {} merges are not between tokens of the vocabulary; ignored", file.path(),
             num_skipped, merges->size());
  }
  return Status::Ok();
}

Status ReadTokens(const GgufFile& file, TokenizerImpl* impl) {
  const std::vector<std::string>* tokens = file.Strings(kTokensKey);
  if (tokens == nullptr || tokens->empty()) {
    return Corrupt("{}: {} is missing, empty or no list of strings", file.path(), kTokensKey);
  }
  int64_t num_bytes = 0;
  for (const std::string& token : *tokens) num_bytes += static_cast<int64_t>(token.size());
  if (static_cast<int64_t>(tokens->size()) > Vocab::kMaxSize || num_bytes > UINT32_MAX) {
    return Corrupt("{}: {} has {} tokens of {} bytes, the limit is {}", file.path(), kTokensKey,
                   tokens->size(), num_bytes, Vocab::kMaxSize);
  }
  impl->vocab.Reserve(static_cast<int64_t>(tokens->size()), num_bytes);
  for (size_t id = 0; id < tokens->size(); ++id) {
    RETURN_IF_ERROR(impl->vocab.Set(static_cast<int64_t>(id), (*tokens)[id]).WithContext(file.path()));
  }
  ASSIGN_OR_RETURN(std::vector<AddedToken> added, ReadAddedTokens(file, *tokens));
  return impl->SetAddedTokens(std::move(added)).WithContext(file.path());
}

// "gpt2": byte-level BPE with merges.
Status LoadByteLevel(const GgufFile& file, TokenizerImpl* impl) {
  if (!file.Has("tokenizer.ggml.pre")) {
    LOG_WARN("{}: tokenizer.ggml.pre is missing: an old file, its text may be cut in the wrong places",
             file.path());
  }
  ASSIGN_OR_RETURN(const std::string pre_name, file.StringOr("tokenizer.ggml.pre", "default"));
  const Result<const GgufPreTokenizer*> found = FindGgufPreTokenizer(pre_name);
  if (!found.ok()) return found.status().WithContext(file.path());
  const GgufPreTokenizer& pre = **found;
  impl->description = fmt::format("gpt2/{}", pre_name);
  for (const std::string_view split : pre.splits) {
    RETURN_IF_ERROR(impl->pre_tokenizer.AddRegex(split, SplitBehavior::kIsolated));
  }
  if (pre.nfc) impl->normalizer.AddForm(NormalForm::kNfc);
  RETURN_IF_ERROR(ReadTokens(file, impl));
  impl->SetModel({.ignore_merges = pre.ignore_merges}, {});
  RETURN_IF_ERROR(ReadMerges(file, impl));
  return ReadIds(file, pre.add_bos, /*scored=*/false, impl);
}

// SentencePiece: scores instead of merges, spaces as "▁", bytes for what has no token. "llama" is its BPE,
// "t5" Unigram.
Status LoadScored(const GgufFile& file, bool unigram, TokenizerImpl* impl) {
  constexpr std::string_view kMetaSpace = "▁", kCharsmapKey = "tokenizer.ggml.precompiled_charsmap";
  impl->description = unigram ? "t5/unigram" : "llama/spm";
  ASSIGN_OR_RETURN(const bool prefix, file.BoolOr("tokenizer.ggml.add_space_prefix", true));
  ASSIGN_OR_RETURN(const bool squeeze, file.BoolOr("tokenizer.ggml.remove_extra_whitespaces", false));
  if (unigram && file.Has(kCharsmapKey)) {
    const auto* array = std::get_if<GgufArray>(&file.Find(kCharsmapKey)->data);
    if (array == nullptr) return Corrupt("{}: {} is no list", file.path(), kCharsmapKey);
    if (!array->packed.empty()) {
      auto charsmap =
          Charsmap::Parse({reinterpret_cast<const char*>(array->packed.data()), array->packed.size()});
      if (!charsmap.ok()) return charsmap.status().WithContext(file.path());
      impl->normalizer.AddCharsmap(std::move(*charsmap));
    }
  }
  if (unigram && squeeze) impl->normalizer.AddSqueeze();
  if (prefix) impl->normalizer.AddPrepend(std::string(kMetaSpace));
  impl->normalizer.AddReplace(" ", std::string(kMetaSpace));
  RETURN_IF_ERROR(ReadTokens(file, impl));
  const int32_t size = impl->vocab.size();
  ASSIGN_OR_RETURN(std::vector<float> scores, file.Floats(kScoresKey));
  if (static_cast<int64_t>(scores.size()) != size) {
    return Corrupt("{}: {} has {} values for {} tokens", file.path(), kScoresKey, scores.size(), size);
  }
  RETURN_IF_ERROR(ReadIds(file, /*default_add_bos=*/!unigram, /*scored=*/!unigram, impl));
  ASSIGN_OR_RETURN(int32_t unk, TokenId(file, "tokenizer.ggml.unknown_token_id", size, unigram ? 2 : 0));
  // A strange character of a user's must not end or begin a text.
  if (unk == impl->bos_id || unk == impl->eos_id) unk = -1;
  const TokenStyle style = {
      .byte_level = false, .meta_space = true, .byte_fallback = true, .strip_leading_space = prefix};
  if (unigram) {
    impl->SetUnigram(std::move(scores), {}, {.byte_fallback = true, .unk_id = unk}, style);
  } else {
    impl->SetModel({.byte_level = false, .byte_fallback = true, .unk_id = unk, .fuse_unk = true}, style);
    impl->SetScores(std::move(scores));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<TokenizerImpl>> LoadTokenizerGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string model, file.String("tokenizer.ggml.model"));
  auto impl = std::make_unique<TokenizerImpl>();
  if (model == "gpt2") {
    RETURN_IF_ERROR(LoadByteLevel(file, impl.get()));
  } else if (model == "llama" || model == "t5") {
    RETURN_IF_ERROR(LoadScored(file, /*unigram=*/model == "t5", impl.get()));
  } else {
    return Unsupported(
        "{}: tokenizer.ggml.model '{}': supported are gpt2 (byte-level BPE), llama and t5 (SentencePiece)",
        file.path(), Printable(model));
  }
  RETURN_IF_ERROR(ReadTemplates(file, impl.get()));
  impl->Finish();
  return impl;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(std::unique_ptr<TokenizerImpl> impl, LoadTokenizerGguf(file));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

}  // namespace cachalot
