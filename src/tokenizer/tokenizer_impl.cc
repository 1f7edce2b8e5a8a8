#include "tokenizer/tokenizer_impl.h"

#include <algorithm>
#include <new>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/byte_token.h"
#include "tokenizer/known_tokens.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

// One word of this size takes some 40 times as much memory while it is merged.
constexpr int64_t kMaxTextBytes = int64_t{1} << 28;
constexpr std::string_view kMetaSpace = "▁";

// A text as regular expressions need it, valid, and as the model needs it, with its own bytes.
struct RegexView {
  std::string_view bytes;
  std::string_view view;
  std::vector<size_t> stand_ins;  // offsets in `view` of the U+FFFD that stand for one byte of `bytes`
  std::string bytes_storage, view_storage;

  // keep(byte): the model can say this byte; others become U+FFFD for good, which is what they would decode
  // to.
  template <typename Keep>
  void Assign(std::string_view text, const Keep& keep) {
    stand_ins.clear();
    bytes = view = text;
    if (IsValidUtf8(text)) return;
    bytes_storage.clear();
    view_storage.clear();
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char c = NextUtf8Char(text.substr(pos));
      if (c.code_point != kInvalidCodePoint) {
        bytes_storage.append(text, pos, static_cast<size_t>(c.size));
        view_storage.append(text, pos, static_cast<size_t>(c.size));
        pos += static_cast<size_t>(c.size);
        continue;
      }
      if (keep(static_cast<uint8_t>(text[pos]))) {
        stand_ins.push_back(view_storage.size());
        bytes_storage.push_back(text[pos]);
      } else {
        bytes_storage.append(kReplacementCharacter);
      }
      view_storage.append(kReplacementCharacter);
      ++pos;
    }
    bytes = bytes_storage;
    view = view_storage;
  }

  // Turns pieces of `view`, in order, into pieces of `bytes`.
  void ToBytes(std::vector<TextPiece>* pieces) const {
    if (stand_ins.empty()) return;
    size_t before = 0;
    const auto map = [&](size_t offset) {
      while (before < stand_ins.size() && stand_ins[before] < offset) ++before;
      return offset - before * (kReplacementCharacter.size() - 1);
    };
    for (TextPiece& piece : *pieces) {
      piece.begin = map(piece.begin);
      piece.end = map(piece.end);
    }
  }
};

}  // namespace

struct TokenizerImpl::Scratch {
  RegexScratch regex;
  PieceScratch piece;
  RegexView view;
  std::vector<TextPiece> pieces;
  std::string normalized, prepared;
  TextOrigin origin;
};

Status TokenizerImpl::SetAddedTokens(std::vector<AddedToken> tokens) {
  flags_.assign(static_cast<size_t>(vocab.size()), 0);
  for (const AddedToken& token : tokens) flags_[static_cast<size_t>(token.id)] |= kAdded;
  for (const std::string_view text : KnownEndTexts()) {
    const int32_t id = vocab.Find(text);
    if (id < 0) continue;
    stop_ids.push_back(id);
    if (!HasFlag(id, kAdded)) tokens.push_back({.id = id, .text = std::string(text), .special = true});
  }
  std::string storage;
  for (AddedToken& token : tokens) {
    token.control = token.control || token.special || LooksLikeMarkup(token.text);
    uint8_t& flags = flags_[static_cast<size_t>(token.id)];
    flags |= kAdded;
    if (token.special) flags |= kSpecial;
    if (token.control) flags |= kControl;
    if (token.control || !token.in_model) flags |= kForeign;
    if (token.normalized) token.text = std::string(normalizer.Apply(token.text, &storage, nullptr));
    AddedTokens& matcher = token.normalized ? normalized_tokens_ : raw_tokens_;
    RETURN_IF_ERROR(matcher.Add(std::move(token)));
  }
  return Status::Ok();
}

std::vector<bool> TokenizerImpl::OrdinaryTokens() const {
  std::vector<bool> ordinary(static_cast<size_t>(vocab.size()));
  for (int32_t id = 0; id < vocab.size(); ++id) {
    ordinary[static_cast<size_t>(id)] = vocab.IsDefined(id) && !HasFlag(id, kForeign);
  }
  return ordinary;
}

void TokenizerImpl::SetModel(BpeOptions options, TokenStyle style) {
  style_ = style;
  unk_id = options.unk_id;
  auto model = std::make_unique<BpeModel>(&vocab, OrdinaryTokens(), options);
  bpe_ = model.get();
  model_ = std::move(model);
}

void TokenizerImpl::SetUnigram(std::vector<float> token_scores, const std::vector<int32_t>& fixed,
                               UnigramOptions options, TokenStyle style) {
  style_ = style;
  unk_id = options.unk_id;
  scores = token_scores;
  model_ = std::make_unique<UnigramModel>(&vocab, OrdinaryTokens(), std::move(token_scores), fixed, options);
}

