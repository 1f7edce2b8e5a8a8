#include "tokenizer/vocab_export.h"

#include <algorithm>
#include <optional>
#include <span>

#include "formats/gguf.h"
#include "formats/text.h"
#include "tokenizer/byte_token.h"
#include "tokenizer/known_tokens.h"
#include "tokenizer/pre_tokenizer_table.h"
#include "tokenizer/tokenizer_impl.h"

namespace cachalot {
namespace {

// Where pre-tokenizers differ: contractions in both cases, digits in runs, line ends, runs of spaces, scripts with
// and without case, marks, signs, CJK beside kana, emoji, no-break spaces.
constexpr std::string_view kProbe =
    "Hello, World! I'm you'RE they'Ll we'd it'S x's\n\nNumbers 1 12 123 1234567 3.14159 1,000 0x1F ½ ٣٤٥ Ⅷ\n"
    "\ttabs\t\tand   runs    of spaces   \n   indented\r\n\r\n  \n return a+b==c&&d||!e; foo_bar(baz)->qux[0] {};\n"
    "naïve café ÀÉÎ Größe ŒUVRE Ωμέγα привет МИР שלום مرحبا हिन्दी ไทย 한국어 日本語 ひらがな カタカナ 中文字符。「引用」，！\n"
    "e\u0301a\u0308 ﬁ ㎏ … — ‘single’ “double” €5 $100 £x 50% #tag @user a@b.de https://a.b/c?d=e&f=1\n"
    "😀👩‍👩‍👧 ❤️ ∑∫√ ≤≥ →← \u00a0nbsp\u2003em\u3000wide CamelCaseWords ALLCAPS lower_snake don't WON'T 's 'T\n"
    "...!!! ??? ---- **bold** `code` <tag attr=\"v\"/> \\n \\\\ ~~ ^^ $$ ++ == <> || a.b.c  x  \n\n\n end   ";

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class Exporter {
 public:
  Exporter(const TokenizerImpl& impl, std::string place, int64_t num_tokens, GgufWriter* writer)
      : impl_(impl), place_(std::move(place)), num_tokens_(num_tokens), writer_(*writer) {}

  Status Run() {
    if (impl_.vocab.size() > num_tokens_) {
      return Unsupported("{}: {} tokens, the model's embedding has {} rows", place_, impl_.vocab.size(), num_tokens_);
    }
    RETURN_IF_ERROR(Model());
    Tokens();
    return Frame();
  }

 private:
  Status Model() {
    if (impl_.bpe() != nullptr && impl_.style().byte_level) {
      writer_.SetString("tokenizer.ggml.model", "gpt2");
      ASSIGN_OR_RETURN(const std::string pre, PreTokenizerName());
      writer_.SetString("tokenizer.ggml.pre", pre);
      std::vector<std::string> merges;
      for (const BpeModel::Merge& merge : impl_.bpe()->Merges()) {
        merges.push_back(std::string(impl_.vocab.Text(merge.left)) + ' ' +
                         std::string(impl_.vocab.Text(merge.right)));
      }
      writer_.SetStrings("tokenizer.ggml.merges", std::move(merges));
      return Status::Ok();
    }
    const bool unigram = impl_.bpe() == nullptr;
    if (!unigram && !impl_.bpe()->options().byte_fallback) {
      return Unsupported("{}: BPE over characters without bytes to fall back to has no form in GGUF", place_);
    }
    writer_.SetString("tokenizer.ggml.model", unigram ? "t5" : "llama");
    writer_.SetString("tokenizer.ggml.pre", "default");
    writer_.SetBool("tokenizer.ggml.add_space_prefix",
                    impl_.normalizer.prepends() || impl_.pre_tokenizer.has_prefix());
    writer_.SetBool("tokenizer.ggml.remove_extra_whitespaces", impl_.normalizer.squeezes());
    if (unigram && impl_.normalizer.charsmap() != nullptr) {
      const std::string bytes = impl_.normalizer.charsmap()->Bytes();
      const auto raw = std::as_bytes(std::span(bytes));
      writer_.Set("tokenizer.ggml.precompiled_charsmap",
                  GgufValue::Array({GgufType::kU8, {}, {raw.begin(), raw.end()}}));
    }
    std::vector<float> scores = Scores();
    scores.resize(static_cast<size_t>(num_tokens_), -1e4f);
    writer_.SetF32s("tokenizer.ggml.scores", scores);
    return Status::Ok();
  }

  // A list of merges as scores: the sooner a token is made, the higher.
  std::vector<float> Scores() const {
    if (!impl_.scores.empty()) return impl_.scores;
    std::vector<float> scores(static_cast<size_t>(impl_.vocab.size()));
    const std::vector<BpeModel::Merge> merges = impl_.bpe()->Merges();
    for (size_t rank = merges.size(); rank-- > 0;) {
      scores[static_cast<size_t>(merges[rank].merged)] = -1.0f - static_cast<float>(rank);
    }
    return scores;
  }

  void Tokens() {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    for (int32_t id = 0; id < num_tokens_; ++id) {
      const bool defined = impl_.vocab.IsDefined(id);
      tokens.push_back(defined ? std::string(impl_.vocab.Text(id)) : fmt::format("[PAD{}]", id));
      types.push_back(defined ? TypeOf(id) : kUnused);
    }
    writer_.SetStrings("tokenizer.ggml.tokens", std::move(tokens));
    writer_.SetI32s("tokenizer.ggml.token_type", types);
  }

  int32_t TypeOf(int32_t id) const {
    const std::string_view text = impl_.vocab.Text(id);
    if (!impl_.style().byte_level && (id == impl_.unk_id || text == "<unk>")) return kUnknown;
    if (impl_.HasFlag(id, TokenizerImpl::kAdded)) {
      const bool control = impl_.HasFlag(id, TokenizerImpl::kSpecial) || text.starts_with("<|") ||
                           text.starts_with("<｜");
      return control ? kControl : kUserDefined;
    }
    return !impl_.style().byte_level && ByteOfToken(text) >= 0 ? kByte : kNormal;
  }

  // What stands around a text, who begins and ends it, the templates.
  Status Frame() {
    const auto frame = [&](const std::vector<int32_t>& ids, int32_t id, const char* key) -> Status {
      if (!ids.empty() && (ids.size() > 1 || ids.front() != id)) {
        return Unsupported("{}: {} tokens around a text, the first is {}: GGUF knows BOS {} and EOS {} only", place_,
                           ids.size(), ids.front(), impl_.bos_id, impl_.eos_id);
      }
      writer_.SetBool(key, !ids.empty());
      return Status::Ok();
    };
    RETURN_IF_ERROR(frame(impl_.prefix_ids, impl_.bos_id, "tokenizer.ggml.add_bos_token"));
    RETURN_IF_ERROR(frame(impl_.suffix_ids, impl_.eos_id, "tokenizer.ggml.add_eos_token"));
    const auto id_of = [&](const char* key, int32_t id) {
      if (id >= 0) writer_.SetU32(key, static_cast<uint32_t>(id));
    };
    id_of("tokenizer.ggml.bos_token_id", impl_.bos_id);
    id_of("tokenizer.ggml.eos_token_id", impl_.eos_id);
    id_of("tokenizer.ggml.padding_token_id", impl_.pad_id);
    if (!impl_.style().byte_level) id_of("tokenizer.ggml.unknown_token_id", impl_.unk_id);
    // Ends that generation_config.json adds and that nobody would know by their text.
    const char* const more_keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    size_t more = 0;
    for (const int32_t id : impl_.stop_ids) {
      const auto known = KnownEndTexts();
      const bool by_text = std::find(known.begin(), known.end(), impl_.vocab.Text(id)) != known.end();
      if (id != impl_.eos_id && !by_text && more < std::size(more_keys)) id_of(more_keys[more++], id);
    }
    constexpr std::string_view kTemplate = "tokenizer.chat_template";
    if (!impl_.chat_template.empty()) writer_.SetString(std::string(kTemplate), impl_.chat_template);
    std::vector<std::string> names;
    for (const auto& [name, text] : impl_.named_chat_templates) {
      names.push_back(name);
      writer_.SetString(fmt::format("{}.{}", kTemplate, name), text);
    }
    if (!names.empty()) writer_.SetStrings("tokenizer.chat_templates", std::move(names));
    return Status::Ok();
  }

  // The name under which GGUF knows what cuts the probe as this tokenizer's splits do.
  Result<std::string> PreTokenizerName() const {
    RegexScratch scratch;
    std::vector<TextPiece> wanted, pieces;
    RETURN_IF_ERROR(impl_.pre_tokenizer.Split(kProbe, &scratch, &wanted));
    std::optional<std::string> nearly;
    for (const GgufPreTokenizer& row : AllGgufPreTokenizers()) {
      PreTokenizer pre;
      for (const std::string_view split : row.splits) {
        RETURN_IF_ERROR(pre.AddRegex(split, SplitBehavior::kIsolated));
      }
      RETURN_IF_ERROR(pre.Split(kProbe, &scratch, &pieces));
      const bool same = std::equal(wanted.begin(), wanted.end(), pieces.begin(), pieces.end(),
                                   [](const TextPiece& a, const TextPiece& b) {
                                     return a.begin == b.begin && a.end == b.end;
                                   });
      if (!same) continue;
      std::string name(row.names.substr(0, row.names.find(' ')));
      if (row.nfc == impl_.normalizer.has_form() && row.ignore_merges == impl_.bpe()->options().ignore_merges)
        return name;
      if (!nearly.has_value()) nearly = std::move(name);
    }
    if (nearly.has_value()) return *nearly;
    return Unsupported("{}: its pre-tokenizer cuts text as none that GGUF has a name for", place_);
  }

  const TokenizerImpl& impl_;
  const std::string place_;
  const int64_t num_tokens_;
  GgufWriter& writer_;
};

}  // namespace

Status ExportVocab(const std::string& folder, int64_t num_tokens, GgufWriter* writer) {
  ASSIGN_OR_RETURN(const auto impl, LoadTokenizerFolder(folder));
  GgufWriter alone;
  alone.SetString("general.architecture", "llama");
  RETURN_IF_ERROR(Exporter(*impl, folder, num_tokens, &alone).Run());
  const std::string header = alone.Header();
  ASSIGN_OR_RETURN(const auto file, GgufFile::Parse(std::as_bytes(std::span(header)), folder));
  ASSIGN_OR_RETURN(const auto again, LoadTokenizerGguf(*file));
  ASSIGN_OR_RETURN(const auto wanted, impl->Encode(kProbe, {}));
  ASSIGN_OR_RETURN(const auto got, again->Encode(kProbe, {}));
  if (wanted != got) {
    const size_t at = static_cast<size_t>(
        std::mismatch(wanted.begin(), wanted.end(), got.begin(), got.end()).first - wanted.begin());
    const auto text = [&](const TokenizerImpl& of, const std::vector<int32_t>& ids) {
      return at < ids.size() ? Printable(of.vocab.Text(ids[at])) : std::string("the end");
    };
    return Unsupported("{}: GGUF cannot say this tokenizer: token {} of a test text becomes '{}' instead of '{}'",
                       folder, at, text(*again, got), text(*impl, wanted));
  }
  for (const GgufEntry& entry : alone.entries()) {
    if (entry.key.starts_with("tokenizer.")) writer->Set(entry.key, entry.value);
  }
  return Status::Ok();
}

}  // namespace cachalot
