// Attention on the GPU: every kernel against the CPU's over ragged batches; the deterministic mode's promise; graphs.
#include <cmath>
#include <numbers>
#include <thread>

#include "gpu_testing.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

class GpuAttention : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

struct Shape {
  KvShape kv;
  int32_t num_q_heads = 1;
  int32_t window = 0;
};

struct Part {
  int32_t q_len, kv_len;
  int64_t content_id;  // which sequence this is: queries, keys and values are functions of this and the position
};

struct Mode {
  CudaMath math = CudaMath::kFast;
  bool deterministic = false;
};

std::string Name(const Shape& s) {
  return fmt::format("{} heads {}/{} k {} v {} block {} window {}", s.kv.Name(), s.num_q_heads,
                     s.kv.num_kv_heads, s.kv.k_dim, s.kv.v_dim, s.kv.block_tokens, s.window);
}

// Multiply-adds of a step, its causal half counted whole.
int64_t WorkOf(const Shape& s, const std::vector<Part>& parts) {
  int64_t work = 0;
  for (const Part& part : parts) work += int64_t{part.q_len} * part.kv_len * s.num_q_heads * (s.kv.k_dim + s.kv.v_dim);
  return work;
}

std::vector<float> QueryOf(const Shape& s, int64_t content_id, int64_t position) {
  TestRng rng(static_cast<uint64_t>(content_id * 7919 + position * 104729 + 17));
  return rng.NormalVector(int64_t{s.num_q_heads} * s.kv.k_dim);
}

// A step's data, on the host; two unused rows between the parts.
struct Step {
  Shape shape;
  std::vector<Part> parts;
  std::vector<SeqSpan> spans;
  std::vector<float> q;
  int32_t num_rows = 0;
  float scale;
  int64_t q_head, q_token, out_head, out_token;
  TestKv cache;

  static std::vector<int32_t> Lengths(const std::vector<Part>& parts) {
    std::vector<int32_t> lengths;
    for (const Part& part : parts) lengths.push_back(part.kv_len);
    return lengths;
  }

  Step(const Shape& s, const std::vector<Part>& the_parts, uint64_t table_seed = 1)
      : shape(s),
        parts(the_parts),
        scale(1 / std::sqrt(static_cast<float>(s.kv.k_dim))),
        cache(s.kv, Lengths(the_parts), table_seed) {
    std::vector<int64_t> ids;
    for (const Part& part : parts) {
      const auto slot = static_cast<int32_t>(spans.size());
      spans.push_back({slot, num_rows, part.q_len, part.kv_len});
      num_rows += part.q_len + 2;
      ids.push_back(part.content_id);
    }
    cache.FillNormal(Lengths(parts), ids);
    q_head = s.kv.k_dim + 3;
    q_token = s.num_q_heads * q_head + 1;
    out_head = s.kv.v_dim + 5;
    out_token = s.num_q_heads * out_head + 7;
    q.assign(num_rows * q_token, std::bit_cast<float>(0xffffffffu));
    for (size_t p = 0; p < parts.size(); ++p) {
      for (int32_t i = 0; i < parts[p].q_len; ++i) {
        const auto query = QueryOf(s, parts[p].content_id, parts[p].kv_len - parts[p].q_len + i);
        for (int32_t h = 0; h < s.num_q_heads; ++h) {
          std::copy_n(query.begin() + int64_t{h} * s.kv.k_dim, s.kv.k_dim,
                      q.begin() + (spans[p].q_begin + i) * q_token + h * q_head);
        }
      }
    }
  }

  // The same with its blocks elsewhere.
  Step(const Step& other, uint64_t table_seed)
      : shape(other.shape),
        parts(other.parts),
        spans(other.spans),
        q(other.q),
        num_rows(other.num_rows),
        scale(other.scale),
        q_head(other.q_head),
        q_token(other.q_token),
        out_head(other.out_head),
        out_token(other.out_token),
        cache(shape.kv, Lengths(parts), table_seed) {
    std::vector<int64_t> ids;
    for (const Part& part : parts) ids.push_back(part.content_id);
    cache.FillNormal(Lengths(parts), ids);
  }

  // Queries that BF16 holds, and after their multiplication by the scale and log2 e, too.
  void TakeQueriesOfBf16() {
    for (float& value : q) value = BF16ToF32(F32ToBF16(value));
    scale = 0.125f / std::numbers::log2e_v<float>;
  }

  AttentionParams Params() const {
    AttentionParams params;
    params.q_token_stride = q_token;
    params.q_head_stride = q_head;
    params.num_q_heads = shape.num_q_heads;
    params.scale = scale;
    params.window = shape.window;
    params.out_token_stride = out_token;
    params.out_head_stride = out_head;
    return params;
  }

