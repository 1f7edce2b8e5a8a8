// The prefill kernels against the CPU's attention: edges of tiles, and what lies behind the last token.
#include "gpu_attention_testing.h"

namespace cachalot {
namespace {

constexpr const char* kPrefillKernels[] = {"prefill=wgmma", "prefill=mma"};

bool SeesFew(const Step& step) {
  return std::all_of(step.parts.begin(), step.parts.end(),
                     [](const Part& part) { return part.kv_len <= 512; });
}

// What prefill may differ by from the reference. Over a BF16 cache, where rows see many tokens, of
// TakeQueriesOfBf16: only the weights are rounded, each by at most 2^-9 of itself, after they have been added
// up. So a value's limit is 2^-9 times the sum of the weights and the values' magnitudes, and a bit for F32.
class PrefillLimits {
 public:
  explicit PrefillLimits(const Step& step)
      : want_(RunCpu(step)), tolerance_(ToleranceOf(step.shape, {}, step.parts)) {
    if (step.shape.kv.dtype != DType::kBF16 || SeesFew(step)) return;
    Step positive(step, 1);
    for (const SeqSpan& span : step.spans) {
      for (int32_t h = 0; h < step.shape.kv.num_kv_heads; ++h) {
        for (int32_t t = 0; t < span.kv_len; ++t) {
          std::vector<float> value = step.cache.Value(span.slot, h, t);
          for (float& x : value) x = std::abs(x);
          positive.cache.Write(span.slot, h, t, step.cache.Key(span.slot, h, t), value);
        }
      }
    }
    magnitudes_ = RunCpu(positive);
    tolerance_.of_rms = INFINITY;
  }

  // The complaint, if there is one.
  std::string Check(const std::vector<float>& got) const {
    const Comparison c = Compare(got, want_, tolerance_);
    if (!c.ok) return c.message;
    for (size_t i = 0; i < magnitudes_.size(); ++i) {
      const double error = std::abs(double{got[i]} - want_[i]),
                   limit = 1e-6 + (0x1p-9 + 0x1p-16) * magnitudes_[i];
      if (!(error <= limit))
        return fmt::format("value {}: got {}, want {}, which is {:.3g} of the limit", i, got[i], want_[i],
                           error / limit);
    }
    return "";
  }

 private:
  std::vector<float> want_;
  Tolerance tolerance_;
  std::vector<float> magnitudes_;  // empty: the tolerance says all
};

// The prefill kernels, each wherever it can: chunks that begin and end around the edges of tiles of rows and of tokens, many spans.
TEST_F(GpuAttention, PrefillByEachKernel) {
  std::vector<Part> many;
  TestRng rng(11);
  for (int64_t i = 0; i < 25; ++i) {
    const auto q_len = static_cast<int32_t>(rng.Int(1, 90));
    many.push_back({q_len, q_len + static_cast<int32_t>(rng.Int(0, 800)), i});
  }
  std::vector<std::vector<Part>> batches = Batches();
  batches.push_back(many);
  batches.push_back({{100, 2047, 1}, {128, 2048, 2}, {129, 2049, 3}, {127, 1300, 4}, {33, 4100, 5}, {1, 900, 6}});
  batches.push_back({{1200, 2500, 1}, {64, 64, 2}, {65, 577, 3}, {0, 0, 4}, {300, 812, 5}});
  const size_t num_for_all = batches.size();
  constexpr size_t kTurns = 5;  // each of these for two or so of the shapes
  for (const int32_t length : {513, 639, 640, 641, 767, 768, 769, 1023, 1024, 1025})
    batches.push_back({{length, length, 1}});
  const std::vector<Shape> shapes = {{{DType::kF16, 2, 128, 128, 48}, 8},
                                     {{DType::kBF16, 2, 128, 128, 16}, 8, 700},
                                     {{DType::kBF16, 1, 128, 128, 32, false, 8}, 7},
                                     {{DType::kF16, 2, 128, 128, 64}, 4, 513},
                                     {{DType::kF16, 3, 64, 64, 16}, 9},
                                     {{DType::kBF16, 1, 64, 64, 128}, 20, 1000},
                                     {{DType::kF16, 2, 64, 64, 32}, 2, 200},
                                     {{DType::kBF16, 4, 192, 128, 64}, 4},
                                     {{DType::kF16, 2, 192, 128, 16}, 4, 650}};
  for (size_t of = 0; of < shapes.size(); ++of) {
    const Shape& s = shapes[of];
    for (size_t b = 0; b < batches.size(); ++b) {
      if (b >= num_for_all && b % kTurns != of % kTurns) continue;
      if (!Chosen(WorkOf(s, batches[b]))) continue;
      Step step(s, batches[b]);
      if (s.kv.dtype == DType::kBF16) step.TakeQueriesOfBf16();
      const PrefillLimits limits(step);
      const Step moved(step, 99);
      for (const char* kernel : kPrefillKernels) {
        SCOPED_TRACE(fmt::format("{} batch {} {}", Name(s), b, kernel));
        GPU_OK(Backend().set_tune(kernel));
        const std::vector<float> got = RunGpu(step, {});
        EXPECT_EQ(limits.Check(got), "");
        EXPECT_EQ(FirstBitDifference(RunGpu(moved, {}), got), "") << "again, with other blocks";
      }
    }
  }
  GPU_OK(Backend().set_tune(""));
}

// What the cache holds behind the last token, in the same block and beside it, is no number: the outputs do not see it. Several layers
// share one plan.
TEST_F(GpuAttention, PrefillReadsNoTokenTooMany) {
  for (const Shape& s : {Shape{{DType::kF16, 2, 128, 128, 32}, 8}, Shape{{DType::kBF16, 1, 64, 64, 64}, 4, 600}, Shape{{DType::kBF16, 2, 192, 128, 64}, 2}}) {
    for (const int32_t length : {1001, 1008, 1023}) {
      if (!Chosen(WorkOf(s, {{600, length, 1}}))) continue;
      SCOPED_TRACE(fmt::format("{} {} tokens", Name(s), length));
      Step step(s, {{600, length + 33, 1}});
      step.parts = {{600, length, 1}};
      step.spans[0].kv_len = length;
      if (s.kv.dtype == DType::kBF16) step.TakeQueriesOfBf16();
      const std::vector<float> nan_k(static_cast<size_t>(s.kv.k_dim), NAN), nan_v(static_cast<size_t>(s.kv.v_dim), NAN);
      for (int32_t t = length; t < length + 33; ++t) {
        for (int32_t h = 0; h < s.kv.num_kv_heads; ++h) step.cache.Write(0, h, t, nan_k, nan_v);
      }
      const PrefillLimits limits(step);
      for (const char* kernel : kPrefillKernels) {
        SCOPED_TRACE(kernel);
        GPU_OK(Backend().set_tune(kernel));
        const std::vector<float> got = RunGpu(step, {});
        EXPECT_EQ(limits.Check(got), "");
        GpuStep again(step, {});
        again.Enqueue();
        for (int layer = 0; layer < 3; ++layer) again.AttendAgain();
        EXPECT_EQ(FirstBitDifference(again.Collect(step.spans), got), "") << "several layers";
      }
    }
  }
  GPU_OK(Backend().set_tune(""));
}

}  // namespace
}  // namespace cachalot