void TokenizerImpl::Finish() {
  if (eos_id >= 0) stop_ids.push_back(eos_id);
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  for (const int32_t id : stop_ids) flags_[static_cast<size_t>(id)] |= kSpecial;
  bos_text = vocab.Text(bos_id);
  eos_text = vocab.Text(eos_id);
  FillTokenBytes();
}

void TokenizerImpl::FillTokenBytes() {
  bytes_begin_.reserve(static_cast<size_t>(vocab.size()) + 1);
  const auto append_text = [this](std::string_view text) {
    if (const int byte = style_.byte_fallback ? ByteOfToken(text) : -1; byte >= 0) {
      bytes_.push_back(static_cast<char>(byte));
      return;
    }
    while (style_.meta_space) {
      const size_t found = text.find(kMetaSpace);
      if (found == std::string_view::npos) break;
      bytes_.append(text.substr(0, found));
      bytes_.push_back(' ');
      text.remove_prefix(found + kMetaSpace.size());
    }
    bytes_.append(text);
  };
  for (int32_t id = 0; id < vocab.size(); ++id) {
    bytes_begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    const std::string_view text = vocab.Text(id);
    if (HasFlag(id, kAdded)) {
      bytes_.append(
          text);  // as written: deepseek-llm's token "ü" is the letter, not the byte that ü stands for
    } else if (!style_.byte_level) {
      append_text(text);
    } else if (!AppendAlphabetBytes(text, &bytes_)) {
      bytes_.append(text);
    }
  }
  bytes_begin_.push_back(static_cast<uint32_t>(bytes_.size()));
}

std::string_view TokenizerImpl::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab.size()) return {};
  const size_t begin = bytes_begin_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(begin, bytes_begin_[static_cast<size_t>(id) + 1] - begin);
}

Result<std::vector<int32_t>> TokenizerImpl::Encode(std::string_view text,
                                                   const EncodeOptions& options) const {
  if (static_cast<int64_t>(text.size()) > kMaxTextBytes) {
    return InvalidArgument("a text of {} bytes to tokenize, the limit is {}", text.size(), kMaxTextBytes);
  }
  try {
    return EncodeChecked(text, options);
  } catch (const std::bad_alloc&) {
    return Exhausted("no memory to tokenize a text of {} bytes", text.size());
  }
}

Result<std::vector<int32_t>> TokenizerImpl::EncodeChecked(std::string_view text,
                                                          const EncodeOptions& options) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  if (options.add_special) out = prefix_ids;
  const UserRanges user(options.user_ranges);
  Scratch scratch;

  // The stretch [begin, end) between added tokens that are matched in the text as it is.
  const auto encode_stretch = [&](size_t begin, size_t end) -> Status {
    if (begin == end) return Status::Ok();
    const bool wants_origin = !normalized_tokens_.empty() && !user.empty();
    const std::string_view normal = normalizer.Apply(text.substr(begin, end - begin), &scratch.normalized,
                                                     wants_origin ? &scratch.origin : nullptr);
    size_t done = 0;
    for (const AddedTokenMatch& match : normalized_tokens_.FindAll(
             normal, options.parse_special, user, scratch.origin, static_cast<int64_t>(begin))) {
      if (match.begin > done) {
        RETURN_IF_ERROR(EncodeNormalized(normal.substr(done, match.begin - done), begin == 0 && done == 0,
                                         &scratch, &out));
      }
      out.push_back(match.id);
      done = match.end;
    }
    return EncodeNormalized(normal.substr(done), begin == 0 && done == 0, &scratch, &out);
  };

  size_t done = 0;
  for (const AddedTokenMatch& match : raw_tokens_.FindAll(text, options.parse_special, user, {}, 0)) {
    if (match.begin > done) RETURN_IF_ERROR(encode_stretch(done, match.begin));
    out.push_back(match.id);
    done = match.end;
  }
  RETURN_IF_ERROR(encode_stretch(done, text.size()));
  if (options.add_special) out.insert(out.end(), suffix_ids.begin(), suffix_ids.end());
  return out;
}

Status TokenizerImpl::EncodeNormalized(std::string_view text, bool at_start, Scratch* scratch,
                                       std::vector<int32_t>* out) const {
  if (text.empty()) return Status::Ok();
  text = pre_tokenizer.Prepare(text, at_start, &scratch->prepared);
  RegexView& view = scratch->view;
  view.Assign(text, [this](uint8_t byte) { return model_->HasByte(byte); });
  RETURN_IF_ERROR(pre_tokenizer.Split(view.view, &scratch->regex, &scratch->pieces));
  view.ToBytes(&scratch->pieces);
  for (const TextPiece& piece : scratch->pieces) {
    model_->Encode(view.bytes.substr(piece.begin, piece.end - piece.begin), &scratch->piece, out);
  }
  return Status::Ok();
}

}  // namespace cachalot
