// MLA's expanded form on the GPU: a mixed step's spans parted in two, latents gathered, keys and values assembled, attention
// over the result. The matmul of kv_b is left out: its products are random numbers, for the GPU and for the reference.
#include <cmath>
#include <thread>

#include "gpu_testing.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/mla_expand/mla_expand_cuda.h"

namespace cachalot {
namespace {

class GpuMla : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

struct Shape {
  DType dtype;
  int32_t lora, rope, nope, v, heads;

  int32_t latent() const { return lora + rope; }
  int32_t key() const { return nope + rope; }
};

constexpr int32_t kBlockTokens = 64;
constexpr int64_t kTableStride = 4;

// A mixed step: sequences in slots of no order, decode beside prefill.
const std::vector<SeqSpan>& Spans() {
  static const std::vector<SeqSpan> spans = {{3, 0, 1, 70}, {0, 1, 40, 40}, {5, 0, 0, 0},
                                             {1, 43, 33, 150}, {2, 77, 1, 65}, {4, 80, 5, 20}};
  return spans;
}
constexpr int32_t kRows = 86;
std::vector<int32_t> SlotLengths() {
  std::vector<int32_t> lengths(6);
  for (const SeqSpan& span : Spans()) lengths[span.slot] = span.kv_len;
  return lengths;
}

// What mla_split says, on the device.
struct GpuSplit {
  explicit GpuSplit(int64_t num_rows)
      : max_rows(num_rows), absorbed(8), expanded(8), row_begins(8), block_begins(8), rows(num_rows), tables(8 * kTableStride) {}

  CudaMlaSplitParams Params(int32_t min_q_len) const {
    return {.min_q_len = min_q_len,
            .max_rows = max_rows,
            .block_tokens = kBlockTokens,
            .table_stride = kTableStride,
            .absorbed = absorbed.data(),
            .expanded = expanded.data(),
            .row_begins = row_begins.data(),
            .block_begins = block_begins.data(),
            .rows = rows.data(),
            .block_tables = tables.data()};
  }
  bool Intact() const {
    return absorbed.Intact() && expanded.Intact() && row_begins.Intact() && block_begins.Intact() && rows.Intact() &&
           tables.Intact();
  }

