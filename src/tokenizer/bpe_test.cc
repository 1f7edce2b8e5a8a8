#include "tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace cachalot {
namespace {

using testing::ElementsAre;

// The definition: merge the pair of lowest rank, the leftmost of those, until none is left.
std::vector<std::string> NaiveBpe(std::string_view text,
                                  const std::map<std::pair<std::string, std::string>, int>& ranks) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  while (true) {
    int best_rank = INT32_MAX;
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find({parts[i], parts[i + 1]});
      if (it != ranks.end() && it->second < best_rank) {
        best_rank = it->second;
        best = i;
      }
    }
    if (best_rank == INT32_MAX) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(best) + 1);
  }
}

// Random vocabularies over few letters, so that pairs overlap and tie in every way; lengths around the switch
// from the scan to the heap.
TEST(Bpe, EqualsTheDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    Vocab vocab;
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::map<std::pair<std::string, std::string>, int> ranks;
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(vocab.Set(i, tokens[static_cast<size_t>(i)]).ok());
    std::vector<std::pair<std::string, std::string>> merges;
    const size_t num_merges = 1 + random() % 25;
    while (merges.size() < num_merges) {
      const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 12 ||
          !ranks.try_emplace({left, right}, static_cast<int>(merges.size())).second)
        continue;
      merges.emplace_back(left, right);
      if (vocab.Find(left + right) >= 0) continue;
      ASSERT_TRUE(vocab.Set(vocab.size(), left + right).ok());
      tokens.push_back(left + right);
    }
    BpeModel model(&vocab, std::vector<bool>(static_cast<size_t>(vocab.size()), true), {});
    for (const auto& [left, right] : merges) ASSERT_TRUE(model.AddMerge(left, right));
    EXPECT_EQ(model.num_merges(), static_cast<int64_t>(merges.size()));
    PieceScratch scratch;
    for (const size_t length : {0, 1, 2, 3, 5, 8, 17, 31, 32, 33, 34, 63, 64, 100, 257}) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += "aaabbc"[random() % 6];
      std::vector<int32_t> ids;
      model.Encode(text, &scratch, &ids);
      std::vector<std::string> parts;
      for (const int32_t id : ids) parts.emplace_back(vocab.Text(id));
      EXPECT_EQ(parts, NaiveBpe(text, ranks)) << text;
    }
  }
}

TEST(Bpe, TakesOnlyTokensOfTheModel) {
  Vocab vocab;
  for (const char* text : {"a", "b", "c", "ab", "bc", "abc"}) ASSERT_TRUE(vocab.Set(vocab.size(), text).ok());
  std::vector<bool> ordinary(6, true);
  ordinary[5] = false;
  BpeModel model(&vocab, ordinary, {.ignore_merges = true});
  EXPECT_TRUE(model.AddMerge("a", "b"));
  EXPECT_FALSE(model.AddMerge("ab", "c"));  // the result is none
  EXPECT_FALSE(model.AddMerge("a", "z"));
  EXPECT_FALSE(model.AddMerge("", "a"));
  PieceScratch scratch;
  std::vector<int32_t> ids;
  model.Encode("abc", &scratch, &ids);
  EXPECT_THAT(ids, ElementsAre(3, 2));
  ids.clear();
  model.Encode("bc", &scratch, &ids);  // no merge makes it, but it is a token
  EXPECT_THAT(ids, ElementsAre(4));
}

TEST(Vocab, FindsEverythingAndRefusesGaps) {
  Vocab vocab;
  vocab.Reserve(3, 10);
  for (int32_t id = 0; id < 5000; ++id) ASSERT_TRUE(vocab.Set(id, fmt::format("t{}", id)).ok());
  for (int32_t id = 0; id < 5000; ++id) EXPECT_EQ(vocab.Find(fmt::format("t{}", id)), id);
  EXPECT_EQ(vocab.Find("t5000"), -1);
  EXPECT_EQ(vocab.Find(""), -1);
  EXPECT_TRUE(vocab.Set(6000, "t7").ok());  // a text twice: found is the first
  EXPECT_EQ(vocab.Find("t7"), 7);
  EXPECT_EQ(vocab.Text(6000), "t7");
  EXPECT_FALSE(vocab.IsDefined(5500));
  EXPECT_EQ(vocab.Text(5500), "");
  EXPECT_EQ(vocab.Text(-1), "");
  EXPECT_EQ(vocab.Text(int64_t{1} << 40), "");
  EXPECT_FALSE(vocab.Set(-1, "x").ok());
  EXPECT_FALSE(vocab.Set(7, "x").ok());
  EXPECT_FALSE(vocab.Set(int64_t{1} << 23, "x").ok());
  EXPECT_FALSE(vocab.Set(INT64_MAX, "x").ok());
}

}  // namespace
}  // namespace cachalot
