// RopeAppend and RopeTable, one decode token and a prefill chunk. Bytes: q read and written, k and v read and
// written.
#include "kernels/common/bench.h"
#include "kernels/common/kv_testing.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {
namespace {

void RunAppend(benchmark::State& state, int32_t tokens, int32_t q_heads, int32_t kv_heads, int32_t dim,
               RopeStyle style) {
  TestContext ctx(BestIsa(), kBenchThreads);
  TestKv cache(
      {.dtype = DType::kF16, .num_kv_heads = kv_heads, .k_dim = dim, .v_dim = dim, .block_tokens = 64},
      {tokens});
  TestRng rng(1);
  const SeqSpan span{0, 0, tokens, tokens};
  auto q = rng.NormalVector(int64_t{tokens} * q_heads * dim);
  const auto k = rng.NormalVector(int64_t{tokens} * kv_heads * dim), v = k;
  const std::vector<float> cos(tokens * dim / 2, 1.0f), sin(tokens * dim / 2, 0.0f);
  const RopeAppendParams params{.spans = {&span, 1},
                                .cos = cos.data(),
                                .sin = sin.data(),
                                .style = style,
                                .rope_dim = dim,
                                .q = q.data(),
                                .q_token_stride = int64_t{q_heads} * dim,
                                .q_head_stride = dim,
                                .num_q_heads = q_heads,
                                .k = k.data(),
                                .k_token_stride = int64_t{kv_heads} * dim,
                                .k_head_stride = dim,
                                .v = v.data(),
                                .v_token_stride = int64_t{kv_heads} * dim,
                                .v_head_stride = dim,
                                .kv = cache.view()};
  const double bytes = 8.0 * static_cast<double>(q.size()) + 6.0 * static_cast<double>(k.size() + v.size());
  BenchAgainstRoofs(state, 0, bytes, [&] { RopeAppend(ctx, params); });
}

void RunTable(benchmark::State& state, int32_t tokens, int64_t half_dim) {
  TestContext ctx(BestIsa(), kBenchThreads);
  std::vector<int32_t> positions(tokens);
  for (int32_t i = 0; i < tokens; ++i) positions[i] = 1000 + i;
  const std::vector<float> inv_freq(half_dim, 0.3f);
  std::vector<float> cos(tokens * half_dim), sin(tokens * half_dim);
  const RopeTableParams params{.positions = positions.data(),
                               .num_tokens = tokens,
                               .inv_freq = inv_freq.data(),
                               .half_dim = half_dim,
                               .cos = cos.data(),
                               .sin = sin.data()};
  BenchAgainstRoofs(state, 0, 8.0 * static_cast<double>(cos.size()), [&] { RopeTable(ctx, params); });
}

const bool kRegistered = [] {
  for (RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
    const char* name = style == RopeStyle::kHalf ? "half" : "interleaved";
    Register(fmt::format("RopeAppend/{}/1x32+8x128", name),
             [=](benchmark::State& state) { RunAppend(state, 1, 32, 8, 128, style); });
    Register(fmt::format("RopeAppend/{}/512x32+8x128", name),
             [=](benchmark::State& state) { RunAppend(state, 512, 32, 8, 128, style); });
  }
  Register("RopeTable/1x64", [](benchmark::State& state) { RunTable(state, 1, 64); });
  Register("RopeTable/512x64", [](benchmark::State& state) { RunTable(state, 512, 64); });
  return true;
}();

}  // namespace
}  // namespace cachalot
