// Unigram models from tokenizer.json against what the `tokenizers` package makes of a corpus of nasty texts
// (tools/make_unigram_goldens.py).
#include <gtest/gtest.h>

#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_testing.h"

namespace cachalot {
namespace {

using nlohmann::json;

class UnigramGoldenTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, UnigramGoldenTest, testing::Values("bytes", "xlm", "t5"));

TEST_P(UnigramGoldenTest, EncodesAsThePackage) {
  static const json goldens = TestData("unigram");
  const json& golden = goldens["cases"][GetParam()];
  const auto tokenizer = LoadJson(golden["tokenizer"]);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->description(), "tokenizer.json/Unigram");
  const auto texts = goldens["texts"].get<std::vector<std::string>>();
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto want = golden["ids"][i].get<std::vector<int32_t>>();
    ASSERT_EQ(Ids(*tokenizer, texts[i]), want) << i << ": " << texts[i];
    ASSERT_EQ(tokenizer->Decode(want), golden["decoded"][i].get<std::string>()) << i << ": " << texts[i];
  }
}

TEST(Unigram, WhatIsNoVocabularyIsRefused) {
  json good = {{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", json::parse(R"([["<unk>", 0], ["a", -1.5], ["b", -2]])")}}}};
  EXPECT_TRUE(FromJson(good).ok());
  for (const char* vocab : {R"({"a": 1})", R"([["a"]])", R"([["a", 1, 2]])", R"([["a", "b"]])", R"([[1, "a"]])", R"(["a"])",
                            R"([["a", null]])", R"([["a", 1e300]])", R"([["a", [1]]])", R"([{"a": 1}])", R"([["a", {}]])"}) {
    json bad = good;
    bad["model"]["vocab"] = json::parse(vocab);
    EXPECT_FALSE(FromJson(bad).ok()) << vocab;
  }
  json bad = good;
  bad["model"]["unk_id"] = 3;
  EXPECT_FALSE(FromJson(bad).ok());
  bad = good;
  bad["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "!!!"}};
  EXPECT_FALSE(FromJson(bad).ok());
}

TEST(Normalizer, StripAndSpaceRuns) {
  Normalizer normalizer;
  normalizer.AddStrip(true, true);
  normalizer.AddSpaceRuns("_");
  std::string storage;
  EXPECT_EQ(normalizer.Apply("\u3000 a  b   c d\t\n", &storage, nullptr), "a_b_c d");
  EXPECT_EQ(normalizer.Apply("a b", &storage, nullptr), "a b");
  EXPECT_EQ(normalizer.Apply(" \t ", &storage, nullptr), "");
  TextOrigin origin;
  EXPECT_EQ(normalizer.Apply("  x  y", &storage, &origin), "x_y");
  EXPECT_EQ(origin, (TextOrigin{2, 3, 5, 6}));
}

}  // namespace
}  // namespace cachalot
