// Attention on the GPU: every kernel against the CPU's over ragged batches; the deterministic mode's promise; graphs.
#include <numbers>

#include "gpu_attention_testing.h"

namespace cachalot {
namespace {

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    shapes.push_back({{dtype, 3, 64, 64, 16}, 9});                 // SmolLM2
    shapes.push_back({{dtype, 1, 128, 128, 32, false, 8}, 7});     // Qwen2.5-7B's group
    shapes.push_back({{dtype, 2, 128, 128, 64}, 8, 200});          // window
    shapes.push_back({{dtype, 8, 128, 128, 48}, 32});              // Llama-8B; blocks of no power of two
    shapes.push_back({{dtype, 2, 256, 256, 16}, 8});
    shapes.push_back({{dtype, 1, 64, 64, 128}, 40, 1});            // more heads than a tile has rows; window 1
    shapes.push_back({{dtype, 2, 192, 128, 16}, 4});               // MLA, expanded
    shapes.push_back({{dtype, 1, 576, 512, 64, true}, 16});        // MLA, absorbed: V2-Lite
    shapes.push_back({{dtype, 1, 576, 512, 16, true}, 20, 150});   // heads that share a tile unevenly
  }
  shapes.push_back({{DType::kBF16, 1, 576, 512, 64, true}, 128});  // V3
  for (DType dtype : {DType::kF32, DType::kBF16}) {                // the generic kernel
    shapes.push_back({{dtype, 2, 16, 16, 8}, 2});
    shapes.push_back({{dtype, 1, 40, 24, 64}, 5, 37});
    shapes.push_back({{dtype, 1, 80, 64, 16}, 4});
    shapes.push_back({{dtype, 1, 80, 80, 128}, 8});
    shapes.push_back({{dtype, 1, 13, 9, 24}, 3, 5});
  }
  shapes.push_back({{DType::kF32, 1, 576, 512, 64, true}, 16});
  shapes.push_back({{DType::kF16, 2, 128, 128, 24}, 8});           // blocks that no fast kernel takes
  for (const KvFormat& format : KvFormats()) {
    const KvScheme& scheme = format.scheme;
    const DType dtype = DType::kF32;
    shapes.push_back({{dtype, 3, 64, 64, 16, false, 0, scheme, 0, true}, 9});
    shapes.push_back({{dtype, 2, 128, 128, 48, false, 8, scheme}, 8});                   // blocks of no power of two
    shapes.push_back({{dtype, 2, 128, 128, 64, false, 0, scheme, 0, true}, 8, 200});
    shapes.push_back({{dtype, 1, 64, 64, 128, false, 0, scheme}, 40, 1});                // more heads than a tile has rows; window 1
    shapes.push_back({{dtype, 1, 576, 512, 64, true, 0, scheme, 64, true}, 16});
    shapes.push_back({{dtype, 1, 576, 512, 16, true, 8, scheme, 64}, 20, 150});
    shapes.push_back({{dtype, 1, 80, 64, 16, false, 0, scheme, 0, true}, 4});            // the generic kernel
    shapes.push_back({{dtype, 1, 128, 128, 16, false, 1, scheme}, 2});                   // blocks at no multiple of 32 bytes
  }
  shapes.push_back({{DType::kF32, 1, 576, 512, 64, true, 0, FindKvFormat("k6v8")->scheme, 64}, 128});
  {
    KvScheme scheme = FindKvFormat("k8v8")->scheme;
    scheme.key_group = scheme.latent_group = 32;
    scheme.rotate = false;
    shapes.push_back({{DType::kF32, 2, 128, 128, 16, false, 0, scheme}, 8});             // the generic kernel
    shapes.push_back({{DType::kF32, 1, 576, 512, 16, true, 0, scheme, 64}, 16});
    scheme.key_group = scheme.latent_group = 0;
    shapes.push_back({{DType::kF32, 2, 128, 128, 16, false, 0, scheme, 0, true}, 8});
    shapes.push_back({{DType::kF32, 1, 576, 512, 16, true, 0, scheme, 64, true}, 16});
    shapes.push_back({{DType::kF32, 2, 128, 128, 16, false, 0, scheme, 0, true, 16}, 8});
    shapes.push_back({{DType::kF32, 1, 576, 512, 16, true, 0, scheme, 64, true, 32}, 16});
  }
  return shapes;
}

