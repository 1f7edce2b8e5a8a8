#include "engine/reasoning_guide.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

TEST(ReasoningGuide, CountsWhatIsBetweenTheTags) {
  ReasoningGuide opened(ReasoningLimits{.inside = true, .close_ids = {}, .then_ids = {}});
  for (const char* text : {"a", "b", "", "c</", "thi", "nk>", "d", "e"}) opened.Push(text);
  EXPECT_EQ(opened.num_reasoning_tokens(), 3);
  EXPECT_TRUE(opened.forced().empty());

  ReasoningGuide own(ReasoningLimits{});
  for (const char* text : {"\n", "<th", "ink>", "a", "</x", "b", "</think>", "c"}) own.Push(text);
  EXPECT_EQ(own.num_reasoning_tokens(), 3);

  ReasoningGuide none(ReasoningLimits{});
  for (const char* text : {"x", "<think>", "a", "</think>"}) none.Push(text);
  EXPECT_EQ(none.num_reasoning_tokens(), 0);
}

TEST(ReasoningGuide, TheBudgetEndsIt) {
  ReasoningGuide guide(ReasoningLimits{.inside = true, .budget = 2, .close_ids = {7, 8}, .then_ids = {9}});
  guide.Push("a");
  EXPECT_TRUE(guide.forced().empty());
  guide.Push("b");
  ASSERT_EQ(guide.forced().size(), 2u);
  guide.BeginForced();
  guide.Push("\n");
  guide.Push("</think>");
  EXPECT_EQ(guide.num_reasoning_tokens(), 2);
  ASSERT_EQ(guide.forced().size(), 1u);
  EXPECT_EQ(guide.forced()[0], 9);
  guide.BeginForced();
  guide.Push("x");
  EXPECT_TRUE(guide.forced().empty());
}

TEST(ReasoningGuide, NothingIsLeftOfABudgetOfZero) {
  const ReasoningGuide inside(ReasoningLimits{.inside = true, .budget = 0, .close_ids = {7}, .then_ids = {}});
  EXPECT_EQ(inside.forced().size(), 1u);
  ReasoningGuide own(ReasoningLimits{.budget = 0, .close_ids = {7}, .then_ids = {}});
  EXPECT_TRUE(own.forced().empty());
  own.Push("<think>");
  EXPECT_EQ(own.forced().size(), 1u);
}

TEST(ReasoningGuide, WhatFollowsIsForcedOnce) {
  ReasoningGuide guide(ReasoningLimits{.inside = true, .budget = 100, .close_ids = {7}, .then_ids = {9}});
  guide.Push("a </think>");
  ASSERT_EQ(guide.forced().size(), 1u);
  EXPECT_EQ(guide.forced()[0], 9);
  guide.BeginForced();
  guide.Push("<tool_call>");
  EXPECT_TRUE(guide.forced().empty());
}

}  // namespace
}  // namespace cachalot
