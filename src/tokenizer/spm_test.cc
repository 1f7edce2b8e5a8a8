// SentencePiece vocabularies against what the `sentencepiece` package makes of a corpus of nasty texts
// (tools/make_spm_goldens.py): from tokenizer.model, and the same vocabulary as GGUF metadata.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/gguf.h"
#include "formats/gguf_writer.h"
#include "formats/sentencepiece.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_testing.h"

namespace cachalot {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string FromBase64(const std::string& text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit =
        std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/").find(c);
    if (digit == std::string_view::npos) break;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) out += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  return out;
}

const json& Goldens() {
  static const json goldens = TestData("spm");
  return goldens;
}

class SpmGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  std::string ModelBytes() const { return FromBase64(Goldens()["models"][GetParam()]["model"]); }

  bool unigram() const { return Name() == "unigram" || Name() == "nfkc"; }
  static std::string_view Name() { return GetParam(); }

  void Check(const Tokenizer& tokenizer, bool check_decoded) const {
    const json& golden = Goldens()["models"][GetParam()];
    const auto texts = Goldens()["texts"].get<std::vector<std::string>>();
    for (size_t i = 0; i < texts.size(); ++i) {
      // The package knows control tokens as ids only, never in a text.
      const EncodeOptions options = {.add_special = false, .parse_special = false};
      const auto want = golden["ids"][i].get<std::vector<int32_t>>();
      ASSERT_EQ(Ids(tokenizer, texts[i], options), want) << i << ": " << texts[i];
      if (check_decoded) {
        ASSERT_EQ(tokenizer.Decode(want, /*skip_special=*/false), golden["decoded"][i].get<std::string>())
            << texts[i];
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Models, SpmGoldenTest, testing::Values("bytes", "unk", "user", "unigram", "nfkc"));

TEST_P(SpmGoldenTest, FromModelFile) {
  const TempFolder folder;
  folder.Write("tokenizer.model", ModelBytes());
  const TokenizerResult tokenizer = Tokenizer::FromFolder(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_TRUE((*tokenizer)->add_bos());
  Check(**tokenizer, Name() != "unk" && Name() != "nfkc");
}

TEST_P(SpmGoldenTest, FromGguf) {
  // In GGUF files user-defined tokens are found in the text as it is, spaces not replaced.
  if (Name() == "user") return;
  const std::string bytes = ModelBytes();
  const SentencePieceModel model = ParseSentencePiece(std::as_bytes(std::span(bytes)), "m").value();
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const auto& piece : model.pieces) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int32_t>(piece.kind));
  }
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", unigram() ? "t5" : "llama");
  writer.SetU32("tokenizer.ggml.unknown_token_id", 0);
  writer.SetBool("tokenizer.ggml.remove_extra_whitespaces", model.remove_extra_whitespaces);
  if (!model.charsmap.empty()) {
    GgufArray charsmap;
    charsmap.element_type = GgufType::kU8;
    const auto raw = std::as_bytes(std::span(model.charsmap));
    charsmap.packed.assign(raw.begin(), raw.end());
    writer.Set("tokenizer.ggml.precompiled_charsmap", GgufValue::Array(std::move(charsmap)));
  }
  writer.SetStrings("tokenizer.ggml.tokens", tokens);
  writer.SetF32s("tokenizer.ggml.scores", scores);
  writer.SetI32s("tokenizer.ggml.token_type", types);
  writer.SetBool("tokenizer.ggml.add_space_prefix", model.add_dummy_prefix);
  const std::string header = writer.Header();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(header)), "m.gguf");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const TokenizerResult tokenizer = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->add_bos(), !unigram());
  Check(**tokenizer, false);
}

// --- By hand. ---

struct Token {
  std::string text;
  float score;
  int32_t type = 1;
};

TokenizerResult FromTokens(const std::vector<Token>& tokens, size_t num_scores) {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const Token& token : tokens) {
    texts.push_back(token.text);
    if (scores.size() < num_scores) scores.push_back(token.score);
    types.push_back(token.type);
  }
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", "llama");
  writer.SetStrings("tokenizer.ggml.tokens", texts);
  writer.SetF32s("tokenizer.ggml.scores", scores);
  writer.SetI32s("tokenizer.ggml.token_type", types);
  const std::string header = writer.Header();
  ASSIGN_OR_RETURN(const auto file, GgufFile::Parse(std::as_bytes(std::span(header)), "m.gguf"));
  return Tokenizer::FromGguf(*file);
}

