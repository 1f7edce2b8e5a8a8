// MLA's streaming kernel against the CPU's: its two products one by one, lengths at the borders of runs,
// tiles and shares, what is not visible, scores that outgrow what was taken for the largest.
#include <cmath>
#include <memory>
#include <thread>

#include "gpu_testing.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"

namespace cachalot {
namespace {

constexpr int32_t kKey = 576, kValue = 512;

const CudaBackend& Backend() {
  return *Gpu::Get().backend;
}

class GpuMlaStream : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) GPU_OK(Backend().set_tune("mla=stream"));
  }
  void TearDown() override {
    if (!IsSkipped()) GPU_OK(Backend().set_tune(""));
  }
};

struct Shape {
  DType dtype = DType::kF16;
  int32_t heads = 16, block_tokens = 16, window = 0;
  std::string Name() const {
    return fmt::format("{} {} heads block {} window {}", DTypeName(dtype), heads, block_tokens, window);
  }
};

// A step of one token of each sequence; a row that nothing reads between two of them.
struct Step {
  Shape shape;
  std::vector<int32_t> lengths;
  std::vector<SeqSpan> spans;
  std::vector<float> q;
  TestKv cache;

  Step(const Shape& s, const std::vector<int32_t>& the_lengths, uint64_t table_seed = 1)
      : shape(s),
        lengths(the_lengths),
        cache({s.dtype, 1, kKey, kValue, s.block_tokens, true}, the_lengths, table_seed) {
    std::vector<int64_t> ids;
    for (int32_t length : lengths) {
      const auto slot = static_cast<int32_t>(spans.size());
      spans.push_back({slot, 2 * slot, 1, length});
      ids.push_back(slot + 1);
    }
    cache.FillNormal(lengths, ids);
    q = TestRng(31).NormalVector(Rows() * QRow());
  }
  int32_t Rows() const { return static_cast<int32_t>(2 * lengths.size()); }
  int64_t QRow() const { return int64_t{shape.heads} * kKey; }
  int64_t OutRow() const { return int64_t{shape.heads} * kValue; }
  int64_t Work() const {
    int64_t work = 0;
    for (int32_t length : lengths) work += int64_t{length} * shape.heads * (kKey + kValue);
    return work;
  }
  // Queries are 0 but for values [begin, end) of each head.
  void KeepQueries(int32_t begin, int32_t end) {
    for (size_t i = 0; i < q.size(); ++i) {
      const auto at = static_cast<int32_t>(i % kKey);
      if (at < begin || at >= end) q[i] = 0;
    }
  }
  AttentionParams Params() const {
    AttentionParams params;
    params.q_token_stride = QRow();
    params.q_head_stride = kKey;
    params.num_q_heads = shape.heads;
    params.scale = 1 / std::sqrt(192.0f);
    params.window = shape.window;
    params.out_token_stride = OutRow();
    params.out_head_stride = kValue;
    return params;
  }
  // The rows of the sequences; checks that no other was written.
  std::vector<float> Collect(const std::vector<float>& out) const {
    std::vector<float> rows;
    for (size_t i = 0; i < out.size(); ++i) {
      if (i / static_cast<size_t>(OutRow()) % 2 == 0) {
        rows.push_back(out[i]);
      } else if (!IsPoison(out[i])) {
        ADD_FAILURE() << "wrote outside its rows at " << i;
        break;
      }
    }
    return rows;
  }
};

std::vector<float> RunCpu(const Step& step) {
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<float> out(static_cast<size_t>(step.Rows() * step.OutRow()), std::bit_cast<float>(0xffffffffu));
  TestContext ctx(BestIsa(), threads, AttentionWorkspaceBytes(threads, step.shape.heads, 1, kKey, kValue));
  AttentionParams params = step.Params();
  params.spans = step.spans;
  params.q = step.q.data();
  params.kv = step.cache.view();
  params.out = out.data();
  Attention(ctx, params);
  return step.Collect(out);
}

// A step on the GPU: a plan, and behind it as many layers, all alike.
class GpuStep {
 public:
  explicit GpuStep(const Step& step)
      : step_(step),
        exec_(Gpu::Get().Exec()),
        batch_(step.spans, step.Rows()),
        kv_(step.cache, static_cast<int64_t>(step.lengths.size())),
        q_(step.q),
        out_(step.Rows() * step.OutRow()) {
    plan_.shape = {step.shape.heads, 1, kKey, kValue, step.shape.window};
    memory_ = std::make_unique<GpuArray<std::byte>>(
        Backend().attention_plan_bytes(plan_.shape, batch_.get(), exec_.num_sms));
    plan_.memory = memory_->data();
    plan_.memory_bytes = memory_->size();
  }
  void Enqueue(int layers) {
    batch_.Fill();
    AttentionParams params = step_.Params();
    params.q = q_.data();
    params.kv = kv_.view();
    params.out = out_.data();
    GPU_EXPECT_OK(Backend().attention_plan(exec_, batch_.get(), plan_));
    for (int i = 0; i < layers; ++i) GPU_EXPECT_OK(Backend().attention(exec_, batch_.get(), plan_, params));
  }
  void Update(const std::vector<SeqSpan>& spans) {
    batch_.Update(spans);
    out_.Poison();
    memory_->Poison();
  }
  std::vector<float> Collect() const {
    std::vector<float> result = step_.Collect(out_.Read());
    EXPECT_TRUE(out_.Intact() && q_.Intact() && kv_.Intact() && memory_->Intact() && batch_.Intact());
    return result;
  }

 private:
  const Step& step_;
  CudaExec exec_;
  GpuBatch batch_;
  GpuKv kv_;
  GpuArray<float> q_;
  GpuArray<float> out_;
  CudaAttentionPlan plan_;
  std::unique_ptr<GpuArray<std::byte>> memory_;
};

std::vector<float> RunGpu(const Step& step) {
  GpuStep gpu(step);
  gpu.Enqueue(1);
  return gpu.Collect();
}

// As of the other kernels: rests of queries and weights go in where few tokens are seen
// (gpu_attention_test.cc).
Tolerance ToleranceOf(const Step& step) {
  const bool few =
      std::all_of(step.lengths.begin(), step.lengths.end(), [](int32_t length) { return length <= 512; });
  if (few) return {1e-6, 0, 5e-4, 1 - 1e-6};
  return step.shape.dtype == DType::kBF16 ? Tolerance{1e-6, 0, 2e-2, 1 - 5e-5}
                                          : Tolerance{1e-6, 0, 3e-3, 1 - 1e-6};
}

// Where the worst of it is: of each sequence, head and block of 64 columns the largest difference.
std::string Worst(const Step& step, const std::vector<float>& got, const std::vector<float>& want) {
  double worst = -1;
  size_t at = 0;
  std::vector<double> of_head(static_cast<size_t>(step.shape.heads)), of_block(kValue / 64);
  for (size_t i = 0; i < got.size(); ++i) {
    double apart = std::fabs(double{got[i]} - want[i]);
    if (!(apart < 1e30)) apart = 1e30;
    of_head[i / kValue % of_head.size()] = std::max(of_head[i / kValue % of_head.size()], apart);
    of_block[i % kValue / 64] = std::max(of_block[i % kValue / 64], apart);
    if (apart > worst) worst = apart, at = i;
  }
  std::string text = fmt::format("worst {:.3g} at sequence {} head {} column {}: {} for {}; by head", worst,
                                 at / static_cast<size_t>(step.OutRow()), at / kValue % of_head.size(),
                                 at % kValue, got[at], want[at]);
  for (double apart : of_head) text += fmt::format(" {:.2g}", apart);
  text += "; by block of columns";
  for (double apart : of_block) text += fmt::format(" {:.2g}", apart);
  return text;
}

void Check(const Step& step) {
  SCOPED_TRACE(fmt::format("{}, {} sequences, the first of {}", step.shape.Name(), step.lengths.size(),
                           step.lengths.front()));
  const std::vector<float> want = RunCpu(step), got = RunGpu(step);
  ASSERT_EQ(got.size(), want.size());
  const Comparison c = Compare(got, want, ToleranceOf(step));
  EXPECT_TRUE(c.ok) << c.message << "\n" << Worst(step, got, want);
  EXPECT_EQ(FirstBitDifference(RunGpu(step), got), "") << "second run";
}

// All weights alike: the mean of the values.
TEST_F(GpuMlaStream, SumsAlone) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int32_t length : {64, 1, 16, 128, 200, 700}) {
      Step step({dtype}, {length});
      step.KeepQueries(0, 0);
      Check(step);
    }
  }
}

// Each panel of 64 of the keys' values alone decides the scores.
TEST_F(GpuMlaStream, ScoresPanelByPanel) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (int32_t panel = 0; panel < kKey / 64; ++panel) {
      for (const int32_t length : {64, 130}) {
        SCOPED_TRACE(fmt::format("panel {}", panel));
        Step step({dtype}, {length});
        step.KeepQueries(panel * 64, panel * 64 + 64);
        Check(step);
      }
    }
  }
}

TEST_F(GpuMlaStream, LengthsAtBorders) {
  const std::vector<int32_t> lengths = {1,  2,  15, 16,  17,  31,  32,  33,  47,  48,  49, 63,
                                        64, 65, 79, 127, 128, 129, 191, 192, 193, 511, 512};
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Shape& s : {Shape{dtype}, Shape{dtype, 7, 64}, Shape{dtype, 1, 48, 1},
                           Shape{dtype, 13, 32, 100}, Shape{dtype, 16, 16, 65}}) {
      for (int32_t length : lengths) Check(Step(s, {length}));
      Check(Step(s, lengths));
    }
  }
}

// Shares that begin and end within sequences; blocks with many short sequences; more tiles of one sequence
// than there are SMs.
TEST_F(GpuMlaStream, ManyAndLong) {
  TestRng rng(5);
  std::vector<int32_t> many, short_ones;
  for (int i = 0; i < 45; ++i) many.push_back(static_cast<int32_t>(rng.Int(1, 2500)));
  for (int i = 0; i < 700; ++i) short_ones.push_back(static_cast<int32_t>(rng.Int(1, 90)));
  std::vector<int32_t> mixed = short_ones;
  mixed.resize(150);
  mixed.insert(mixed.begin() + 60, 9001);
  const std::vector<std::vector<int32_t>> batches = {many,    short_ones,   mixed,
                                                     {12345}, {5000, 4999}, std::vector<int32_t>(16, 1024)};
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const std::vector<int32_t>& lengths : batches) {
      for (const int32_t window : {0, 300}) {
        const Step step({dtype, 16, 16, window}, lengths);
        if (!Chosen(step.Work())) continue;
        Check(step);
        const Step moved(step.shape, lengths, 99);
        EXPECT_EQ(FirstBitDifference(RunGpu(moved), RunGpu(step)), "") << "other blocks";
      }
    }
  }
}

// One sequence in as many pieces as it has 64 tokens: up to eight are folded by one form, more by another. The last piece has one token.
TEST_F(GpuMlaStream, FewPiecesAndMore) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Shape& s : {Shape{dtype}, Shape{dtype, 7, 32}, Shape{dtype, 16, 16, 200}}) {
      for (int32_t pieces = 2; pieces <= 12; ++pieces) Check(Step(s, {pieces * 64 - 63}));
      Check(Step(s, {385, 449, 513, 577, 641}));
    }
  }
}

// Shares of more tiles than the slots hold, some of which end where they would be filled again.
TEST_F(GpuMlaStream, MoreThanTheSlots) {
  for (const int32_t length : {132 * 128 - 1, 132 * 192 + 5, 132 * 320}) {
    for (const int32_t block_tokens : {16, 64}) {
      const Step step({DType::kF16, 16, block_tokens}, {length});
      if (Chosen(step.Work())) Check(step);
    }
  }
}

// Keys that grow: by little in each tile, by much in each, and down from the first; the largest score is
// another in every warp.
TEST_F(GpuMlaStream, ScoresThatGrow) {
  for (const auto& [from, to] : {std::pair{0.1f, 3.0f}, {3.0f, 0.1f}, {0.0f, 30.0f}, {30.0f, 0.0f}}) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("from {} to {}", from, to));
      const int32_t length = 500;
      Step step({dtype}, {length, length});
      for (int64_t slot = 0; slot < 2; ++slot) {
        for (int32_t t = 0; t < length; ++t) {
          TestRng keys(static_cast<uint64_t>(slot * 1000 + t));
          std::vector<float> key = keys.NormalVector(kKey);
          for (int32_t d = kValue; d < kKey; ++d)
            key[static_cast<size_t>(d)] *= from + (to - from) * static_cast<float>(t) / length;
          step.cache.Write(slot, 0, t, key, {});
        }
      }
      Check(step);
    }
  }
}

// Scores of -infinity weigh nothing, also where they fill tiles, pieces and all but the last token.
TEST_F(GpuMlaStream, ScoresOfMinusInfinity) {
  for (const int32_t length : {3, 66, 400, 5000}) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("{} {}", DTypeName(dtype), length));
      Step step({dtype}, {length});
      for (float& q : step.q) q = 1.0f;
      for (int32_t t = 0; t < length; ++t) {
        std::vector<float> key(kKey, t < length - 2 ? 5.0f : static_cast<float>(t - length + 2));
        for (int32_t d = 0; d < kKey; ++d) {
          if (d >= kValue) key[static_cast<size_t>(d)] = t < length - 2 ? -INFINITY : 0.0f;
        }
        step.cache.Write(0, 0, t, key, {});
      }
      step.KeepQueries(kValue, kKey);
      for (float v : RunGpu(step)) ASSERT_EQ(v, 0.5f);
    }
  }
}

// One graph serves steps of other lengths, and each layer leaves the plan as it found it: what was one
// block's becomes many blocks' and the other way round.
TEST_F(GpuMlaStream, AGraphFollowsTheLengths) {
  for (const int32_t window : {0, 700}) {
    Step step({DType::kF16, 16, 16, window}, {9000, 6000, 8000});
    GpuStep gpu(step);
    GpuGraph graph([&] { gpu.Enqueue(5); });
    for (const std::vector<int32_t>& lengths : {std::vector{9000, 6000, 8000},
                                                {9000, 40, 700},
                                                {20, 6000, 7999},
                                                {1, 1, 1},
                                                {600, 65, 513},
                                                {64, 9, 8000}}) {
      for (size_t i = 0; i < lengths.size(); ++i) step.spans[i].kv_len = lengths[i];
      SCOPED_TRACE(fmt::format("window {}, {} {} {}", window, lengths[0], lengths[1], lengths[2]));
      gpu.Update(step.spans);
      for (int i = 0; i < 3; ++i) graph.Enqueue();
      graph.Launch();
      const std::vector<float> got = gpu.Collect();
      const Comparison c = Compare(got, RunCpu(step), ToleranceOf(step));
      EXPECT_TRUE(c.ok) << c.message;
      EXPECT_EQ(FirstBitDifference(RunGpu(step), got), "") << "without a graph";
    }
  }
}

}  // namespace
}  // namespace cachalot
