#include "server/api/think_splitter.h"

#include <gtest/gtest.h>

#include <vector>

namespace cachalot {
namespace {

ThinkSplitter::Parts Split(const std::vector<std::string>& pieces, bool inside = false) {
  ThinkSplitter splitter(inside);
  ThinkSplitter::Parts all;
  for (const auto& piece : pieces) {
    const auto parts = splitter.Push(piece);
    all.reasoning += parts.reasoning;
    all.content += parts.content;
  }
  const auto parts = splitter.Finish();
  all.reasoning += parts.reasoning;
  all.content += parts.content;
  return all;
}

struct Case {
  std::string text;
  bool inside;
  std::string reasoning;
  std::string content;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"<think>\nwhy\n</think>\n\nbecause", false, "why", "because"},
      {"  \n<think>why</think>because", false, "why", "because"},
      {"\n\nwhy </think>  because <think>x</think>", true, "why", "because <think>x</think>"},
      {"no tags", false, "", "no tags"},
      {"  a <think>x</think>", false, "", "  a <think>x</think>"},
      {"<think>cut off", false, "cut off", ""},
      {"<think>a < b </thin", false, "a < b </thin", ""},
      {"</think>x", true, "", "x"},
      {"<think></think>", false, "", ""},
      {"<thin", false, "", "<thin"},
      {"", true, "", ""},
      {"ü</think>ö", true, "ü", "ö"},
  };
  return cases;
}

TEST(ThinkSplitter, EverySplitGivesTheSame) {
  for (const auto& c : Cases()) {
    for (size_t i = 0; i <= c.text.size(); ++i) {
      for (size_t j = i; j <= c.text.size(); ++j) {
        const auto parts = Split({c.text.substr(0, i), c.text.substr(i, j - i), c.text.substr(j)}, c.inside);
        ASSERT_EQ(parts.reasoning, c.reasoning) << c.text << " cut at " << i << " and " << j;
        ASSERT_EQ(parts.content, c.content) << c.text << " cut at " << i << " and " << j;
      }
    }
  }
}

TEST(ThinkSplitter, OffLeavesEverything) {
  ThinkSplitter splitter(true, true);
  EXPECT_EQ(splitter.Push("<think>a</think>").content, "<think>a</think>");
}

}  // namespace
}  // namespace cachalot
