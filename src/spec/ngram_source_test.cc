#include "spec/ngram_source.h"

#include <gtest/gtest.h>

#include <vector>

namespace cachalot {
namespace {

std::vector<int32_t> Propose(const std::vector<int32_t>& tokens, size_t most) {
  std::vector<int32_t> out(most, -1);
  const int32_t count = NgramSource().Propose(tokens, out);
  out.resize(static_cast<size_t>(count));
  return out;
}

using Ids = std::vector<int32_t>;

TEST(NgramSource, WhatFollowedTheLongestMatch) {
  EXPECT_EQ(Propose({1, 2, 3, 4, 5, 1, 2}, 3), (Ids{3, 4, 5}));
  // "2 3" stands twice: the longer "1 2 3" wins although it is older.
  EXPECT_EQ(Propose({1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3}, 1), (Ids{7}));
  // Of equal ones, the latest.
  EXPECT_EQ(Propose({2, 3, 7, 5, 2, 3, 8, 9, 2, 3}, 2), (Ids{8, 9}));
}

TEST(NgramSource, NothingWithoutTwoTokensInCommon) {
  EXPECT_EQ(Propose({}, 4), Ids{});
  EXPECT_EQ(Propose({1}, 4), Ids{});
  EXPECT_EQ(Propose({1, 1}, 4), Ids{});
  EXPECT_EQ(Propose({1, 2, 3, 2}, 4), Ids{}) << "one token is chance";
  EXPECT_EQ(Propose({1, 2, 3, 1, 2}, 0), Ids{});
}

TEST(NgramSource, ALoopGoesOn) {
  EXPECT_EQ(Propose({1, 2, 1, 2, 1, 2}, 5), (Ids{1, 2, 1, 2, 1}));
  EXPECT_EQ(Propose({7, 7, 7}, 3), (Ids{7, 7, 7}));
  EXPECT_EQ(Propose({4, 5, 6, 4, 5}, 5), (Ids{6, 4, 5, 6, 4}));
}

TEST(NgramSource, LooksBackOnlySoFar) {
  Ids tokens = {1, 2, 3};
  for (int32_t i = 0; i < NgramSource::kMaxLookBack; ++i) tokens.push_back(10 + i);
  tokens.insert(tokens.end(), {1, 2});
  EXPECT_EQ(Propose(tokens, 1), Ids{});
}

}  // namespace
}  // namespace cachalot