  int64_t max_rows;
  GpuArray<SeqSpan> absorbed, expanded;
  GpuArray<int64_t> row_begins;
  GpuArray<int32_t> block_begins;
  GpuArray<CudaMlaRow> rows;
  GpuArray<int32_t> tables;
};

// Which spans are expanded for a bound on rows, and every row of the compact arrays: (span, position), (-1, 0) past the end.
struct Expected {
  std::vector<bool> expanded;
  std::vector<std::pair<int32_t, int32_t>> rows;
};
Expected Expect(int32_t min_q_len, int64_t max_rows) {
  Expected expected;
  bool full = false;
  for (const SeqSpan& span : Spans()) {
    const bool wanted = span.q_len > 0 && span.q_len >= min_q_len;
    full |= wanted && static_cast<int64_t>(expected.rows.size()) + span.kv_len > max_rows;
    expected.expanded.push_back(wanted && !full);
    for (int32_t t = 0; wanted && !full && t < span.kv_len; ++t) {
      expected.rows.emplace_back(static_cast<int32_t>(&span - Spans().data()), t);
    }
  }
  expected.rows.resize(max_rows, {-1, 0});
  return expected;
}

TEST_F(GpuMla, SplitPartsTheSpansAndLaysOutTheScratch) {
  GpuBatch batch(Spans(), kRows);
  for (const auto& [min_q_len, max_rows] : {std::pair{8, 190}, {8, 200}, {8, 189}, {8, 10}, {8, 0}, {2, 210}, {100, 50}, {1, 400}}) {
    SCOPED_TRACE(fmt::format("from {} tokens, {} rows", min_q_len, max_rows));
    const GpuSplit split(max_rows);
    GPU_OK(Backend().mla_split(Gpu::Get().Exec(), batch.get(), split.Params(min_q_len)));
    const Expected expected = Expect(min_q_len, max_rows);
    const auto absorbed = split.absorbed.Read(), expanded = split.expanded.Read();
    const auto tables = split.tables.Read();
    for (size_t i = 0; i < Spans().size(); ++i) {
      const SeqSpan& span = Spans()[i];
      EXPECT_EQ(absorbed[i].q_len, expected.expanded[i] ? 0 : span.q_len) << i;
      EXPECT_EQ(expanded[i].q_len, expected.expanded[i] ? span.q_len : 0) << i;
      EXPECT_EQ(absorbed[i].slot, span.slot);
      EXPECT_EQ(expanded[i].slot, static_cast<int32_t>(i));
      for (const auto& part : {absorbed[i], expanded[i]}) {
        EXPECT_EQ(part.q_begin, span.q_begin);
        EXPECT_EQ(part.kv_len, span.kv_len);
      }
    }
    const std::vector<CudaMlaRow> rows = split.rows.Read();
    std::vector<bool> used(CudaMlaScratchBlocks(max_rows, static_cast<int32_t>(Spans().size()), kBlockTokens));
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto [span, position] = expected.rows[r];
      ASSERT_EQ(rows[r].slot, span < 0 ? -1 : Spans()[span].slot) << r;
      if (span < 0) continue;
      ASSERT_EQ(rows[r].position, position) << r;
      ASSERT_EQ(rows[r].block, tables[span * kTableStride + position / kBlockTokens]) << r;
      ASSERT_LT(rows[r].block, static_cast<int32_t>(used.size())) << r;
      if (position % kBlockTokens != 0) continue;
      ASSERT_FALSE(used[rows[r].block]) << "block " << rows[r].block << " has two owners";
      used[rows[r].block] = true;
    }
    EXPECT_TRUE(split.Intact() && batch.Intact());
  }
}

// Many spans: more than the one block that scans them has threads.
TEST_F(GpuMla, SplitsThousandsOfSpans) {
  std::vector<SeqSpan> spans;
  int64_t total = 0;
  for (int32_t i = 0; i < 2500; ++i) {
    spans.push_back({i, i, i % 3 == 0 ? 4 : 1, 4 + i % 7});
    if (i % 3 == 0) total += 4 + i % 7;
  }
  const GpuBatch batch(spans, 1, 0);
  const GpuArray<SeqSpan> absorbed(2500), expanded(2500);
  const GpuArray<int64_t> row_begins(2500);
  const GpuArray<int32_t> block_begins(2500), tables(2500);
  const GpuArray<CudaMlaRow> rows(total + 9);
  GPU_OK(Backend().mla_split(Gpu::Get().Exec(), batch.get(),
                             {.min_q_len = 2, .max_rows = total + 9, .block_tokens = 16, .table_stride = 1,
                              .absorbed = absorbed.data(), .expanded = expanded.data(), .row_begins = row_begins.data(),
                              .block_begins = block_begins.data(), .rows = rows.data(), .block_tables = tables.data()}));
  const std::vector<CudaMlaRow> got = rows.Read();
  size_t r = 0;
  for (int32_t i = 0; i < 2500; i += 3) {
    for (int32_t t = 0; t < spans[i].kv_len; ++t, ++r) {
      ASSERT_EQ(got[r].slot, i);
      ASSERT_EQ(got[r].position, t);
      ASSERT_EQ(got[r].block, i / 3);
    }
  }
  for (; r < got.size(); ++r) ASSERT_EQ(got[r].slot, -1);
}

// Latents out of a quantised cache are what its codes stand for, bit for bit.
TEST_F(GpuMla, GathersCodes) {
  for (const KvFormat& format : KvFormats()) {
    for (const bool mean : {false, true}) {
      SCOPED_TRACE(fmt::format("{} mean {}", format.name, mean));
      TestKv cache({DType::kF32, 1, 576, 512, 16, true, 0, format.scheme, 64, mean, mean ? 16 : 0}, SlotLengths());
      cache.FillNormal(SlotLengths(), std::vector<int64_t>{1, 2, 3, 4, 5, 6});
      const GpuKv kv(cache, 6);
      GpuBatch batch(Spans(), kRows);
      const int64_t max_rows = 200;
      const GpuSplit split(max_rows);
      GPU_OK(Backend().mla_split(Gpu::Get().Exec(), batch.get(), split.Params(8)));
      const GpuArray<float> latents(max_rows * 576);
      GPU_OK(Backend().mla_gather(Gpu::Get().Exec(), {.latent = kv.view(), .rows = split.rows.data(), .num_rows = max_rows, .dst = latents.data()}));
      const std::vector<float> got = latents.Read();
      const Expected expected = Expect(8, max_rows);
      for (int64_t r = 0; r < max_rows; ++r) {
        const auto [span, position] = expected.rows[static_cast<size_t>(r)];
        const std::vector<float> want = span < 0 ? std::vector<float>(576, 0.0f) : cache.Key(Spans()[static_cast<size_t>(span)].slot, 0, position);
        ASSERT_EQ(FirstBitDifference(std::span<const float>(got.data() + r * 576, 576), want), "") << "row " << r;
      }
      EXPECT_TRUE(latents.Intact() && kv.Intact());
    }
  }
}

void RunStep(const Shape& s, int64_t spare_rows) {
  const int32_t num_spans = static_cast<int32_t>(Spans().size());
  constexpr int32_t kMinQ = 8;
  const int64_t max_rows = 190 + spare_rows;
  const Expected expected = Expect(kMinQ, max_rows);
  TestKv cache({s.dtype, 1, s.latent(), s.lora, 16, true}, SlotLengths());
  cache.FillNormal(SlotLengths(), std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  const GpuKv kv(cache, 6);
  GpuBatch batch(Spans(), kRows);
  batch.Fill();
  const GpuSplit split(max_rows);
  const CudaExec exec = Gpu::Get().Exec();
  GPU_OK(Backend().mla_split(exec, batch.get(), split.Params(kMinQ)));

  const GpuArray<float> latents(max_rows * s.latent());
  GPU_OK(Backend().mla_gather(
      exec, {.latent = kv.view(), .rows = split.rows.data(), .num_rows = max_rows, .dst = latents.data()}));
  std::vector<float> want;
  for (const auto& [span, position] : expected.rows) {
    const std::vector<float> key =
        span < 0 ? std::vector<float>(s.latent(), 0.0f) : cache.Key(Spans()[span].slot, 0, position);
    want.insert(want.end(), key.begin(), key.end());
  }
  ASSERT_EQ(FirstBitDifference(latents.Read(), want), "");

  TestRng rng(3);
  const int64_t product_row = int64_t{s.heads} * (s.nope + s.v);
  const std::vector<float> products = rng.NormalVector(max_rows * product_row);
  const GpuArray<float> gpu_products(products);
  PagedKv out;
  out.dtype = s.dtype;
  out.block_tokens = kBlockTokens;
  out.num_kv_heads = s.heads;
  out.k_dim = s.key();
  out.v_dim = s.v;
  out.k_head_stride = int64_t{kBlockTokens} * out.k_dim;
  out.v_offset = out.k_head_stride * s.heads;
  out.v_head_stride = int64_t{kBlockTokens} * out.v_dim;
  out.v_token_stride = out.v_dim;
  out.block_bytes = DTypeBytes(s.dtype, int64_t{kBlockTokens} * s.heads * (out.k_dim + out.v_dim));
  const GpuArray<std::byte> scratch(CudaMlaScratchBlocks(max_rows, num_spans, kBlockTokens) * out.block_bytes);
  out.data = scratch.data();
  out.block_tables = split.tables.data();
  out.table_stride = kTableStride;
  const CudaMlaAssembleParams assemble = {.latents = latents.data(),
                                          .products = gpu_products.data(),
                                          .rows = split.rows.data(),
                                          .num_rows = max_rows,
                                          .lora = s.lora,
                                          .num_heads = s.heads,
                                          .nope_dim = s.nope,
                                          .rope_dim = s.rope,
                                          .v_dim = s.v,
                                          .out = out};
  GPU_OK(Backend().mla_assemble(exec, assemble));

  // The same keys and values in a cache on the host.
  std::vector<int32_t> lengths;
  std::vector<SeqSpan> spans;
  for (int32_t i = 0; i < num_spans; ++i) {
    lengths.push_back(expected.expanded[i] ? Spans()[i].kv_len : 0);
    SeqSpan span = Spans()[i];
    span.slot = i;
    if (expected.expanded[i]) spans.push_back(span);
  }
  TestKv full({s.dtype, s.heads, s.key(), s.v, 16}, lengths);
  for (int64_t r = 0; r < max_rows; ++r) {
    const auto [span, position] = expected.rows[r];
    for (int32_t h = 0; span >= 0 && h < s.heads; ++h) {
      const float* product = products.data() + r * product_row + int64_t{h} * (s.nope + s.v);
      std::vector<float> key(product, product + s.nope);
      key.insert(key.end(), want.begin() + r * s.latent() + s.lora, want.begin() + (r + 1) * s.latent());
      full.Write(span, h, position, key, std::span<const float>(product + s.nope, s.v));
    }
  }
  const std::vector<float> queries = rng.NormalVector(int64_t{kRows} * s.heads * s.key());
  AttentionParams params;
  params.q_token_stride = int64_t{s.heads} * s.key();
  params.q_head_stride = s.key();
  params.num_q_heads = s.heads;
  params.scale = 1 / std::sqrt(static_cast<float>(s.key()));
  params.out_token_stride = int64_t{s.heads} * s.v;
  params.out_head_stride = s.v;

  std::vector<float> reference(int64_t{kRows} * s.heads * s.v, std::bit_cast<float>(0xffffffffu));
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  TestContext ctx(BestIsa(), threads, AttentionWorkspaceBytes(threads, s.heads, s.heads, s.key(), s.v));
  AttentionParams on_host = params;
  on_host.spans = spans;
  on_host.q = queries.data();
  on_host.kv = full.view();
  on_host.out = reference.data();
  Attention(ctx, on_host);

  const GpuArray<float> gpu_queries(queries);
  GpuArray<float> gpu_out(static_cast<int64_t>(reference.size()));
  CudaBatch expanded_batch = batch.get();
  expanded_batch.spans = split.expanded.data();
  CudaAttentionPlan plan;
  plan.shape = {s.heads, s.heads, s.key(), s.v, 0};
  const GpuArray<std::byte> memory(Backend().attention_plan_bytes(plan.shape, expanded_batch, exec.num_sms));
  plan.memory = memory.data();
  plan.memory_bytes = memory.size();
  params.q = gpu_queries.data();
  params.kv = out;
  params.out = gpu_out.data();
  GPU_OK(Backend().attention_plan(exec, expanded_batch, plan));
  GPU_OK(Backend().attention(exec, expanded_batch, plan, params));
  const std::vector<float> got = gpu_out.Read();
  // Rows of other spans are not touched.
  std::vector<float> got_rows, want_rows;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(IsPoison(got[i]), IsPoison(reference[i])) << "row " << i / params.out_token_stride;
    if (IsPoison(reference[i])) continue;
    got_rows.push_back(got[i]);
    want_rows.push_back(reference[i]);
  }
  const Tolerance tolerance = s.dtype == DType::kF32 ? Tolerance{1e-6, 5e-5, 5e-5, 1 - 1e-8} : Tolerance{1e-6, 0, 5e-4, 1 - 1e-6};
  const Comparison c = Compare(got_rows, want_rows, tolerance);
  EXPECT_TRUE(c.ok) << c.message;
  EXPECT_TRUE(split.Intact() && latents.Intact() && scratch.Intact() && memory.Intact() && gpu_out.Intact() && kv.Intact());
}

TEST_F(GpuMla, ExpandedPrefillBesideDecode) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape& s : {Shape{dtype, 48, 16, 24, 20, 3}, Shape{dtype, 45, 15, 23, 21, 2}, Shape{dtype, 512, 64, 128, 128, 4}}) {
      for (int64_t spare_rows : {0, 37}) {
        SCOPED_TRACE(fmt::format("{} lora {} nope {} v {} spare {}", DTypeName(dtype), s.lora, s.nope, s.v, spare_rows));
        RunStep(s, spare_rows);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Absorbed attention over the spans that were not expanded touches their rows alone, in every kernel.
TEST_F(GpuMla, AbsorbedRowsAlone) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape s = {dtype, 512, 64, 128, 128, 16};
    TestKv cache({dtype, 1, s.latent(), s.lora, 16, true}, SlotLengths());
    cache.FillNormal(SlotLengths(), std::vector<int64_t>{1, 2, 3, 4, 5, 6});
    const GpuKv kv(cache, 6);
    GpuBatch batch(Spans(), kRows);
    batch.Fill();
    const GpuSplit split(190);
    const CudaExec exec = Gpu::Get().Exec();
    GPU_OK(Backend().mla_split(exec, batch.get(), split.Params(8)));
    TestRng rng(4);
    const GpuArray<float> q(rng.NormalVector(int64_t{kRows} * s.heads * s.latent()));
    GpuArray<float> out(int64_t{kRows} * s.heads * s.lora);
    CudaBatch absorbed = batch.get();
    absorbed.spans = split.absorbed.data();
    absorbed.max_q_len = 7;
    CudaAttentionPlan plan;
    plan.shape = {s.heads, 1, s.latent(), s.lora, 0};
    const GpuArray<std::byte> memory(Backend().attention_plan_bytes(plan.shape, absorbed, exec.num_sms));
    plan.memory = memory.data();
    plan.memory_bytes = memory.size();
    AttentionParams params;
    params.q = q.data();
    params.q_token_stride = int64_t{s.heads} * s.latent();
    params.q_head_stride = s.latent();
    params.num_q_heads = s.heads;
    params.kv = kv.view();
    params.out = out.data();
    params.out_token_stride = int64_t{s.heads} * s.lora;
    params.out_head_stride = s.lora;
    GPU_OK(Backend().attention_plan(exec, absorbed, plan));
    GPU_OK(Backend().attention(exec, absorbed, plan, params));
    const std::vector<float> got = out.Read();
    std::vector<bool> rows(kRows);
    for (const SeqSpan& span : Spans()) {
      for (int32_t i = 0; span.q_len < 8 && i < span.q_len; ++i) rows[span.q_begin + i] = true;
    }
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / static_cast<size_t>(params.out_token_stride);
      ASSERT_EQ(IsPoison(got[i]), !rows[row]) << DTypeName(dtype) << " row " << row;
    }
  }
}

}  // namespace
}  // namespace cachalot
