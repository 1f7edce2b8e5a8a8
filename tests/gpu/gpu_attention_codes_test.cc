// Attention over quantised caches: many lengths, values of any size, queries that are no numbers.
#include "gpu_attention_testing.h"

namespace cachalot {
namespace {

// The kernels over codes where one block attends a sequence alone, where many share it, and drafts of several tiles.
class GpuCodes : public GpuTest, public testing::WithParamInterface<size_t> {};

TEST_P(GpuCodes, OfManyLengths) {
  const KvScheme& scheme = KvFormats()[GetParam()].scheme;
  std::vector<Part> many;
  TestRng rng(7);
  for (int64_t i = 0; i < 70; ++i) many.push_back({static_cast<int32_t>(rng.Int(0, 2)), static_cast<int32_t>(rng.Int(2, 300)), i});
  many.push_back({1, 5000, 100});
  const std::vector<std::vector<Part>> batches = {
      {{1, 9000, 1}}, {{1, 4097, 1}, {1, 4096, 2}}, {{4, 5000, 1}, {0, 0, 2}, {1, 17, 3}, {3, 64, 4}, {1, 1, 5}, {2, 4097, 6}}, many,
      {{9, 1000, 1}, {1, 70, 2}}, {{40, 2100, 1}, {1, 3000, 2}}};
  for (const Shape& s : {Shape{{DType::kF32, 4, 128, 128, 16, false, 0, scheme, 0, true}, 16},
                         Shape{{DType::kF32, 2, 128, 128, 64, false, 0, scheme}, 8, 200},
                         Shape{{DType::kF32, 3, 64, 64, 16, false, 0, scheme}, 9},
                         Shape{{DType::kF32, 1, 64, 64, 32, false, 0, scheme}, 16, 3000},
                         Shape{{DType::kF32, 4, 128, 128, 16, false, 0, scheme, 0, true, 16}, 16},
                         Shape{{DType::kF32, 2, 64, 64, 32, false, 0, scheme, 0, false, 96}, 8},
                         Shape{{DType::kF32, 1, 576, 512, 16, true, 0, scheme, 64, true}, 16},
                         Shape{{DType::kF32, 1, 576, 512, 64, true, 8, scheme, 64}, 5, 300}}) {
    for (size_t b = 0; b < batches.size(); ++b) {
      if (!Chosen(WorkOf(s, batches[b]))) continue;
      SCOPED_TRACE(fmt::format("{} batch {}", Name(s), b));
      const Step step(s, batches[b]), moved(s, batches[b], 99);
      const std::vector<float> want = RunCpu(step);
      std::vector<const char*> kernels = {""};
      if (s.kv.value_in_key) kernels = {"", "mla=rounds"};
      for (const char* kernel : kernels) {
        SCOPED_TRACE(kernel);
        GPU_OK(Backend().set_tune(kernel));
        const std::vector<float> got = RunGpu(step, {});
        ExpectCloseToReference(step, {}, got, want);
        EXPECT_EQ(FirstBitDifference(RunGpu(step, {}), got), "") << "second run";
        EXPECT_EQ(FirstBitDifference(RunGpu(moved, {}), got), "") << "other blocks";
      }
    }
  }
  GPU_OK(Backend().set_tune(""));
}
INSTANTIATE_TEST_SUITE_P(All, GpuCodes, testing::Range<size_t>(0, KvFormats().size()),
                         [](const auto& test) { return std::string(KvFormats()[test.param].name); });

// Values and keys of any size: what is a scale in the cache must not leave F16's range on the way; and tokens of very different sizes.
TEST_F(GpuAttention, CodesOfAnySize) {
  for (const KvFormat& format : KvFormats()) {
    for (const bool latent : {false, true}) {
      const Shape s = latent ? Shape{{DType::kF32, 1, 576, 512, 16, true, 0, format.scheme, 64}, 16}
                             : Shape{{DType::kF32, 2, 128, 128, 16, false, 0, format.scheme}, 8};
      for (const auto& [size, spread] : {std::pair{1e-12f, 1.0f}, {1e12f, 1.0f}, {1.0f, 100.0f}}) {
        SCOPED_TRACE(fmt::format("{} size {} spread {}", Name(s), size, spread));
        const std::vector<Part> parts = {{1, 500, 1}, {1, 90, 2}};
        Step step(s, parts);
        for (int64_t slot = 0; slot < 2; ++slot) {
          for (int32_t head = 0; head < s.kv.num_kv_heads; ++head) {
            for (int32_t t = 0; t < parts[static_cast<size_t>(slot)].kv_len; ++t) {
              TestRng rng(static_cast<uint64_t>(slot * 1000000 + head * 10000 + t));
              const float by = size * (t % 7 == 0 ? 1 / spread : 1.0f);
              // Of latents the keys are the values; the query is made smaller by as much.
              step.cache.Write(slot, head, t, rng.NormalVector(s.kv.k_dim, latent ? by : 1.0f), rng.NormalVector(s.kv.v_dim, by));
            }
          }
        }
        for (float& q : step.q) q = latent ? q / size : q;
        const std::vector<float> want = RunCpu(step), got = RunGpu(step, {});
        double largest = 0;
        for (const float x : want) largest = std::max(largest, std::fabs(double{x}));
        ASSERT_GT(largest, 0);
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i] / largest, want[i] / largest, 4e-3) << i;
      }
    }
  }
}

// A query that is no number spoils its own head.
TEST_F(GpuAttention, CodesMeetNoNumber) {
  for (const KvFormat& format : KvFormats()) {
    for (const bool latent : {false, true}) {
      for (const bool deterministic : {false, true}) {
        const Shape s = latent ? Shape{{DType::kF32, 1, 576, 512, 16, true, 0, format.scheme, 64}, 2}
                               : Shape{{DType::kF32, 1, 64, 64, 16, false, 0, format.scheme}, 2};
        Step step(s, {{1, 70, 1}});
        step.q[5] = NAN;
        const std::vector<float> out = RunGpu(step, {CudaMath::kFast, deterministic});
        SCOPED_TRACE(fmt::format("{} {}", Name(s), deterministic));
        EXPECT_TRUE(std::isnan(out[0]));
        for (int32_t d = 0; d < s.kv.v_dim; ++d) ASSERT_TRUE(std::isfinite(out[static_cast<size_t>(s.kv.v_dim + d)])) << d;
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
