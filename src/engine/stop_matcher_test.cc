#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace cachalot {
namespace {

// The definition: the match that ends first, of those the longest; the text before it.
std::pair<std::string, bool> Naive(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// Pushes `text` in the pieces that the bits of `cuts` say. Also checks that nothing came out that had to be
// held back.
std::pair<std::string, bool> PushPieces(const std::vector<std::string>& stops, const std::string& text,
                                        uint64_t cuts) {
  StopMatcher matcher(stops);
  const std::string decided = Naive(stops, text).first;
  std::string out, piece;
  for (size_t i = 0; i < text.size(); ++i) {
    piece += text[i];
    if (i + 1 < text.size() && !(cuts >> i & 1)) continue;
    const bool stopped = matcher.Push(piece, &out);
    EXPECT_EQ(out, decided.substr(0, out.size())) << "a part of a match came out";
    if (stopped) return {out, true};
    piece.clear();
  }
  matcher.Finish(&out);
  return {out, false};
}

TEST(StopMatcher, EverySplit) {
  const std::vector<std::vector<std::string>> stop_sets = {
      {"\n\n"},       {"END"},        {"abab"}, {"aab", "ab"},
      {"abcd", "bc"}, {"bc", "abcd"}, {"a"},    {"xyz", "</s>", "User:"},
      {"aaa"}};
  for (const auto& stops : stop_sets) {
    for (const std::string text : {"", "a", "abcd", "xabababa", "aaabaab", "12\n\n34", "12\n34\n",
                                   "the ENEND", "EN", "abc", "a</s", "U User", "User: x", "aabbaa"}) {
      const auto want = Naive(stops, text);
      for (uint64_t cuts = 0; cuts < (uint64_t{1} << text.size()); ++cuts) {
        ASSERT_EQ(PushPieces(stops, text, cuts), want)
            << "stop " << stops[0] << ", text " << text << ", cuts " << cuts;
      }
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayMatch) {
  StopMatcher matcher({"</end>"});
  std::string out;
  EXPECT_FALSE(matcher.Push("text <", &out));
  EXPECT_EQ(out, "text ");
  EXPECT_FALSE(matcher.Push("/e", &out));
  EXPECT_EQ(out, "text ");
  EXPECT_FALSE(matcher.Push("m> </", &out));
  EXPECT_EQ(out, "text </em> ");
  EXPECT_TRUE(matcher.Push("end> more", &out));
  EXPECT_EQ(out, "text </em> ");
}

TEST(StopMatcher, WithoutStopStringsTextPasses) {
  StopMatcher matcher({});
  std::string out;
  EXPECT_FALSE(matcher.Push("abc", &out));
  matcher.Finish(&out);
  EXPECT_EQ(out, "abc");
}

TEST(StopMatcher, RandomTextsAndSplits) {
  std::mt19937_64 rng(7);
  const auto random = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
  const auto word = [&](int low, int high) {
    std::string s;
    for (int n = random(low, high); n > 0; --n) s += static_cast<char>('a' + random(0, 1));
    return s;
  };
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (int n = random(1, 4); n > 0; --n) stops.push_back(word(2, 9));
    const std::string text = word(0, 40);
    const auto want = Naive(stops, text);
    ASSERT_EQ(PushPieces(stops, text, rng()), want) << "round " << round;
    stopped += want.second;
  }
  EXPECT_GT(stopped, 5000);
  EXPECT_LT(stopped, 19000);
}

TEST(StopMatcher, MayEndBehindTheMatch) {
  for (size_t cut = 0; cut <= 7; ++cut) {
    StopMatcher matcher({"cd", "d"}, /*with_match=*/true);
    const std::string text = "abcdefg";
    std::string out;
    const bool first = matcher.Push(text.substr(0, cut), &out);
    EXPECT_EQ(first || matcher.Push(text.substr(cut), &out), true);
    EXPECT_EQ(out, "abcd") << cut;
  }
}

}  // namespace
}  // namespace cachalot
