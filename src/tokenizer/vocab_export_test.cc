// Vocabularies written as GGUF metadata: they encode the corpus as the folder they came from.
#include "tokenizer/vocab_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/pre_tokenizer_table.h"
#include "tokenizer/tokenizer_testing.h"

namespace cachalot {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* vocabulary;
  const char* pre;
};

class VocabExportTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Vocabularies, VocabExportTest,
                         testing::Values(Case{"gpt2", "gpt-2"}, Case{"smollm2", "smollm"}, Case{"llama3", "llama-bpe"},
                                         Case{"qwen3", "qwen2"}, Case{"deepseek_llm", "deepseek-llm"},
                                         Case{"deepseek_coder", "deepseek-coder"}, Case{"deepseek_v3", "deepseek-v3"}),
                         [](const auto& param) { return std::string(param.param.vocabulary); });

TEST_P(VocabExportTest, EncodesAlike) {
  const TempFolder folder;
  folder.Write("tokenizer.json", TestData(std::string("vocab_") + GetParam().vocabulary + "_slim").dump());
  const TokenizerResult original = Tokenizer::FromFolder(folder.path());
  ASSERT_TRUE(original.ok()) << original.status().ToString();
  GgufWriter writer;
  const int64_t rows = (*original)->vocab_size() + 7;
  const Status status = ExportVocab(folder.path(), rows, &writer);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::string header = writer.Header();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(header)), "v.gguf");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->String("tokenizer.ggml.pre").value(), GetParam().pre);
  EXPECT_EQ(static_cast<int64_t>((*file)->Strings("tokenizer.ggml.tokens")->size()), rows);
  const TokenizerResult again = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  for (const auto& text : TestData("corpus").get<std::vector<std::string>>()) {
    ASSERT_EQ(Ids(**again, text), Ids(**original, text)) << text;
  }
  EXPECT_EQ((*again)->bos_id(), (*original)->bos_id());
  EXPECT_EQ((*again)->eos_id(), (*original)->eos_id());
}

TEST(VocabExport, TemplatesEndsAndUnusedIds) {
  nlohmann::json json = ByteLevelJson({"a b", "ab c"}, {Special("<start>"), Special("<stop>"), Ordinary("<think>")});
  const TempFolder folder;
  folder.Write("tokenizer.json", json.dump());
  folder.Write("tokenizer_config.json", R"({"bos_token": "<start>", "eos_token": "<stop>", "add_bos_token": true,
      "chat_template": [{"name": "default", "template": "T"}, {"name": "rag", "template": "R"}]})");
  folder.Write("generation_config.json", R"({"eos_token_id": [259, 97]})");
  GgufWriter writer;
  const Status status = ExportVocab(folder.path(), 270, &writer);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::string header = writer.Header();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(header)), "v.gguf");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto tokenizer = std::move(Tokenizer::FromGguf(**file)).value();
  EXPECT_EQ(tokenizer->bos_id(), 258);
  EXPECT_EQ(tokenizer->eos_id(), 259);
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_EQ(tokenizer->chat_template(), "T");
  EXPECT_EQ(tokenizer->named_chat_templates().at("rag"), "R");
  EXPECT_THAT(std::vector<int32_t>(tokenizer->stop_ids().begin(), tokenizer->stop_ids().end()),
              testing::ElementsAre(97, 259));
  const auto types = (*file)->Ints("tokenizer.ggml.token_type").value();
  EXPECT_EQ(types[257], 1);
  EXPECT_EQ(types[258], 3);
  EXPECT_EQ(types[260], 4);
  EXPECT_EQ(types[261], 5);
  EXPECT_EQ(ExportVocab(folder.path(), 100, &writer).code(), StatusCode::kUnsupported);
  EXPECT_EQ(ExportVocab(folder.path() + "/none", 100, &writer).code(), StatusCode::kNotFound);
}

