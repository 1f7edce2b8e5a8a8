// How fast attention is on this card: one line a case, best of several graphs. Disabled as tests go; run it with
// --gtest_also_run_disabled_tests --gtest_filter='*Speed*'.
#include <algorithm>
#include <cmath>

#include "gpu_testing.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"

namespace cachalot {
namespace {

class GpuAttentionSpeed : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

struct Case {
  const char* name;
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim;
  int32_t num_seqs, q_len, kv_len;
};

// Layers that a graph runs one after the other, each over a cache of its own: no layer finds its bytes in L2.
constexpr int kLayers = 8;

void Measure(const Case& c) {
  constexpr int32_t kBlockTokens = 64;
  const bool mla = c.num_kv_heads == 1 && c.k_dim != c.v_dim;
  const int64_t token_values = int64_t{c.num_kv_heads} * (mla ? c.k_dim : c.k_dim + c.v_dim);
  const int32_t blocks_a_seq = (c.kv_len + kBlockTokens - 1) / kBlockTokens;
  const int32_t num_blocks = blocks_a_seq * c.num_seqs;
  const int64_t block_bytes = token_values * kBlockTokens * 2;
  TestRng rng(1);
  const std::vector<int32_t> tables = rng.Permutation(num_blocks);
  std::vector<SeqSpan> spans;
  for (int32_t i = 0; i < c.num_seqs; ++i) spans.push_back({i, i * c.q_len, c.q_len, c.kv_len});
  const int32_t rows = c.num_seqs * c.q_len;
  GpuBatch batch(spans, rows, 0);
  const GpuArray<int32_t> gpu_tables(tables);
  const GpuBytes cache(block_bytes * num_blocks * kLayers);
  GPU_OK(Backend().fill(cache.data(), 0x3c, cache.size_bytes(), Gpu::Get().stream));  // small equal numbers
  const GpuArray<float> q(rng.NormalVector(int64_t{rows} * c.num_q_heads * c.k_dim));
  const GpuArray<float> out(int64_t{rows} * c.num_q_heads * c.v_dim);
  const CudaExec exec = Gpu::Get().Exec();
  CudaAttentionPlan plan;
  plan.shape = {c.num_q_heads, c.num_kv_heads, c.k_dim, c.v_dim, 0};
  const GpuArray<std::byte> memory(Backend().attention_plan_bytes(plan.shape, batch.get(), exec.num_sms));
  plan.memory = memory.data();
  plan.memory_bytes = memory.size();
  AttentionParams params;
  params.q = q.data();
  params.q_token_stride = int64_t{c.num_q_heads} * c.k_dim;
  params.q_head_stride = c.k_dim;
  params.num_q_heads = c.num_q_heads;
  params.scale = 1 / std::sqrt(static_cast<float>(c.k_dim));
  params.out = out.data();
  params.out_token_stride = int64_t{c.num_q_heads} * c.v_dim;
  params.out_head_stride = c.v_dim;
  params.kv.dtype = DType::kBF16;
  params.kv.block_tokens = kBlockTokens;
  params.kv.num_kv_heads = c.num_kv_heads;
  params.kv.k_dim = c.k_dim;
  params.kv.v_dim = c.v_dim;
  params.kv.block_bytes = block_bytes;
  params.kv.k_head_stride = int64_t{kBlockTokens} * c.k_dim;
  params.kv.v_offset = mla ? 0 : params.kv.k_head_stride * c.num_kv_heads;
  params.kv.v_head_stride = int64_t{kBlockTokens} * (mla ? c.k_dim : c.v_dim);
  params.kv.v_token_stride = mla ? c.k_dim : c.v_dim;
  params.kv.block_tables = gpu_tables.data();
  params.kv.table_stride = blocks_a_seq;
  batch.Fill();
  const auto enqueue = [&](bool with_attention) {
    GPU_EXPECT_OK(Backend().attention_plan(exec, batch.get(), plan));
    for (int layer = 0; with_attention && layer < kLayers; ++layer) {
      params.kv.data = cache.data() + layer * block_bytes * num_blocks;
      GPU_EXPECT_OK(Backend().attention(exec, batch.get(), plan, params));
    }
  };
  void *begin = nullptr, *end = nullptr;
  GPU_OK(Backend().event_create(true, &begin));
  GPU_OK(Backend().event_create(true, &end));
  float best_ms[2] = {1e9f, 1e9f};
  for (int which = 0; which < 2; ++which) {
    enqueue(which == 1);  // loads the kernels
    Gpu::Get().Synchronize();
    GpuGraph graph([&] { enqueue(which == 1); });
    for (int run = 0; run < 12; ++run) {
      GPU_OK(Backend().event_record(begin, Gpu::Get().stream));
      graph.Enqueue();
      GPU_OK(Backend().event_record(end, Gpu::Get().stream));
      Gpu::Get().Synchronize();
      float ms = 0;
      GPU_OK(Backend().event_elapsed_ms(begin, end, &ms));
      best_ms[which] = std::min(best_ms[which], ms);
    }
  }
  GPU_OK(Backend().event_destroy(begin));
  GPU_OK(Backend().event_destroy(end));
  const double layer_us = (best_ms[1] - best_ms[0]) * 1e3 / kLayers;
  const double bytes = 2.0 * static_cast<double>(token_values) * c.kv_len * c.num_seqs;
  const double pairs = static_cast<double>(c.num_seqs) * c.q_len * (c.kv_len - (c.q_len - 1) / 2.0);
  const double flops = 2.0 * pairs * c.num_q_heads * (c.k_dim + c.v_dim);
  std::printf("%-26s %3d x %4d of %6d tokens: %9.1f us a layer, %7.1f GB/s, %6.1f TFLOP/s; plan and launch %.1f us\n",
              c.name, c.num_seqs, c.q_len, c.kv_len, layer_us, bytes / layer_us / 1e3, flops / layer_us / 1e6,
              best_ms[0] * 1e3);
}

TEST_F(GpuAttentionSpeed, DISABLED_DecodeAndPrefill) {
  const Case cases[] = {
      {"Llama-8B decode", 32, 8, 128, 128, 1, 1, 2048},
      {"Llama-8B decode", 32, 8, 128, 128, 16, 1, 2048},
      {"Llama-8B decode", 32, 8, 128, 128, 64, 1, 2048},
      {"Llama-8B decode", 32, 8, 128, 128, 1, 1, 131072},
      {"Llama-8B decode", 32, 8, 128, 128, 16, 1, 32768},
      {"SmolLM2 decode", 9, 3, 64, 64, 16, 1, 2048},
      {"heads of 256 decode", 16, 8, 256, 256, 16, 1, 2048},
      {"V2-Lite MLA decode", 16, 1, 576, 512, 1, 1, 2048},
      {"V2-Lite MLA decode", 16, 1, 576, 512, 16, 1, 8192},
      {"V2-Lite MLA decode", 16, 1, 576, 512, 64, 1, 2048},
      {"V2-Lite MLA decode", 16, 1, 576, 512, 64, 1, 8192},
      {"V2-Lite MLA decode", 16, 1, 576, 512, 1, 1, 131072},
      {"V3 MLA decode", 128, 1, 576, 512, 1, 1, 2048},
      {"V3 MLA decode", 128, 1, 576, 512, 16, 1, 8192},
      {"Llama-8B prefill", 32, 8, 128, 128, 1, 2048, 8192},
      {"Llama-8B prefill", 32, 8, 128, 128, 1, 8192, 8192},
      {"Llama-8B prefill", 32, 8, 128, 128, 4, 2048, 2048},
      {"Llama-8B prefill", 32, 8, 128, 128, 16, 512, 512},
      {"V2-Lite expanded prefill", 16, 16, 192, 128, 1, 2048, 8192},
  };
  for (const Case& c : cases) Measure(c);
}

}  // namespace
}  // namespace cachalot