class GpuAttentionShapes : public GpuTest, public testing::WithParamInterface<size_t> {};

TEST_P(GpuAttentionShapes, AgainstTheReference) {
  const Shape s = Shapes()[GetParam()];
  for (size_t b = 0; b < Batches().size(); ++b) {
    if (s.num_q_heads == 128 && b >= 4) continue;  // the reference takes too long
    if (!Chosen(WorkOf(s, Batches()[b]))) continue;
    const Step step(s, Batches()[b]);
    const std::vector<float> want = RunCpu(step);
    for (const Mode mode : {Mode{CudaMath::kF32, false}, Mode{CudaMath::kFast, false}, Mode{CudaMath::kFast, true}}) {
      SCOPED_TRACE(fmt::format("{} batch {}{}{}", Name(s), b, mode.math == CudaMath::kF32 ? " F32" : " fast",
                               mode.deterministic ? " deterministic" : ""));
      const std::vector<float> got = RunGpu(step, mode);
      ExpectCloseToReference(step, mode, got, want);
      EXPECT_EQ(FirstBitDifference(RunGpu(step, mode), got), "") << "second run";
      const Step moved(s, Batches()[b], 99);  // other blocks
      EXPECT_EQ(FirstBitDifference(RunGpu(moved, mode), got), "") << "other blocks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuAttentionShapes, testing::Range<size_t>(0, Shapes().size()),
                         [](const auto& test) {
                           const Shape s = Shapes()[test.param];
                           return fmt::format("{}_{}_{}h{}_w{}_{}", DTypeName(s.kv.dtype), s.kv.k_dim, s.kv.v_dim,
                                              s.num_q_heads, s.window, test.param);
                         });

// The kernels for heads of 64 and 128, each wherever it can.
TEST_F(GpuAttention, StreamedAndInRounds) {
  std::vector<Part> many;
  TestRng rng(7);
  for (int64_t i = 0; i < 70; ++i) many.push_back({static_cast<int32_t>(rng.Int(0, 2)), static_cast<int32_t>(rng.Int(2, 700)), i});
  many.push_back({1, 5000, 100});
  std::vector<std::vector<Part>> batches = Batches();
  batches.push_back({{1, 9000, 1}});
  batches.push_back({{1, 12001, 1}, {1, 8031, 2}});
  batches.push_back({{4, 5000, 1}, {0, 0, 2}, {1, 17, 3}, {3, 64, 4}, {1, 1, 5}, {2, 4097, 6}});
  batches.push_back(many);
  for (const Shape& s : {Shape{{DType::kF16, 8, 128, 128, 48}, 32}, Shape{{DType::kBF16, 2, 128, 128, 64}, 8, 200},
                         Shape{{DType::kBF16, 1, 128, 128, 16}, 7}, Shape{{DType::kF16, 3, 64, 64, 16}, 9},
                         Shape{{DType::kBF16, 1, 64, 64, 128}, 16, 3000}, Shape{{DType::kF16, 2, 64, 64, 32}, 2, 1}}) {
    for (size_t b = 0; b < batches.size(); ++b) {
      if (!Chosen(WorkOf(s, batches[b]))) continue;
      const Step step(s, batches[b]);
      const std::vector<float> want = RunCpu(step);
      for (const char* kernel : {"attention=stream", "attention=rounds"}) {
        SCOPED_TRACE(fmt::format("{} batch {} {}", Name(s), b, kernel));
        GPU_OK(Backend().set_tune(kernel));
        const std::vector<float> got = RunGpu(step, {});
        const Comparison c = Compare(got, want, ToleranceOf(s, {}, step.parts));
        EXPECT_TRUE(c.ok) << c.message;
        EXPECT_EQ(FirstBitDifference(RunGpu(step, {}), got), "") << "second run";
        const Step moved(s, batches[b], 99);
        EXPECT_EQ(FirstBitDifference(RunGpu(moved, {}), got), "") << "other blocks";
      }
    }
  }
  GPU_OK(Backend().set_tune(""));
}

// Many splits, many sequences: what the schedule does under load.
TEST_F(GpuAttention, LongAndMany) {
  std::vector<Part> many;
  TestRng rng(5);
  for (int64_t i = 0; i < 90; ++i) many.push_back({1, static_cast<int32_t>(rng.Int(1, 900)), i});
  many.push_back({1, 6000, 100});
  many.push_back({4, 2500, 101});
  const std::vector<std::vector<Part>> batches = {{{1, 9000, 1}}, {{3, 5000, 1}, {1, 17, 2}}, many};
  for (const Shape& s : {Shape{{DType::kBF16, 2, 128, 128, 64}, 8}, Shape{{DType::kF16, 1, 64, 64, 16}, 4, 3000},
                         Shape{{DType::kBF16, 1, 576, 512, 64, true}, 16}}) {
    for (size_t b = 0; b < batches.size(); ++b) {
      if (!Chosen(WorkOf(s, batches[b]))) continue;
      const Step step(s, batches[b]);
      const std::vector<float> want = RunCpu(step);
      for (bool deterministic : {false, true}) {
        SCOPED_TRACE(fmt::format("{} batch {}{}", Name(s), b, deterministic ? " deterministic" : ""));
        const Mode mode{CudaMath::kFast, deterministic};
        const std::vector<float> got = RunGpu(step, mode);
        const Comparison c = Compare(got, want, ToleranceOf(s, mode, step.parts));
        EXPECT_TRUE(c.ok) << c.message;
        EXPECT_EQ(FirstBitDifference(RunGpu(step, mode), got), "");
      }
    }
  }
}

// Deterministic: alone or in a batch, whole or in chunks, token by token: the same bits.
TEST_F(GpuAttention, DeterministicBitsDependOnTheRowAlone) {
  for (const Shape& s :
       {Shape{{DType::kBF16, 2, 64, 64, 16}, 8}, Shape{{DType::kF16, 1, 128, 128, 32}, 4, 700},
        Shape{{DType::kBF16, 1, 256, 256, 16}, 4}, Shape{{DType::kBF16, 1, 576, 512, 64, true}, 16},
        Shape{{DType::kF16, 1, 576, 512, 64, true}, 20, 600}, Shape{{DType::kF32, 1, 40, 24, 24}, 3},
        Shape{{DType::kF32, 2, 64, 64, 16, false, 0, FindKvFormat("k6v8")->scheme, 0, true}, 4}}) {
    SCOPED_TRACE(Name(s));
    const Mode mode{CudaMath::kFast, true};
    const int32_t length = 1300;
    if (!Chosen(WorkOf(s, {{length, length, 5}}))) continue;
    const int64_t row = int64_t{s.num_q_heads} * s.kv.v_dim;
    const std::vector<float> whole = RunGpu(Step(s, {{length, length, 5}}), mode);
    const auto rows_of = [&](int32_t begin, int32_t count) {
      return std::span<const float>(whole.data() + begin * row, static_cast<size_t>(count * row));
    };
    for (int32_t chunk : {2, 100, 513}) {
      for (int32_t begin = 0; begin < length; begin += chunk == 2 ? 330 : chunk) {
        const int32_t q_len = std::min(chunk, length - begin);
        ASSERT_EQ(FirstBitDifference(RunGpu(Step(s, {{q_len, begin + q_len, 5}}), mode), rows_of(begin, q_len)), "")
            << "chunk of " << chunk << " at " << begin;
      }
    }
    std::vector<Part> together = {{1, 77, 1}};
    const std::vector<int32_t> positions = {0, 15, 16, 63, 64, 511, 512, 1023, 1024, 1299};
    for (int32_t position : positions) together.push_back({1, position + 1, 5});
    const std::vector<float> batched = RunGpu(Step(s, together), mode);
    for (size_t i = 0; i < positions.size(); ++i) {
      ASSERT_EQ(FirstBitDifference(std::span<const float>(batched.data() + (i + 1) * row, static_cast<size_t>(row)),
                                   rows_of(positions[i], 1)),
                "")
          << "in a batch, position " << positions[i];
      ASSERT_EQ(FirstBitDifference(RunGpu(Step(s, {{1, positions[i] + 1, 5}}), mode), rows_of(positions[i], 1)), "")
          << "alone, position " << positions[i];
    }
  }
}

// One graph serves steps of other lengths: the schedule is made on the device.
TEST_F(GpuAttention, AGraphFollowsTheSpans) {
  for (const Shape& s : {Shape{{DType::kBF16, 2, 128, 128, 64}, 8}, Shape{{DType::kBF16, 1, 576, 512, 64, true}, 16},
                         Shape{{DType::kF32, 1, 40, 24, 24}, 3},
                         Shape{{DType::kF32, 2, 128, 128, 16, false, 0, FindKvFormat("k6v8")->scheme}, 8},
                         Shape{{DType::kF32, 1, 576, 512, 16, true, 0, FindKvFormat("k6v8")->scheme, 64}, 16}}) {
    SCOPED_TRACE(Name(s));
    const std::vector<Part> full = {{1, 1200, 1}, {1, 30, 2}, {1, 513, 3}};
    const Step step(s, full);
    GpuStep gpu(step, {});
    GpuGraph graph([&] { gpu.Enqueue(); });
    graph.Launch();
    const std::vector<float> want = RunCpu(step);
    Comparison c = Compare(gpu.Collect(step.spans), want, ToleranceOf(s, {}));
    EXPECT_TRUE(c.ok) << c.message;
    // The first sequence is as it was, the second has ended, the third one's row is another position.
    const std::vector<SeqSpan> later = {step.spans[0], {2, step.spans[2].q_begin, 1, 513}};
    gpu.Poison();
    gpu.batch().Update(later);
    graph.Launch();
    const std::vector<float> again = gpu.Collect(later);
    const int64_t row = int64_t{s.num_q_heads} * s.kv.v_dim;
    std::vector<float> rest(want.begin(), want.begin() + row);
    rest.insert(rest.end(), want.begin() + 2 * row, want.end());
    c = Compare(again, rest, ToleranceOf(s, {}));
    EXPECT_TRUE(c.ok) << c.message;
  }
}

// Keys of -infinity against a positive query weigh nothing, also when they fill whole splits.
TEST_F(GpuAttention, HalfCopiesAreTheOutputsRounded) {
  const std::vector<std::vector<Part>> batches = {{{1, 9000, 1}, {1, 17, 2}, {1, 513, 3}}, {{300, 700, 1}, {1, 30, 2}, {2, 2000, 3}}};
  for (const Shape& s : {Shape{{DType::kF16, 8, 128, 128, 48}, 32}, Shape{{DType::kBF16, 2, 64, 64, 16}, 8, 100},
                         Shape{{DType::kF32, 1, 64, 64, 16}, 2},
                         Shape{{DType::kF32, 2, 128, 128, 16, false, 0, FindKvFormat("k6v8")->scheme}, 8}}) {
    for (const std::vector<Part>& parts : batches) {
      if (!Chosen(WorkOf(s, parts))) continue;
      Step step(s, parts);
      step.out_head = s.kv.v_dim;
      step.out_token = s.num_q_heads * step.out_head;
      for (bool deterministic : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} rows{}", Name(s), step.num_rows, deterministic ? " deterministic" : ""));
        const std::vector<float> plain = RunGpu(step, {CudaMath::kFast, deterministic});
        GpuStep gpu(step, {CudaMath::kFast, deterministic});
        gpu.WantHalf();
        gpu.Enqueue();
        EXPECT_EQ(FirstBitDifference(gpu.Collect(step.spans), plain), "");
        gpu.CheckHalf();
      }
    }
  }
}

// Bytes on their way to L2 beside it change nothing, whatever their number.
TEST_F(GpuAttention, UpcomingBytesChangeNothing) {
  GPU_OK(Backend().set_tune("prefetch_kib=4096"));
  for (const Shape& s : {Shape{{DType::kF16, 2, 128, 128, 48}, 8}, Shape{{DType::kBF16, 1, 576, 512, 64, true}, 16}}) {
    const Step step(s, {{1, 700, 1}});
    const std::vector<float> plain = RunGpu(step, {});
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{16}, int64_t{4096 + 15}, int64_t{9} << 20}) {
      const GpuArray<std::byte> upcoming(std::max<int64_t>(bytes, 1));
      GpuStep gpu(step, {});
      gpu.SetUpcoming(upcoming);
      gpu.Enqueue();
      EXPECT_EQ(FirstBitDifference(gpu.Collect(step.spans), plain), "") << Name(s) << ", " << bytes << " bytes";
      EXPECT_TRUE(upcoming.Intact());
    }
  }
  GPU_OK(Backend().set_tune(""));
}

