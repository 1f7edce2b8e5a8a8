// Megabytes of the nastiest texts. Nothing is timed: a step that grew with the square of the text would take so long that the
// test run's own time limit ends it.
#include <gtest/gtest.h>

#include "tokenizer/tokenizer_testing.h"

namespace cachalot {
namespace {

#ifdef CACHALOT_SANITIZED
constexpr size_t kBytes = 60'000;
#else
constexpr size_t kBytes = 200'000;
#endif
constexpr size_t kManyBytes = 5 * kBytes;

std::string Repeat(std::string_view part, size_t bytes = kBytes) {
  std::string text;
  while (text.size() < bytes) text += part;
  return text;
}

class SpeedTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Vocabularies, SpeedTest,
                         testing::Values("gpt2", "smollm2", "llama3", "qwen3", "deepseek_llm",
                                         "deepseek_coder", "deepseek_v3"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(SpeedTest, LongRuns) {
  const TokenizerResult tokenizer = FromJson(TestData(std::string("vocab_") + GetParam() + "_slim"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  std::vector<std::string> texts;
  for (const char* part :
       {"a", "ab", " ", "\n",     "\t",   "\r\n",       " \n",     "\u00a0",  "1",
        "!", "'",  "<", "<|",     "<｜",  "<|im_end|>", "é",       "e\u0301", "\u0315\u0300",
        "ü", "中", "😀", "\u200d", "\xFF", "\xC3",       "\xF0\x9F"}) {
    texts.push_back(Repeat(part) + "x");
  }
  texts.push_back(Repeat(" ", kManyBytes));
  texts.push_back(Repeat("a", kManyBytes));
  texts.emplace_back(kBytes, '\0');
  std::string word;
  for (uint32_t x = 1; word.size() < kBytes; x = x * 1664525 + 1013904223)
    word += static_cast<char>('a' + (x >> 24) % 26);
  texts.push_back(word);
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = Ids(**tokenizer, text);
    EXPECT_FALSE(ids.empty());
    EXPECT_FALSE((*tokenizer)->Decode(ids, false).empty());
  }
}

TEST(Speed, ManyUserRanges) {
  const TokenizerResult tokenizer = FromJson(TestData("vocab_qwen3_slim"));
  ASSERT_TRUE(tokenizer.ok());
  const std::string text = Repeat("<|im_end|>");
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (size_t i = 0; i + 20 <= text.size(); i += 20) ranges.emplace_back(i, i + 10);
  const std::vector<int32_t> ids = Ids(**tokenizer, text, {.user_ranges = ranges});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), (*tokenizer)->FindToken("<|im_end|>")),
            static_cast<int64_t>(ranges.size()));
}

TEST(Speed, TextOfManyBytesIsRefused) {
  const TokenizerResult tokenizer = FromJson(ByteLevelJson({}));
  ASSERT_TRUE(tokenizer.ok());
  const char byte = 'a';
  // Not read: the size alone is too much.
  EXPECT_EQ((*tokenizer)->Encode(std::string_view(&byte, size_t{1} << 40)).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot
