// Against what the `tokenizers` package makes of a corpus of nasty texts (tools/make_tokenizer_goldens.py),
// and against the golden ids that come with real vocabularies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "tokenizer/hf_components.h"
#include "tokenizer/pre_tokenizer_table.h"
#include "tokenizer/tokenizer_testing.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

using nlohmann::json;

const std::vector<std::string>& Corpus() {
  static const auto corpus = TestData("corpus").get<std::vector<std::string>>();
  return corpus;
}

// Ids and decoded texts of a golden file.
void ExpectGolden(const Tokenizer& tokenizer, const std::string& name) {
  const json golden = TestData("golden_" + name);
  ASSERT_EQ(golden["ids"].size(), Corpus().size());
  for (size_t i = 0; i < Corpus().size(); ++i) {
    const auto expected = golden["ids"][i].get<std::vector<int32_t>>();
    ASSERT_EQ(Ids(tokenizer, Corpus()[i], {.add_special = false}), expected)
        << name << " text " << i << ": " << Corpus()[i];
  }
  for (const json& decode : golden["decodes"]) {
    ASSERT_EQ(tokenizer.Decode(decode[0].get<std::vector<int32_t>>()), decode[1].get<std::string>())
        << name << " " << decode[0];
  }
}

void ExpectRoundTrip(const Tokenizer& tokenizer, const Normalizer& normalizer) {
  for (const std::string& text : Corpus()) {
    std::string storage;
    EXPECT_EQ(tokenizer.Decode(Ids(tokenizer, text, {.add_special = false}), /*skip_special=*/false),
              normalizer.Apply(text, &storage, nullptr));
  }
}

struct Vocabulary {
  const char* name;
  const char* pre;
  bool nfc = false;
  bool all_bytes =
      true;  // every byte has a token; otherwise characters get lost, with the package as with us
};
constexpr Vocabulary kVocabularies[] = {
    {"gpt2", "gpt-2"},
    {"smollm2", "smollm", false, false},
    {"llama3", "llama-bpe"},
    {"qwen3", "qwen2", true},
    {"deepseek_llm", "deepseek-llm"},
    {"deepseek_coder", "deepseek-coder"},
    {"deepseek_v3", "deepseek-v3"},
};

