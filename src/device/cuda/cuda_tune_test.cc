#include "device/cuda/cuda_tune.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

TEST(CudaTune, ReadsWhatItKnows) {
  CudaTune tune;
  ASSERT_TRUE(ParseCudaTune("late=norm+rope,gemv_dense_k=14336,gemv_rows=8", &tune));
  EXPECT_EQ(tune.late, 4u + 16u);
  EXPECT_EQ(tune.gemv_dense_k, 14336);
  EXPECT_EQ(tune.gemv_rows, 8);
  EXPECT_EQ(tune.gemv_pairs, 0);
  EXPECT_EQ(tune.gemv_alone, CudaTune::Alone::kAll);
  EXPECT_EQ(tune.fuse, ~0u);
  ASSERT_TRUE(ParseCudaTune("fuse=none", &tune));
  EXPECT_EQ(tune.fuse, 0u);
  ASSERT_TRUE(ParseCudaTune("fuse=norm+gate,gemv_alone=none", &tune));
  EXPECT_EQ(tune.fuse, CudaTune::kFuseNorm | CudaTune::kFuseGate);
  EXPECT_FALSE(ParseCudaTune("fuse=norm+", &tune));
  EXPECT_FALSE(ParseCudaTune("fuse=", &tune));
  ASSERT_TRUE(ParseCudaTune("gemv_alone=none", &tune));
  EXPECT_EQ(tune.gemv_alone, CudaTune::Alone::kNone);
  ASSERT_TRUE(ParseCudaTune("attention=stream", &tune));
  EXPECT_EQ(tune.attention, CudaTune::Attention::kStream);
  ASSERT_TRUE(ParseCudaTune("attention=rounds", &tune));
  EXPECT_EQ(tune.attention, CudaTune::Attention::kRounds);
  ASSERT_TRUE(ParseCudaTune("mla=stream", &tune));
  EXPECT_EQ(tune.mla, CudaTune::Mla::kStream);
  ASSERT_TRUE(ParseCudaTune("mla=rounds", &tune));
  EXPECT_EQ(tune.mla, CudaTune::Mla::kRounds);
  ASSERT_TRUE(ParseCudaTune("experts=two,prefill=mma", &tune));
  EXPECT_EQ(tune.experts, CudaTune::Experts::kTwo);
  EXPECT_EQ(tune.prefill, CudaTune::Prefill::kMma);
  ASSERT_TRUE(ParseCudaTune("prefill=wgmma", &tune));
  EXPECT_EQ(tune.prefill, CudaTune::Prefill::kWgmma);
  EXPECT_EQ(tune.experts, CudaTune::Experts::kUsual);
  ASSERT_TRUE(ParseCudaTune("chain=none", &tune));
  EXPECT_EQ(tune.chain, CudaTune::Chain::kNone);
  EXPECT_FALSE(ParseCudaTune("chain=", &tune));
  ASSERT_TRUE(ParseCudaTune("experts=one", &tune));
  EXPECT_EQ(tune.prefill, CudaTune::Prefill::kWgmma);
  EXPECT_EQ(tune.experts, CudaTune::Experts::kOne);
  ASSERT_TRUE(ParseCudaTune("experts=apart", &tune));
  EXPECT_EQ(tune.experts, CudaTune::Experts::kApart);
  // Each text starts from the defaults.
  ASSERT_TRUE(ParseCudaTune("late=all", &tune));
  EXPECT_EQ(tune.gemv_dense_k, 0);
  ASSERT_TRUE(ParseCudaTune("-", &tune));
  EXPECT_EQ(tune.late, 0u);
  EXPECT_TRUE(ParseCudaTune("", &tune));
}

TEST(CudaTune, RefusesTheRestAndLeavesAllAsItWas) {
  CudaTune tune;
  ASSERT_TRUE(ParseCudaTune("gemv_pairs=7", &tune));
  for (const char* text : {"late", "late=", "late=some", "late=norm+", "late=+norm", "gemv_alone=1", "carveout=own", "attention=usual", "mla=usual", "experts=three", "few=fp8", "prefill=", "gemv_rows=9", "gemv_rows=0", "gemv_pairs=-1",
                           "gemv_pairs=1234567", "gemv_pairs=", "speed=2", "=", ",", "gemv_pairs=3,"}) {
    const bool trailing = std::string_view(text) == "gemv_pairs=3,";
    EXPECT_EQ(ParseCudaTune(text, &tune), trailing) << text;
    EXPECT_EQ(tune.gemv_pairs, trailing ? 3 : 7) << text;
  }
}

}  // namespace
}  // namespace cachalot
