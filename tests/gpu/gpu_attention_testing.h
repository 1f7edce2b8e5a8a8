// Steps of attention on the GPU for the tests of its kernels: a step's data on the host, the same step on the CPU and on the GPU, and how far apart
// they may be.
#pragma once

#include <cmath>
#include <thread>

#include "gpu_testing.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "tensor/float_convert.h"

namespace cachalot {

class GpuAttention : public GpuTest {};

inline const CudaBackend& Backend() { return *Gpu::Get().backend; }

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

inline std::string Name(const Shape& s) {
  return fmt::format("{} heads {}/{} k {} v {} block {} window {}", s.kv.Name(), s.num_q_heads,
                     s.kv.num_kv_heads, s.kv.k_dim, s.kv.v_dim, s.kv.block_tokens, s.window);
}

// Multiply-adds of a step, its causal half counted whole.
inline int64_t WorkOf(const Shape& s, const std::vector<Part>& parts) {
  int64_t work = 0;
  for (const Part& part : parts) work += int64_t{part.q_len} * part.kv_len * s.num_q_heads * (s.kv.k_dim + s.kv.v_dim);
  return work;
}

inline std::vector<float> QueryOf(const Shape& s, int64_t content_id, int64_t position) {
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

inline std::vector<float> RunCpu(const Step& step) {
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

inline std::vector<float> RunGpu(const Step& step, Mode mode) {
  GpuStep gpu(step, mode);
  gpu.Enqueue();
  return gpu.Collect(step.spans);
}

// Queries and weights are rounded to the cache's 16-bit type before they meet the tensor cores. Where a row may see few
// tokens the rests go in as well: always in deterministic mode, else in every kernel up to 512 tokens.
// Over a quantised cache the query is the op's own integers; the weights, and the query of E4M3 keys, are rounded to F16.
inline Tolerance ToleranceOf(const Shape& s, Mode mode, std::span<const Part> parts = {}) {
  if (s.kv.scheme.quantised() && mode.math == CudaMath::kFast && !mode.deterministic) return {1e-6, 0, 3e-3, 1 - 1e-6};
  if (mode.math == CudaMath::kF32 || s.kv.dtype == DType::kF32) return {1e-6, 5e-5, 5e-5, 1 - 1e-8};
  const bool few = std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.kv_len <= 512; });
  if (mode.deterministic || (few && !parts.empty())) return {1e-6, 0, 5e-4, 1 - 1e-6};
  return s.kv.dtype == DType::kBF16 ? Tolerance{1e-6, 0, 2e-2, 1 - 5e-5} : Tolerance{1e-6, 0, 3e-3, 1 - 1e-6};
}

inline const std::vector<std::vector<Part>>& Batches() {
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

// Over codes each head of each row against its own size: what is summed over 1,000 tokens is a thirtieth of what one token gives, and an error of
// that one may be as much larger. Where a mean is added to a sum of latents less the mean, the size is the sum's.
inline void ExpectCloseToReference(const Step& step, Mode mode, std::vector<float> got, std::vector<float> want) {
  const Shape& s = step.shape;
  const Tolerance tolerance = ToleranceOf(s, mode, step.parts);
  const auto width = static_cast<size_t>(int64_t{s.num_q_heads} * s.kv.v_dim);
  const size_t piece = s.kv.scheme.quantised() ? static_cast<size_t>(s.kv.v_dim) : std::max<size_t>(want.size(), 1);
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

}  // namespace cachalot
