#include "weights/dummy/dummy_vocab.h"

#include <algorithm>

#include "formats/gguf_writer.h"
#include "weights/dummy/vocab_families.h"

namespace cachalot {
namespace {

std::string Utf8(uint32_t code_point) {  // below U+0800
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

bool IsPrintable(uint8_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// Made-up words: syllables of a consonant and a vowel, pairs of them, the same with a space in front, and
// pairs of pairs. Why each word is what its own text is encoded to: of the pairs that can be merged,
// (consonant, vowel) come first and never overlap; then (syllable, syllable), where in a word of four
// syllables the middle pair must not be the best; then (space, word); and only then words are joined. See
// Reaches().
class WordMaker {
 public:
  WordMaker(VocabTable* vocab, int32_t limit) : vocab_(vocab), limit_(limit), space_(ByteSpelling(' ')) {}

  void Make() {
    constexpr std::string_view kConsonants = "tnshrdlcmfwgpbvkjxqz";
    constexpr std::string_view kVowels = "eaoiu";
    std::vector<std::string> syllables;
    for (const char c : kConsonants) {
      for (const char v : kVowels) {
        if (Add(std::string(1, c), std::string(1, v))) syllables.push_back(vocab_->tokens.back());
      }
    }
    // Interleaved with a step that is coprime to the count, so that neighbours in rank do not share a
    // syllable.
    const size_t count = syllables.size();
    for (size_t i = 0; i < count * count; ++i) {
      const size_t first = i % count, second = (i * 37 + i / count) % count;
      if (Add(syllables[first], syllables[second])) pairs_.push_back({first, second, pairs_.size()});
    }
    rank_.assign(count * count, count * count);
    for (const auto& pair : pairs_) rank_[pair.first * count + pair.second] = pair.rank;
    for (const auto& syllable : syllables) Add(space_, syllable);
    std::vector<std::string> words;
    for (const auto& pair : pairs_) words.push_back(syllables[pair.first] + syllables[pair.second]);
    for (const auto& word : words) Add(space_, word);
    for (size_t distance = 0; !full() && distance < words.size(); ++distance) {
      for (size_t i = 0; !full() && i < words.size(); ++i) {
        const size_t j = (i + distance) % words.size();
        if (!Reaches(pairs_[i], pairs_[j], count)) continue;
        Add(words[i], words[j]);
        Add(space_ + words[i], words[j]);
      }
    }
  }

 private:
  struct Pair {
    size_t first, second, rank;
  };

  bool full() const { return static_cast<int32_t>(vocab_->tokens.size()) >= limit_; }

  // In the text of left and right, four syllables, the pair across the border is not merged before both of
  // the others: equal ranks are merged from the left.
  bool Reaches(const Pair& left, const Pair& right, size_t count) const {
    const size_t across = rank_[left.second * count + right.first];
    return left.rank <= across || right.rank < across;
  }

  bool Add(const std::string& left, const std::string& right) {
    if (full()) return false;
    vocab_->tokens.push_back(left + right);
    vocab_->types.push_back(static_cast<int32_t>(TokenType::kNormal));
    vocab_->merges.push_back(left + " " + right);
    return true;
  }

  VocabTable* vocab_;
  const int32_t limit_;
  const std::string space_;
  std::vector<Pair> pairs_;
  std::vector<size_t> rank_;  // [syllable x syllable]; count^2: no such merge
};

void AddSpecials(const std::vector<SpecialToken>& specials, VocabTable* vocab) {
  for (const auto& special : specials) {
    vocab->tokens.push_back(special.text);
    const bool unknown = special.text == "<unk>";
    vocab->types.push_back(static_cast<int32_t>(unknown           ? TokenType::kUnknown
                                                : special.control ? TokenType::kControl
                                                                  : TokenType::kUserDefined));
  }
}

void AddAlphabet(VocabTable* vocab) {
  for (const bool printable : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (IsPrintable(static_cast<uint8_t>(byte)) != printable) continue;
      vocab->tokens.push_back(ByteSpelling(static_cast<uint8_t>(byte)));
      vocab->types.push_back(static_cast<int32_t>(TokenType::kNormal));
    }
  }
}

int32_t BaseSize(const VocabLayout& layout, int32_t vocab_size) {
  const int32_t room = vocab_size - static_cast<int32_t>(layout.trailing.size());
  return layout.base_size > 0 ? std::min(layout.base_size, room) : room;
}

// Special tokens are few and at the ends, so a search is a subtraction.
int32_t IdOf(const VocabLayout& layout, int32_t vocab_size, const std::string& text) {
  if (text.empty()) return -1;
  for (size_t i = 0; i < layout.leading.size(); ++i) {
    if (layout.leading[i].text == text) return static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < layout.trailing.size(); ++i) {
    if (layout.trailing[i].text == text) return BaseSize(layout, vocab_size) + static_cast<int32_t>(i);
  }
  return -1;
}

}  // namespace

std::string ByteSpelling(uint8_t byte) {
  if (IsPrintable(byte)) return Utf8(byte);
  uint32_t index = 0;
  for (uint32_t other = 0; other < byte; ++other) index += IsPrintable(static_cast<uint8_t>(other)) ? 0 : 1;
  return Utf8(0x100 + index);
}

VocabIds DummyVocabIds(const DummySpec& spec) {
  const VocabLayout layout = LayoutOf(spec.vocab);
  return {IdOf(layout, spec.vocab_size, layout.bos), IdOf(layout, spec.vocab_size, layout.eos)};
}

void PadVocab(int32_t vocab_size, VocabTable* vocab) {
  const size_t size = std::max(vocab->tokens.size(), static_cast<size_t>(std::max(vocab_size, 0)));
  vocab->tokens.resize(size);
  vocab->types.resize(size);
  for (size_t id = 0; id < size; ++id) {
    if (!vocab->tokens[id].empty()) continue;
    vocab->tokens[id] = fmt::format("[PAD{}]", id);
    vocab->types[id] = static_cast<int32_t>(TokenType::kUnused);
  }
}

VocabTable MakeDummyVocab(const DummySpec& spec) {
  const VocabLayout layout = LayoutOf(spec.vocab);
  VocabTable vocab;
  vocab.pre = layout.pre;
  AddSpecials(layout.leading, &vocab);
  AddAlphabet(&vocab);
  const int32_t base_size = BaseSize(layout, spec.vocab_size);
  CHECK(static_cast<int32_t>(vocab.tokens.size()) <= base_size) << spec.name << ": vocab_size is too small";
  WordMaker(&vocab, base_size).Make();
  AddSpecials(layout.trailing, &vocab);
  PadVocab(spec.vocab_size, &vocab);
  vocab.bos_id = IdOf(layout, spec.vocab_size, layout.bos);
  vocab.eos_id = IdOf(layout, spec.vocab_size, layout.eos);
  vocab.eot_id = IdOf(layout, spec.vocab_size, layout.eot);
  vocab.pad_id = IdOf(layout, spec.vocab_size, layout.pad);
  vocab.unk_id = IdOf(layout, spec.vocab_size, layout.unk);
  vocab.add_bos = layout.add_bos;
  vocab.chat_template = layout.chat_template;
  return vocab;
}

std::vector<GgufEntry> VocabMetadata(const VocabTable& vocab) {
  std::vector<GgufEntry> entries;
  const auto strings = [&](const char* key, const std::vector<std::string>& values) {
    GgufArray array;
    array.element_type = GgufType::kString;
    array.strings = values;
    entries.push_back({key, GgufValue::Array(std::move(array))});
  };
  const auto id = [&](const char* key, int32_t value) {
    if (value >= 0) entries.push_back({key, GgufValue::Uint(GgufType::kU32, static_cast<uint64_t>(value))});
  };
  entries.push_back({"tokenizer.ggml.model", GgufValue::String("gpt2")});
  entries.push_back({"tokenizer.ggml.pre", GgufValue::String(vocab.pre)});
  strings("tokenizer.ggml.tokens", vocab.tokens);
  GgufArray types;
  types.element_type = GgufType::kI32;
  const auto type_bytes = std::as_bytes(std::span(vocab.types));
  types.packed.assign(type_bytes.begin(), type_bytes.end());
  entries.push_back({"tokenizer.ggml.token_type", GgufValue::Array(std::move(types))});
  strings("tokenizer.ggml.merges", vocab.merges);
  id("tokenizer.ggml.bos_token_id", vocab.bos_id);
  id("tokenizer.ggml.eos_token_id", vocab.eos_id);
  id("tokenizer.ggml.eot_token_id", vocab.eot_id);
  id("tokenizer.ggml.unknown_token_id", vocab.unk_id);
  id("tokenizer.ggml.padding_token_id", vocab.pad_id);
  entries.push_back(
      {"tokenizer.ggml.add_bos_token", GgufValue::Uint(GgufType::kBool, vocab.add_bos ? 1 : 0)});
  if (!vocab.chat_template.empty()) {
    entries.push_back({"tokenizer.chat_template", GgufValue::String(vocab.chat_template)});
  }
  return entries;
}

Result<std::shared_ptr<const GgufFile>> MakeDummyVocabFile(const DummySpec& spec) {
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  for (auto& entry : VocabMetadata(MakeDummyVocab(spec)))
    writer.Set(std::move(entry.key), std::move(entry.value));
  const std::string file = writer.Header();
  return GgufFile::Parse(std::as_bytes(std::span(file)), fmt::format("dummy {}", spec.name));
}

}  // namespace cachalot
