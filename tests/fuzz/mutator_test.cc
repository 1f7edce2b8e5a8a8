#include "fuzz/mutator.h"

#include <gtest/gtest.h>

#include <set>

namespace cachalot::fuzz {
namespace {

TEST(Mutator, TheSameSeedNumberGivesTheSameInputs) {
  const std::vector<std::string> seeds = {"GGUF\x03", R"({"a": [1, 2.5, null]})", ""};
  Mutator a(seeds, 7, 1000);
  Mutator b(seeds, 7, 1000);
  Mutator c(seeds, 8, 1000);
  int different = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string input = a.Next();
    EXPECT_EQ(input, b.Next());
    different += input != c.Next();
  }
  EXPECT_GT(different, 900);
}

TEST(Mutator, KeepsTheBoundAndFindsVariety) {
  Mutator mutator({R"({"hidden_size": 4096, "list": [1, 2, 3]})"}, 1, 200);
  std::set<std::string> seen;
  bool longest = false;
  for (int i = 0; i < 5000; ++i) {
    const std::string input = mutator.Next();
    ASSERT_LE(input.size(), 200u);
    longest |= input.size() == 200;
    seen.insert(input);
  }
  EXPECT_GT(seen.size(), 4000u);
  EXPECT_TRUE(longest);
}

TEST(Mutator, WorksWithoutSeeds) {
  Mutator mutator({}, 1, 16);
  for (int i = 0; i < 100; ++i) EXPECT_LE(mutator.Next().size(), 16u);
}

}  // namespace
}  // namespace cachalot::fuzz