  // The outputs of the spans' rows, [rows, heads, v_dim]; checks that nothing else was written.
  std::vector<float> Collect(const std::vector<float>& out, std::span<const SeqSpan> of) const {
    std::vector<float> result;
    std::vector<bool> written(out.size());
    for (const SeqSpan& span : of) {
      for (int32_t i = 0; i < span.q_len; ++i) {
        for (int32_t h = 0; h < shape.num_q_heads; ++h) {
          const int64_t at = (span.q_begin + i) * out_token + h * out_head;
          result.insert(result.end(), out.begin() + at, out.begin() + at + shape.kv.v_dim);
          std::fill_n(written.begin() + at, shape.kv.v_dim, true);
        }
      }
    }
    for (size_t i = 0; i < out.size(); ++i) {
      if (!written[i] && !IsPoison(out[i])) {
        ADD_FAILURE() << "wrote outside its rows at " << i << ": row " << i / out_token;
        break;
      }
    }
    return result;
  }
};

std::vector<float> RunCpu(const Step& step) {
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<float> out(step.num_rows * step.out_token, std::bit_cast<float>(0xffffffffu));
  const Shape& s = step.shape;
  TestContext ctx(BestIsa(), threads,
                  AttentionWorkspaceBytes(threads, s.num_q_heads, s.kv.num_kv_heads, s.kv.k_dim, s.kv.v_dim));
  AttentionParams params = step.Params();
  params.spans = step.spans;
  params.q = step.q.data();
  params.kv = step.cache.view();
  params.out = out.data();
  Attention(ctx, params);
  return step.Collect(out, step.spans);
}

// A step on the GPU: plan and attention, launched directly or from a graph.
class GpuStep {
 public:
  GpuStep(const Step& step, Mode mode)
      : step_(step),
        exec_(Gpu::Get().Exec(mode.math, mode.deterministic)),
        batch_(step.spans, step.num_rows),
        kv_(step.cache, static_cast<int64_t>(step.parts.size())),
        q_(step.q),
        out_(step.num_rows * step.out_token) {
    plan_.shape = {step.shape.num_q_heads, step.shape.kv.num_kv_heads, step.shape.kv.k_dim, step.shape.kv.v_dim,
                   step.shape.window};
    memory_ = std::make_unique<GpuArray<std::byte>>(
        Backend().attention_plan_bytes(plan_.shape, batch_.get(), exec_.num_sms));
    plan_.memory = memory_->data();
    plan_.memory_bytes = memory_->size();
  }

  void Enqueue() {
    batch_.Fill();
    GPU_EXPECT_OK(Backend().attention_plan(exec_, batch_.get(), plan_));
    AttendAgain();
  }

  // By the plan there is.
  void AttendAgain() {
    AttentionParams params = step_.Params();
    params.q = q_.data();
    params.kv = kv_.view();
    params.out = out_.data();
    if (half_ != nullptr) params.out_half = {half_->data(), HalfWidth()};
    params.upcoming[0] = upcoming_;
    GPU_EXPECT_OK(Backend().attention(exec_, batch_.get(), plan_, params));
  }

  std::vector<float> Collect(std::span<const SeqSpan> spans) {
    std::vector<float> result = step_.Collect(out_.Read(), spans);
    EXPECT_TRUE(out_.Intact() && q_.Intact() && kv_.Intact() && memory_->Intact() && batch_.Intact());
    return result;
  }

  // The output is to come as F16 too.
  void SetUpcoming(const GpuArray<std::byte>& bytes) { upcoming_ = {bytes.data(), bytes.size()}; }
  void WantHalf() { half_ = std::make_unique<GpuArray<uint16_t>>(step_.num_rows * HalfWidth()); }
  void CheckHalf() {
    const std::vector<uint16_t> half = half_->Read();
    const std::vector<float> out = out_.Read();
    for (const SeqSpan& span : step_.spans) {
      for (int64_t i = span.q_begin * HalfWidth(); i < (span.q_begin + span.q_len) * HalfWidth(); ++i) {
        ASSERT_EQ(half[static_cast<size_t>(i)], F32ToF16(out[static_cast<size_t>(i)])) << "row " << i / HalfWidth();
      }
    }
    EXPECT_TRUE(half_->Intact());
  }

  GpuBatch& batch() { return batch_; }
  void Poison() {
    out_.Poison();
    memory_->Poison();
  }