std::vector<Token> SmallVocab() {
  std::vector<Token> tokens = {{"<unk>", 0, 2}, {"<s>", 0, 3},    {"</s>", 0, 3},  {"▁", -9},  {"a", -9},
                               {"b", -9},       {"ab", -2},       {"ba", -1},      {"▁a", -2}, {"xy", -3},
                               {"y", -9},       {"<0xC3>", 0, 6}, {"<0xA9>", 0, 6}};
  return tokens;
}

TEST(SpmTest, MergesByScoreThenFromTheLeft) {
  const auto tokenizer = FromTokens(SmallVocab(), 13).value();
  const EncodeOptions plain = {.add_special = false};
  // "▁aba": "ba" is best, then "▁a".
  EXPECT_EQ(Ids(*tokenizer, "aba", plain), (std::vector<int32_t>{8, 7}));
  // "▁aab": "▁a" and "ab" are equal: the left one.
  EXPECT_EQ(Ids(*tokenizer, "aab", plain), (std::vector<int32_t>{8, 6}));
  EXPECT_EQ(Ids(*tokenizer, " a", plain), (std::vector<int32_t>{3, 8}));
  EXPECT_EQ(Ids(*tokenizer, "a"), (std::vector<int32_t>{1, 8}));
  // "x" is no token but a part of one.
  EXPECT_EQ(Ids(*tokenizer, "xy", plain), (std::vector<int32_t>{3, 9}));
  EXPECT_EQ(Ids(*tokenizer, "x", plain), (std::vector<int32_t>{3, 0}));
  EXPECT_EQ(Ids(*tokenizer, "xxz", plain), (std::vector<int32_t>{3, 0}));  // a run is one unk
  // Bytes where they exist, unk where not.
  EXPECT_EQ(Ids(*tokenizer, "é", plain), (std::vector<int32_t>{3, 11, 12}));
  EXPECT_EQ(Ids(*tokenizer, "è", plain), (std::vector<int32_t>{3, 0}));
  // The text of a byte token is text.
  EXPECT_EQ(Ids(*tokenizer, "<0xC3>", plain), (std::vector<int32_t>{3, 0}));
  // Control tokens, and the prefix behind them.
  EXPECT_EQ(Ids(*tokenizer, "a</s>a", plain), (std::vector<int32_t>{8, 2, 8}));
  EXPECT_EQ(Ids(*tokenizer, "", plain), (std::vector<int32_t>{}));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{8, 3, 11, 12}), "a é");
}

TEST(SpmTest, LongTextsAreMergedAlike) {
  const auto tokenizer = FromTokens(SmallVocab(), 13).value();
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "aba";
  const auto ids = Ids(*tokenizer, text, {.add_special = false});
  // "▁aba aba …": every "ba" merges, "a" between them stays alone.
  ASSERT_EQ(ids.size(), 10000u);
  EXPECT_EQ(ids[0], 8);
  EXPECT_EQ(ids[1], 7);
  EXPECT_EQ(ids[2], 4);
}

// Bytes that are no table at all: an error, or look-ups that find something or nothing.
TEST(CharsmapTest, AnyBytes) {
  EXPECT_FALSE(Charsmap::Parse("").ok());
  EXPECT_FALSE(Charsmap::Parse(std::string("\x05\0\0\0abcde", 9)).ok());
  EXPECT_FALSE(Charsmap::Parse(std::string("\x08\0\0\0abcd", 8)).ok());
  uint32_t state = 3;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::string bytes("\x80\0\0\0", 4);
    for (int i = 0; i < 150; ++i) bytes += static_cast<char>(next() % (repeat % 2 == 0 ? 256 : 4));
    const Charsmap map = Charsmap::Parse(bytes).value();
    std::string text;
    for (int i = 0; i < 20; ++i) text += static_cast<char>(next());
    EXPECT_LE(map.Longest(text).size, text.size());
  }
}

TEST(SpmTest, BrokenFilesAreErrors) {
  EXPECT_THAT(FromTokens(SmallVocab(), 12).status().message(), HasSubstr("12 values for 13"));
  auto tokens = SmallVocab();
  tokens[4].score = std::nanf("");
  EXPECT_THAT(FromTokens(tokens, 13).status().message(), HasSubstr("scores[4]"));
  const TempFolder folder;
  folder.Write("tokenizer.model", "nonsense");
  EXPECT_EQ(Tokenizer::FromFolder(folder.path()).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace cachalot