TEST_F(GpuAttention, ScoresOfMinusInfinityWeighNothing) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool deterministic : {false, true}) {
      TestKv cache({dtype, 1, 64, 64, 16}, {1302});
      for (int t = 0; t < 1302; ++t) {
        cache.Write(0, 0, t, std::vector<float>(64, t < 1300 ? -INFINITY : 0.0f),
                    std::vector<float>(64, t < 1300 ? 1.0f : static_cast<float>(t - 1300)));
      }
      const std::vector<SeqSpan> spans = {{0, 0, 1, 1302}};
      GpuBatch batch(spans, 1);
      batch.Fill();
      const GpuKv kv(cache, 1);
      const GpuArray<float> q(std::vector<float>(64, 1.0f)), out(64);
      const CudaExec exec = Gpu::Get().Exec(CudaMath::kFast, deterministic);
      CudaAttentionPlan plan;
      plan.shape = {1, 1, 64, 64, 0};
      const GpuArray<std::byte> memory(Backend().attention_plan_bytes(plan.shape, batch.get(), exec.num_sms));
      plan.memory = memory.data();
      plan.memory_bytes = memory.size();
      GPU_OK(Backend().attention_plan(exec, batch.get(), plan));
      GPU_OK(Backend().attention(exec, batch.get(), plan, {.q = q.data(),
                                                           .q_token_stride = 64,
                                                           .q_head_stride = 64,
                                                           .num_q_heads = 1,
                                                           .kv = kv.view(),
                                                           .out = out.data(),
                                                           .out_token_stride = 64,
                                                           .out_head_stride = 64}));
      for (float v : out.Read()) EXPECT_EQ(v, 0.5f) << DTypeName(dtype) << deterministic;
    }
  }
}

TEST_F(GpuAttention, WrongPlansAreRefused) {
  const std::vector<SeqSpan> spans = {{0, 0, 1, 1}};
  GpuBatch batch(spans, 1);
  CudaAttentionPlan plan;
  plan.shape = {3, 2, 64, 64, 0};
  EXPECT_EQ(FromCuda(Backend().attention_plan(Gpu::Get().Exec(), batch.get(), plan)).code(), StatusCode::kInvalidArgument);
  plan.shape = {2, 2, 64, 64, 0};
  EXPECT_EQ(FromCuda(Backend().attention_plan(Gpu::Get().Exec(), batch.get(), plan)).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot
