// draft_next that picks the tokens itself: the first of the largest logits, whatever the number of blocks that look for it.
#include <cmath>
#include <limits>

#include "gpu_matmul_testing.h"
#include "kernels/step/draft.h"

namespace cachalot {
namespace {

class GpuDraftNext : public GpuTest {};

// The first of the largest; a NaN is -infinity, 0 where all are.
int32_t FirstOfLargest(const float* logits, int32_t vocab) {
  int32_t best = 0;
  float largest = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < vocab; ++i) {
    if (logits[i] > largest) largest = logits[i], best = i;
  }
  return best;
}

TEST_F(GpuDraftNext, PicksTheFirstOfTheLargest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const MatmulScratch scratch(256);
  for (int32_t vocab : {1, 33, 1023, 1024, 1025, 32768, 129280}) {
    for (int32_t num_spans : {1, 3, 40}) {
      if (!Chosen(int64_t{num_spans} * vocab)) continue;
      SCOPED_TRACE(fmt::format("{} spans, vocabulary of {}", num_spans, vocab));
      const int64_t stride = vocab + 5;
      TestRng rng(static_cast<uint64_t>(vocab + num_spans));
      std::vector<float> logits = rng.NormalVector(num_spans * stride);
      std::vector<SeqSpan> planned(static_cast<size_t>(num_spans));
      std::vector<int32_t> drafts(static_cast<size_t>(num_spans), 2), stopped(static_cast<size_t>(num_spans)), picks(static_cast<size_t>(num_spans));
      for (int32_t s = 0; s < num_spans; ++s) {
        float* row = logits.data() + s * stride;
        for (int64_t i = vocab; i < stride; ++i) row[i] = kInfinity;  // not the row's
        if (s % 5 == 1) std::fill(row, row + vocab, -kInfinity);
        if (s % 5 == 2) row[vocab / 2] = row[vocab - 1] = 9, row[0] = std::nanf("");
        if (s % 5 == 3) std::fill(row, row + vocab, 0.5f);
        if (s % 5 == 4) row[vocab - 1] = kInfinity;
        planned[static_cast<size_t>(s)] = {s, 3 * s, 3, 10};
        if (s == 7) picks[7] = -1;    // nothing waited for it
        if (s == 8) drafts[8] = 1;    // this pass is its last
        if (s == 9) stopped[9] = 1;
      }
      const GpuArray<float> on_gpu(logits);
      const GpuArray<SeqSpan> gpu_planned(planned), batch_spans(num_spans);
      const GpuArray<int32_t> gpu_drafts(drafts), gpu_stopped(stopped), gpu_picks(picks), count(std::vector<int32_t>{num_spans});
      const GpuArray<int32_t> fed(std::vector<int32_t>(static_cast<size_t>(num_spans), 4)), tokens(num_spans);
      const GpuArray<int32_t> step_tokens(std::vector<int32_t>(static_cast<size_t>(3 * num_spans), -7));
      const GpuArray<int32_t> drafted(num_spans * kMaxCudaDrafts), slots(num_spans), positions(num_spans), row_spans(num_spans);
      const GpuArray<unsigned long long> best(num_spans * kDraftPickParts);
      const CudaDraftNextParams params = {
          .spans = {.planned = gpu_planned.data(), .drafts = gpu_drafts.data(), .stopped = gpu_stopped.data(), .num_spans = num_spans,
                    .num_planned = count.data()},
          .state = {.tokens = drafted.data(), .fed = fed.data()},
          .logits = on_gpu.data(), .logits_stride = stride, .vocab = vocab, .best = best.data(), .step_tokens = step_tokens.data(),
          .batch_spans = batch_spans.data(), .token_ids = tokens.data(), .picks = gpu_picks.data(),
          .rows = {slots.data(), positions.data(), row_spans.data()}};
      GPU_OK(Gpu::Get().backend->draft_next(scratch.Exec({"", CudaMath::kFast, false, true}), params));
      const std::vector<int32_t> got = tokens.Read(), got_picks = gpu_picks.Read(), among = step_tokens.Read(), got_positions = positions.Read();
      for (int32_t s = 0; s < num_spans; ++s) {
        const auto at = static_cast<size_t>(s);
        const bool stops = s == 9, goes_on = !stops && s != 8;
        const int32_t want = stops || s == 7 ? 0 : FirstOfLargest(logits.data() + s * stride, vocab);
        EXPECT_EQ(got[at], want) << "span " << s;
        EXPECT_EQ(among[3 * at + 1], stops ? -7 : want) << "span " << s;
        EXPECT_EQ(among[3 * at], -7);
        EXPECT_EQ(among[3 * at + 2], -7);
        EXPECT_EQ(got_picks[at], goes_on ? 0 : -1) << "span " << s;
        EXPECT_EQ(got_positions[at], goes_on ? 4 : -1) << "span " << s;
      }
      EXPECT_TRUE(scratch.Intact() && on_gpu.Intact() && step_tokens.Intact() && best.Intact() && tokens.Intact());
    }
  }
}

}  // namespace
}  // namespace cachalot
