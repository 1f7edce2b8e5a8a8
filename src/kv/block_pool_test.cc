#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace cachalot {
namespace {

TEST(BlockPool, GivesEveryBlockOnceAndInOrder) {
  BlockPool pool(3);
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_EQ(pool.Allocate(), 2);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_used(), 3);
  pool.Unref(1, 0);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.Allocate(), 1);
}

TEST(BlockPool, FreesWithTheLastReference) {
  BlockPool pool(2);
  const int32_t block = pool.Allocate();
  pool.Ref(block);
  pool.Unref(block, 0);
  EXPECT_EQ(pool.refcount(block), 1);
  EXPECT_EQ(pool.num_used(), 1);
  pool.Unref(block, 0);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPool, WaitsForTheNewestStepOfAllHolders) {
  BlockPool pool(1);
  const int32_t block = pool.Allocate();
  pool.Ref(block);
  pool.Unref(block, 5);
  pool.Unref(block, 3);  // the last to let go is not the last to touch
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_pending(), 1);
  EXPECT_EQ(pool.num_used(), 0);
  pool.Release(4);
  EXPECT_EQ(pool.num_free(), 0);
  pool.Release(5);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_pending(), 0);
  // A new life starts without the memory of the old one.
  pool.Unref(pool.Allocate(), 5);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPoolDeathTest, ProgrammerErrorsDie) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  BlockPool pool(1);
  const int32_t block = pool.Allocate();
  EXPECT_DEATH((void)pool.Allocate(), "without a free block");
  pool.Unref(block, 0);
  EXPECT_DEATH(pool.Unref(block, 0), "double free of block 0");
  EXPECT_DEATH(pool.Ref(block), "nobody holds");
  EXPECT_DEATH(pool.Unref(7, 0), "double free of block 7");
}

}  // namespace
}  // namespace cachalot
