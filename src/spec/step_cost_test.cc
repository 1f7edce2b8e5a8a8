#include "spec/step_cost.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

TEST(StepCost, GoesOnBeyondWhatItKnows) {
  StepCost cost(/*goes_on=*/true);
  cost.Observe(32, 360);
  EXPECT_EQ(cost.Estimate(64), 360);
  cost.Observe(64, 480);
  EXPECT_NEAR(cost.Estimate(96), 600, 1);
  EXPECT_NEAR(cost.Estimate(48), 420, 1);
  cost.Observe(128, 400);
  EXPECT_EQ(cost.Estimate(512), 400) << "no faster than what is smaller";
}

// A short context after a long one: the same sizes, all of them faster by what the first that is known tells.
TEST(StepCost, OtherContextsAreAnotherLevel) {
  StepCost cost;
  for (int i = 0; i < 3; ++i) cost.Observe(1, 100, 10 + i), cost.Observe(2, 150, 10 + i);
  for (int i = 0; i < 300; ++i) cost.Observe(1, 100 + i, 13 + i);
  EXPECT_NEAR(cost.Estimate(2), 1.5 * cost.Estimate(1), 5);
  EXPECT_NEAR(cost.Estimate(1), 400, 15);
  EXPECT_FALSE(cost.Observe(3, 200, 1)) << "of contexts that nothing is known of yet";
  EXPECT_TRUE(cost.moved());
  EXPECT_TRUE(cost.Observe(2, 150, 2)) << "they are others still";
  EXPECT_TRUE(cost.moved());
  EXPECT_NEAR(cost.Estimate(1), 100, 3);
  EXPECT_NEAR(cost.Estimate(2), 150, 3);
}

TEST(StepCost, LearnsAndForgets) {
  StepCost cost;
  EXPECT_EQ(cost.Estimate(5), 0);
  cost.Observe(4, 100);
  EXPECT_EQ(cost.Estimate(1), 100);
  EXPECT_EQ(cost.Estimate(400), 100) << "not known, so as cheap as it may be";
  cost.Observe(8, 200);
  EXPECT_EQ(cost.Estimate(6), 150);
  EXPECT_EQ(cost.Estimate(8), 200);
  EXPECT_EQ(cost.count(8), 1);
  for (int i = 0; i < 2100; ++i) cost.Observe(4, 110);
  EXPECT_EQ(cost.count(8), 0);
  EXPECT_NEAR(cost.Estimate(8), 110, 1);
  cost.Observe(4, 1e9);
  EXPECT_LT(cost.Estimate(4), 150) << "one outlier";
}

}  // namespace
}  // namespace cachalot