 private:
  int64_t HalfWidth() const { return int64_t{step_.shape.num_q_heads} * step_.shape.kv.v_dim; }

  const Step& step_;
  CudaExec exec_;
  GpuBatch batch_;
  GpuKv kv_;
  GpuArray<float> q_, out_;
  std::unique_ptr<GpuArray<std::byte>> memory_;
  std::unique_ptr<GpuArray<uint16_t>> half_;
  UpcomingBytes upcoming_;
  CudaAttentionPlan plan_;
};

std::vector<float> RunGpu(const Step& step, Mode mode) {
  GpuStep gpu(step, mode);
  gpu.Enqueue();
  return gpu.Collect(step.spans);
}

// Queries and weights are rounded to the cache's 16-bit type before they meet the tensor cores. Where a row may see few
// tokens the rests go in as well: always in deterministic mode, else in every kernel up to 512 tokens.
// Over a quantised cache the query is the op's own integers; the weights, and the query of E4M3 keys, are rounded to F16.
Tolerance ToleranceOf(const Shape& s, Mode mode, std::span<const Part> parts = {}) {
  if (s.kv.scheme.quantised() && mode.math == CudaMath::kFast && !mode.deterministic) return {1e-6, 0, 3e-3, 1 - 1e-6};
  if (mode.math == CudaMath::kF32 || s.kv.dtype == DType::kF32) return {1e-6, 5e-5, 5e-5, 1 - 1e-8};
  const bool few = std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.kv_len <= 512; });
  if (mode.deterministic || (few && !parts.empty())) return {1e-6, 0, 5e-4, 1 - 1e-6};
  return s.kv.dtype == DType::kBF16 ? Tolerance{1e-6, 0, 2e-2, 1 - 5e-5} : Tolerance{1e-6, 0, 3e-3, 1 - 1e-6};
}

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
  }
  return shapes;
}

const std::vector<std::vector<Part>>& Batches() {
  static const std::vector<std::vector<Part>> batches = {
      {{1, 1, 1}},
      {{1, 65, 1}, {0, 30, 2}, {1, 300, 3}, {1, 64, 4}, {1, 2, 5}, {1, 700, 6}},
      {{5, 5, 1}, {1, 257, 2}, {33, 100, 3}, {0, 0, 4}, {2, 130, 5}},
      {{1, 1500, 1}},
      {{70, 330, 1}, {1, 50, 2}},
      {{300, 300, 1}, {1, 40, 2}, {130, 1100, 3}},
  };
  return batches;
}

// Over codes each row against its own size: what is summed over 1,000 tokens is a thirtieth of what one token gives, and an error of that one
// may be as much larger. Where a mean is added to a sum of latents less the mean, the size is the sum's.
void ExpectCloseToReference(const Step& step, Mode mode, std::vector<float> got, std::vector<float> want) {
  const Shape& s = step.shape;
  const Tolerance tolerance = ToleranceOf(s, mode, step.parts);
  const auto width = static_cast<size_t>(int64_t{s.num_q_heads} * s.kv.v_dim);
  const size_t piece = s.kv.scheme.quantised() ? width : std::max<size_t>(want.size(), 1);
  ASSERT_EQ(got.size(), want.size());
  if (s.kv.value_in_key && s.kv.with_mean) {
    for (size_t i = 0; i < want.size(); ++i) {
      const float mean = step.cache.view().key_mean[i % static_cast<size_t>(s.kv.v_dim)];
      got[i] -= mean;
      want[i] -= mean;
    }
  }
  for (size_t at = 0; at < want.size(); at += piece) {
    const size_t count = std::min(piece, want.size() - at);
    const Comparison c = Compare(std::span(got).subspan(at, count), std::span(want).subspan(at, count), tolerance);
    EXPECT_TRUE(c.ok) << "from value " << at << ", " << width << " to a row: " << c.message;
    if (!c.ok) break;
  }
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
                         Shape{{DType::kF32, 1, 576, 512, 16, true, 0, scheme, 64, true}, 16},
                         Shape{{DType::kF32, 1, 576, 512, 64, true, 8, scheme, 64}, 5, 300}}) {
    for (size_t b = 0; b < batches.size(); ++b) {
      if (!Chosen(WorkOf(s, batches[b]))) continue;
      SCOPED_TRACE(fmt::format("{} batch {}", Name(s), b));
      const Step step(s, batches[b]), moved(s, batches[b], 99);
      const std::vector<float> want = RunCpu(step);
      std::vector<const char*> kernels = {""};
      if (s.kv.value_in_key) kernels = {"", "mla=stream", "mla=rounds"};
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