class GoldenTest : public testing::TestWithParam<Vocabulary> {
 protected:
  static void ExpectGoldenAndRoundTrip(const Tokenizer& tokenizer, const std::string& name) {
    ExpectGolden(tokenizer, name);
    Normalizer normalizer;
    if (GetParam().nfc) normalizer.AddForm(NormalForm::kNfc);
    if (GetParam().all_bytes) ExpectRoundTrip(tokenizer, normalizer);
  }
};
INSTANTIATE_TEST_SUITE_P(Vocabularies, GoldenTest, testing::ValuesIn(kVocabularies),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(GoldenTest, SlimTokenizerJson) {
  const std::string name = std::string(GetParam().name) + "_slim";
  const TokenizerResult tokenizer = FromJson(TestData("vocab_" + name));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  ExpectGoldenAndRoundTrip(**tokenizer, name);
}

TEST_P(GoldenTest, SlimGguf) {
  const std::string name = std::string(GetParam().name) + "_slim";
  const TokenizerResult tokenizer = FromJsonAsGguf(TestData("vocab_" + name), GetParam().pre);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  ExpectGolden(**tokenizer, name);
}

// "" where none is on this machine.
std::string FullGguf(const std::string& name) {
  if (name == "gpt2") return SharedPath("tokenizers/gguf/gpt-2.gguf");
  if (name == "deepseek_llm") return SharedPath("tokenizers/gguf/deepseek-llm.gguf");
  if (name == "deepseek_coder") return SharedPath("tokenizers/gguf/deepseek-coder.gguf");
  if (name != "smollm2") return "";
  // The default model, where tools/fetch_model.sh puts it.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr ? cache : home != nullptr ? std::string(home) + "/.cache" : "";
  const std::string path = base + "/cachalot/SmolLM2-135M-Instruct.Q4_1.gguf";
  return FileExists(path) ? path : "";
}

TEST_P(GoldenTest, FullVocabulary) {
  const std::string name = GetParam().name;
  const std::string compressed = SharedPath("tokenizers/" + name + "/tokenizer.json.xz");
  const std::string gguf = FullGguf(name);
  if (compressed.empty() && gguf.empty()) GTEST_SKIP() << "the full vocabulary is not on this machine";
  TokenizerResult tokenizer = Status(StatusCode::kNotFound, "");
  if (!compressed.empty()) {
    const TempFolder folder;
    folder.Write("tokenizer.json", ReadXz(compressed));
    tokenizer = Tokenizer::FromFolder(folder.path());
  } else {
    const auto file = GgufFile::Open(gguf);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    tokenizer = Tokenizer::FromGguf(**file);
  }
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  ExpectGoldenAndRoundTrip(**tokenizer, name);
}

// Where texts are cut: the table for GGUF files and the declarations of tokenizer.json, without any
// vocabulary.
TEST_P(GoldenTest, Splits) {
  const json golden = TestData("splits")[GetParam().pre];
  PreTokenizer declared, named;
  bool byte_level = false;
  ASSERT_TRUE(ReadPreTokenizer(golden["pre_tokenizer"], &declared, &byte_level).ok());
  const auto row = FindGgufPreTokenizer(GetParam().pre);
  ASSERT_TRUE(row.ok());
  for (const std::string_view split : (*row)->splits) {
    ASSERT_TRUE(named.AddRegex(split, SplitBehavior::kIsolated).ok());
  }
  RegexScratch scratch;
  for (size_t i = 0; i < Corpus().size(); ++i) {
    const std::string& text = Corpus()[i];
    std::vector<size_t> char_ends = {0};  // by number of characters
    for (size_t pos = 0; pos < text.size();) {
      pos += static_cast<size_t>(NextUtf8Char(std::string_view(text).substr(pos)).size);
      char_ends.push_back(pos);
    }
    std::vector<size_t> expected;
    for (const json& end : golden["ends"][i]) expected.push_back(char_ends[end.get<size_t>()]);
    for (const PreTokenizer* pre_tokenizer : {&declared, &named}) {
      std::vector<TextPiece> pieces;
      ASSERT_TRUE(pre_tokenizer->Split(text, &scratch, &pieces).ok());
      std::vector<size_t> ends;
      for (const TextPiece& piece : pieces) ends.push_back(piece.end);
      ASSERT_EQ(ends, expected) << GetParam().pre << (pre_tokenizer == &named ? " table" : " declared")
                                << " text " << i << ": " << text;
    }
  }
}

TEST(Golden, TinyDeepSeekV3) {
  const json vocab = TestData("vocab_tiny_v3");
  const TokenizerResult tokenizer = FromJson(vocab);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  ExpectGolden(**tokenizer, "tiny_v3");
  const TokenizerResult from_gguf = FromJsonAsGguf(vocab, "deepseek-v3");
  ASSERT_TRUE(from_gguf.ok()) << from_gguf.status().ToString();
  ExpectGolden(**from_gguf, "tiny_v3");
}

TEST(Golden, TinyDeepSeekV3HeldOutText) {
  const std::string folder = SharedPath("models/tiny-deepseek-v3");
  if (folder.empty()) GTEST_SKIP() << "models/tiny-deepseek-v3 is not on this machine";
  const TokenizerResult tokenizer = Tokenizer::FromFolder(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const auto text = ReadTextFile(folder + "/valid.txt", 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto golden = SafetensorsFolder::OpenFile(folder + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status().ToString();
  const SafetensorsTensor* tensor = (*golden)->Find("valid_txt.tokens");
  ASSERT_NE(tensor, nullptr);
  std::vector<int32_t> expected(static_cast<size_t>(tensor->bytes) / 4);
  const File& data = *(*golden)->files()[static_cast<size_t>(tensor->file_idx)];
  ASSERT_TRUE(data.ReadAt(tensor->offset, std::as_writable_bytes(std::span(expected))).ok());
  EXPECT_EQ(expected.size(), 69791u);
  EXPECT_EQ(Ids(**tokenizer, *text, {.add_special = false}), expected);
  EXPECT_TRUE((*tokenizer)->add_bos());
  expected.insert(expected.begin(), 0);
  EXPECT_EQ(Ids(**tokenizer, *text), expected);
  EXPECT_EQ((*tokenizer)->Decode(expected), *text);
}

// TEXT.gguf.inp holds texts separated by a line, TEXT.gguf.out one line of ids per text, without BOS.
class GgufGoldenTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, GgufGoldenTest,
                         testing::Values("gpt-2", "deepseek-llm", "deepseek-coder", "llama-spm"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(GgufGoldenTest, AllTexts) {
  const std::string path = SharedPath(std::string("tokenizers/gguf/") + GetParam() + ".gguf");
  if (path.empty()) GTEST_SKIP() << "tokenizers/gguf is not on this machine";
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const TokenizerResult tokenizer = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const auto input = ReadTextFile(path + ".inp", 1 << 20);
  ASSERT_TRUE(input.ok());
  constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  std::string_view rest = *input;
  for (size_t at; (at = rest.find(kSeparator)) != std::string_view::npos;
       rest.remove_prefix(at + kSeparator.size())) {
    texts.emplace_back(rest.substr(0, at));
  }
  std::ifstream output(path + ".out");
  std::string line;
  size_t count = 0;
  for (; count < texts.size() && std::getline(output, line); ++count) {
    std::istringstream numbers(line);
    const std::vector<int32_t> expected{std::istream_iterator<int32_t>(numbers), {}};
    EXPECT_EQ(Ids(**tokenizer, texts[count], {.add_special = false}), expected) << texts[count];
  }
  EXPECT_EQ(count, texts.size());
  EXPECT_GE(count, 40u);
}

}  // namespace
}  // namespace cachalot