std::vector<std::string> PiecesOf(const std::string& name, const std::string& text) {
  PreTokenizer pre;
  const auto row = FindGgufPreTokenizer(name);
  EXPECT_TRUE(row.ok()) << name;
  for (const std::string_view split : (*row)->splits) {
    const Status status = pre.AddRegex(split, SplitBehavior::kIsolated);
    EXPECT_TRUE(status.ok()) << name << ": " << status.ToString();
  }
  RegexScratch scratch;
  std::vector<TextPiece> pieces;
  EXPECT_TRUE(pre.Split(text, &scratch, &pieces).ok());
  std::vector<std::string> texts;
  for (const TextPiece& piece : pieces) texts.push_back(text.substr(piece.begin, piece.end - piece.begin));
  return texts;
}

TEST(PreTokenizerTable, EveryRowCutsWithoutLoss) {
  const auto corpus = TestData("corpus").get<std::vector<std::string>>();
  for (const GgufPreTokenizer& row : AllGgufPreTokenizers()) {
    const std::string name(row.names.substr(0, row.names.find(' ')));
    for (size_t i = 0; i < corpus.size(); i += 17) {
      std::string joined;
      for (const std::string& piece : PiecesOf(name, corpus[i])) joined += piece;
      ASSERT_EQ(joined, corpus[i]) << name;
    }
  }
}

TEST(PreTokenizerTable, WhereTheyDiffer) {
  using ::testing::ElementsAre;
  EXPECT_THAT(PiecesOf("tekken", "HelloWorld it's 123//"), ElementsAre("Hello", "World", " it", "'s", " ", "1", "2", "3", "//"));
  EXPECT_THAT(PiecesOf("gpt-4o", "HelloWorld it's 1234"), ElementsAre("Hello", "World", " it's", " ", "123", "4"));
  EXPECT_THAT(PiecesOf("kimi-k2", "中文abc中 Don'T 1234"), ElementsAre("中文", "abc", "中", " Don'T", " ", "123", "4"));
  EXPECT_THAT(PiecesOf("youtu", "한글中文abc，d 12"), ElementsAre("한글", "中文", "abc", "，", "d", " ", "1", "2"));
  EXPECT_THAT(PiecesOf("seed-coder", "a b!?\n\n12"), ElementsAre("a", " b", "!?", "\n\n", "1", "2"));
  EXPECT_THAT(PiecesOf("viking", "abc, d12 (x"), ElementsAre("abc", ",", " d", "1", "2", " (", "x"));
}

// Splits that no GGUF name stands for.
TEST(VocabExport, StrangePreTokenizer) {
  nlohmann::json json = ByteLevelJson({"a b"});
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"}, {"pattern", {{"Regex", "[aeiou]"}}}, {"behavior", "Isolated"}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const TempFolder folder;
  folder.Write("tokenizer.json", json.dump());
  GgufWriter writer;
  const Status status = ExportVocab(folder.path(), 300, &writer);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("pre-tokenizer"));
}

// SentencePiece's BPE as tokenizer.json has it (a list of merges, bytes to fall back to) becomes scores.
TEST(VocabExport, MergesBecomeScores) {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = 3 + b;
  int id = 259;
  for (const char* text : {"▁", "a", "b", "c", "▁a", "bc", "▁abc", "ab"}) vocab[text] = id++;
  const nlohmann::json json = {
      {"added_tokens",
       {{{"id", 0}, {"content", "<unk>"}, {"special", true}}, {{"id", 1}, {"content", "<s>"}, {"special", true}},
        {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "▁"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", {"▁ a", "b c", "▁a bc", "a b"}}}}};
  const TempFolder folder;
  folder.Write("tokenizer.json", json.dump());
  GgufWriter writer;
  const Status status = ExportVocab(folder.path(), 267, &writer);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::string header = writer.Header();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(header)), "v.gguf");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->String("tokenizer.ggml.model").value(), "llama");
  const auto original = std::move(Tokenizer::FromFolder(folder.path())).value();
  const auto again = std::move(Tokenizer::FromGguf(**file)).value();
  for (const char* text : {"abc", "a bc ab", "cab  é abcabc", "aab abab"}) {
    EXPECT_EQ(Ids(*again, text, {.add_special = false}), Ids(*original, text, {.add_special = false})) << text;
  }
}

}  // namespace
}  // namespace cachalot
