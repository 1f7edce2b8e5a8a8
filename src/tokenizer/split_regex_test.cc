#include "tokenizer/split_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/pre_tokenizer_table.h"
#include "tokenizer/regex_syntax.h"

namespace cachalot {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The matches of a pattern in a text.
std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  std::vector<std::string> found;
  const auto regex = SplitRegex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().ToString();
  RegexScratch scratch;
  size_t from = 0;
  while (regex.ok() && from <= text.size()) {
    SplitRegex::Match match;
    EXPECT_TRUE(regex->Find(text, from, &scratch, &match).ok());
    if (!match.found) break;
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
    from = match.end + (match.end == match.begin ? 1 : 0);
  }
  return found;
}

TEST(SplitRegex, MeansWhatOnigurumaMeans) {
  // U+180E is no white space any more.
  EXPECT_THAT(Matches("\\s", "a\u180e\u0085\u3000b"), ElementsAre("\u0085", "\u3000"));
  EXPECT_THAT(Matches("[^\\s]", "a\u180e\u2028"), ElementsAre("a", "\u180e"));
  // A mark and a connector are of a word, digits of any script are digits.
  EXPECT_THAT(Matches("\\w+", "e\u0301_٣ ½"), ElementsAre("e\u0301_٣"));
  EXPECT_THAT(Matches("\\W", "a½"), ElementsAre("½"));
  EXPECT_THAT(Matches("\\d", "1٣½"), ElementsAre("1", "٣"));
  EXPECT_THAT(Matches("\\h+\\H", "fFg"), ElementsAre("fFg"));
  // ^ and $ are at every line; a dot is anything but a newline.
  EXPECT_THAT(Matches("^.$", "a\nb\rc\nd"), ElementsAre("a", "d"));
  EXPECT_THAT(Matches("(?m:.)", "\n"), ElementsAre("\n"));
  EXPECT_THAT(Matches("\\s+$", "  a \n b  "), ElementsAre(" ", "  "));
  EXPECT_THAT(Matches("\\s+$", " \n \n x"), ElementsAre(" \n "));
  // The script, not what may occur in it.
  EXPECT_THAT(Matches("\\p{Han}", "中、ー"), ElementsAre("中"));
  EXPECT_THAT(Matches("\\p{^L}|\\P{N}b", "a1b"), ElementsAre("1"));
  EXPECT_THAT(Matches("(?i:'s|k)", "'ſ \u212a"), ElementsAre("'ſ", "\u212a"));
  EXPECT_THAT(Matches("(?i)A|B", "aAbB"), ElementsAre("a", "A", "b", "B"));
  EXPECT_THAT(Matches("a{,2}b", "aab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("a{b", "a{b"), ElementsAre("a{b"));
  EXPECT_THAT(Matches("\\x41\\x{e9}\\u4E2D\\v", "Aé中\v"), ElementsAre("Aé中\v"));
  EXPECT_THAT(Matches("\\é[\\é]", "éé"), ElementsAre("éé"));
  EXPECT_THAT(Matches("a++b|a?+c", "aab"), ElementsAre("aab"));
}

TEST(SplitRegex, RefusesWhatWouldMeanSomethingElse) {
  const std::string deep(40, '(');
  for (const std::string_view pattern :
       {"(*UTF)a",     "(?R)",    "(?1)",   "(a)\\1",  "(?<n>a)",   "(?C1)", "(?(1)a)",
        "a(?i)b",      "[[a]b]",  "[a&&b]", "[]a]",    "[:alpha:",  "\\b",   "\\B",
        "\\R",         "\\X",     "\\K",    "\\G",     "\\C",       "[\\W]", "\\p{Letter}",
        "\\p{Foo}",    "\\pL",    "a{2}+",  "a{1,2}+", "a{2}?",     "\\xe9", "\\u12",
        "\\x{110000}", "\\ud800", "\\",     "[a",      deep.c_str()}) {
    const auto result = TranslateRegex(pattern);
    ASSERT_FALSE(result.ok()) << pattern;
    EXPECT_EQ(result.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(result.status().message(), HasSubstr("at byte"));
  }
  EXPECT_EQ(TranslateRegex(std::string(20000, 'a')).status().code(), StatusCode::kUnsupported);
  for (const char* pattern : {"(a", "a)", "*", "(?<=a+)b", "[b-a]", "a{3,1}", "a{99999}"}) {
    EXPECT_EQ(SplitRegex::Compile(pattern).status().code(), StatusCode::kInvalidArgument) << pattern;
  }
}

TEST(SplitRegex, BoundsBacktracking) {
  const auto regex = SplitRegex::Compile("(?:a|a)*(?:a|a)*(?:a|a)*b");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  SplitRegex::Match match;
  const Status status = regex->Find(std::string(5000, 'a') + "cb", 0, &scratch, &match);
  EXPECT_EQ(status.code(), StatusCode::kExhausted) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("regular expression"));
}

TEST(PreTokenizerTable, EveryRowWorks) {
  for (const char* name :
       {"gpt-2", "smollm", "starcoder", "llama-bpe", "llama3", "qwen2", "deepseek-r1-qwen", "deepseek-llm",
        "deepseek-coder", "deepseek-v3", "joyai-llm", "default", "stablelm2"}) {
    const auto row = FindGgufPreTokenizer(name);
    ASSERT_TRUE(row.ok()) << name;
    PreTokenizer pre_tokenizer;
    for (const std::string_view split : (*row)->splits) {
      const Status status = pre_tokenizer.AddRegex(split, SplitBehavior::kIsolated);
      EXPECT_TRUE(status.ok()) << name << status.ToString();
    }
  }
  EXPECT_FALSE(FindGgufPreTokenizer("").ok());
  EXPECT_FALSE(FindGgufPreTokenizer("gpt-2 phi-2").ok());
}

TEST(PreTokenizer, DeepSeekLlmCutsWordsAtAccents) {
  PreTokenizer pre_tokenizer;
  for (const std::string_view split : (*FindGgufPreTokenizer("deepseek-llm"))->splits) {
    ASSERT_TRUE(pre_tokenizer.AddRegex(split, SplitBehavior::kIsolated).ok());
  }
  RegexScratch scratch;
  std::vector<TextPiece> pieces;
  const std::string_view text = " café Zürich";
  ASSERT_TRUE(pre_tokenizer.Split(text, &scratch, &pieces).ok());
  std::vector<std::string> cut;
  for (const TextPiece& piece : pieces) cut.emplace_back(text.substr(piece.begin, piece.end - piece.begin));
  EXPECT_THAT(cut, ElementsAre(" caf", "é", " Z", "ü", "rich"));
}

}  // namespace
}  // namespace cachalot
