// Attention, decode and prefill, over the shapes of real models. The flops are those of the visible pairs.
//   cachalot_kernels_bench --benchmark_filter=Attention
//   cachalot_kernels_bench --benchmark_filter='Attention/(llama-8b|mla-16-heads)/decode/(1|8|32)x(2048|8192|32768|131072)/(BF16|fp8|k.v.)'
// 32 sequences of 131,072 tokens take 17 GB in llama-8b's BF16.
#include <cstring>

#include "kernels/attention/attention.h"
#include "kernels/common/bench.h"
#include "kernels/common/kv_testing.h"

namespace cachalot {
namespace {

struct Model {
  const char* name;
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim;
  bool mla;
};
constexpr Model kModels[] = {
    {"smollm2-135m", 9, 3, 64, 64, false},        {"llama-8b", 32, 8, 128, 128, false},
    {"qwen-7b", 28, 4, 128, 128, false},          {"mha-16x64", 16, 16, 64, 64, false},
    {"mla-16-heads", 16, 1, 576, 512, true},      {"mla-128-heads", 128, 1, 576, 512, true},
    {"mla-expanded-16", 16, 16, 192, 128, false},
};

struct Load {
  const char* name;
  int32_t num_seqs, q_len, kv_len;
};
constexpr Load kLoads[] = {
    {"decode/1x512", 1, 1, 512},           {"decode/1x4096", 1, 1, 4096},
    {"decode/8x1024", 8, 1, 1024},         {"decode/1x2048", 1, 1, 2048},
    {"decode/1x8192", 1, 1, 8192},         {"decode/1x32768", 1, 1, 32768},
    {"decode/8x2048", 8, 1, 2048},         {"decode/8x8192", 8, 1, 8192},
    {"decode/8x32768", 8, 1, 32768},       {"decode/32x2048", 32, 1, 2048},
    {"decode/32x8192", 32, 1, 8192},       {"decode/32x32768", 32, 1, 32768},
    {"decode/1x131072", 1, 1, 131072},     {"decode/8x131072", 8, 1, 131072},
    {"decode/32x131072", 32, 1, 131072},   {"prefill/512", 1, 512, 512},
    {"prefill/512-of-2048", 1, 512, 2048}, {"prefill/32-of-1024", 1, 32, 1024},
};

void Run(benchmark::State& state, const Model& model, const Load& load, DType dtype, const KvScheme& scheme) {
  const KvShape shape{.dtype = dtype,
                      .num_kv_heads = model.num_kv_heads,
                      .k_dim = model.k_dim,
                      .v_dim = model.v_dim,
                      .block_tokens = 64,
                      .value_in_key = model.mla,
                      .scheme = scheme,
                      .exact_dim = model.mla ? model.k_dim - model.v_dim : 0};
  const std::vector<int32_t> kv_lens(load.num_seqs, load.kv_len);
  const std::vector<int64_t> ids(load.num_seqs, 1);
  TestKv cache(shape, kv_lens);
  // One sequence, and copies of it: filling takes long.
  std::vector<int32_t> first(load.num_seqs, 0);
  first[0] = load.kv_len;
  cache.FillNormal(first, ids);
  const PagedKv& view = cache.view();
  for (int32_t slot = 1; slot < load.num_seqs; ++slot) {
    for (int32_t t = 0; t < load.kv_len; t += view.block_tokens) {
      std::memcpy(view.Block(slot, t), view.Block(0, t), static_cast<size_t>(view.block_bytes));
    }
  }
  std::vector<SeqSpan> spans;
  for (int32_t i = 0; i < load.num_seqs; ++i) spans.push_back({i, i * load.q_len, load.q_len, load.kv_len});
  const int64_t rows = int64_t{load.num_seqs} * load.q_len;
  const int64_t q_token = int64_t{model.num_q_heads} * model.k_dim,
                out_token = int64_t{model.num_q_heads} * model.v_dim;
  TestRng rng(1);
  const std::vector<float> q = rng.NormalVector(rows * q_token);
  std::vector<float> out(rows * out_token);
  TestContext ctx(BestIsa(), kBenchThreads);
  const AttentionParams params{.spans = spans,
                               .q = q.data(),
                               .q_token_stride = q_token,
                               .q_head_stride = model.k_dim,
                               .num_q_heads = model.num_q_heads,
                               .scale = 0.1f,
                               .kv = cache.view(),
                               .out = out.data(),
                               .out_token_stride = out_token,
                               .out_head_stride = model.v_dim};
  Attention(ctx, params);
  const double bytes = static_cast<double>(ctx.counters().kv_bytes.load());
  const double pairs =
      load.num_seqs * (load.q_len * (load.kv_len - load.q_len) + load.q_len * (load.q_len + 1) / 2.0);
  const double flops = pairs * model.num_q_heads * 2 * (model.k_dim + model.v_dim);
  BenchAgainstRoofs(state, flops, bytes, [&] { Attention(ctx, params); });
}

const bool kRegistered = [] {
  for (const Model& model : kModels) {
    for (const Load& load : kLoads) {
      for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
        const std::string name = fmt::format("Attention/{}/{}/{}", model.name, load.name, DTypeName(dtype));
        Register(name, [=](benchmark::State& state) { Run(state, model, load, dtype, {}); });
      }
      for (const KvFormat& format : KvFormats()) {
        const std::string name = fmt::format("Attention/{}/{}/{}", model.name, load.name, format.name);
        Register(name, [=](benchmark::State& state) { Run(state, model, load, DType::kF32, format.scheme); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace cachalot
