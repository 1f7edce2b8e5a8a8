// A mixture's experts for one to four tokens: how it was done, and how it is.
#include <algorithm>
#include <functional>
#include <numeric>

#include "gpu_matmul_bench.h"
#include "kernels/moe_matmul/moe_few_cuda.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

// The experts of a few tokens, from the residual stream back to it, as the layers call them: matmuls of their own, and the kernel that
// does all (one launch or two), in turn.
struct FewShape {
  const char* name;
  DType dtype;
  int32_t num_experts, top_k;
  int64_t dim, gates, shared_gates;
};
void FewTokens(Bench& bench, const FewShape& s, int rounds) {
  constexpr int kCalls = 6;
  const char* const kWays[] = {"experts=apart", "experts=one", "experts=two"};
  const bool fp8 = s.dtype == DType::kFP8E4M3;
  const auto row_bytes = [&](int64_t k) { return CudaRowsOf(s.dtype, k).row_bytes; };
  const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t up_bytes = padded(2 * s.gates * row_bytes(s.dim)), down_bytes = padded(s.dim * row_bytes(s.gates));
  const int64_t shared_up_bytes = 2 * s.shared_gates * row_bytes(s.dim), shared_down_bytes = s.dim * row_bytes(s.shared_gates);
  // Experts behind each other as far as the pool goes, then again from its beginning, a little further on.
  const int64_t held = (kPoolBytes - padded(shared_up_bytes + shared_down_bytes) - (1 << 20)) / (up_bytes + down_bytes);
  std::vector<const std::byte*> up_data, down_data;
  for (int32_t e = 0; e < s.num_experts; ++e) {
    const std::byte* at = bench.pool.data() + e % held * (up_bytes + down_bytes) + e / held * 65536;
    up_data.push_back(at), down_data.push_back(at + up_bytes);
  }
  const std::byte* shared = bench.pool.data() + kPoolBytes - padded(shared_up_bytes) - padded(shared_down_bytes);
  const CudaBuffer gpu_up = bench.Upload(up_data), gpu_down = bench.Upload(down_data);
  const CudaBuffer scales = bench.Upload(std::vector<const float*>(s.num_experts, bench.pool.as<float>()));
  const auto matrix = [&](int64_t n, int64_t k, const std::byte* data) {
    return CudaMatrix{.dtype = s.dtype, .n = n, .k = k, .data = data, .block_scales = fp8 ? bench.pool.as<float>() : nullptr};
  };
  for (int64_t tokens = 1; tokens <= 4; ++tokens) {
    const int64_t pairs = tokens * s.top_k;
    std::vector<CudaBuffer> begins, rows, of_tokens;
    double active = 0;
    for (int call = 0; call < kCalls; ++call) {
      std::vector<std::vector<int32_t>> of(s.num_experts);
      std::vector<int32_t> order(s.num_experts);
      std::iota(order.begin(), order.end(), 0);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int32_t j = 0; j < s.top_k; ++j) {
          std::swap(order[j], order[j + static_cast<int32_t>(bench.Random() % static_cast<uint64_t>(s.num_experts - j))]);
          of[order[j]].push_back(static_cast<int32_t>(t));
        }
      }
      std::vector<int32_t> begin, row;
      std::vector<std::vector<int32_t>> token_pairs(tokens);
      for (const auto& list : of) {
        begin.push_back(static_cast<int32_t>(row.size()));
        for (const int32_t t : list) token_pairs[t].push_back(static_cast<int32_t>(row.size())), row.push_back(t);
        active += !list.empty();
      }
      begin.push_back(static_cast<int32_t>(row.size()));
      std::vector<int32_t> flat;
      for (const auto& list : token_pairs) flat.insert(flat.end(), list.begin(), list.end());
      begins.push_back(bench.Upload(begin));
      rows.push_back(bench.Upload(row));
      of_tokens.push_back(bench.Upload(flat));
    }
    const CudaBuffer weights = bench.Upload(std::vector<float>(pairs, 0.01f)), norm = bench.Upload(std::vector<float>(s.dim, 0.5f));
    const CudaBuffer residual = bench.Upload(std::vector<float>(tokens * s.dim, 0.1f));
    float* y = bench.y.as<float>();  // h, then the shared expert's, products, the shared expert's, normed rows
    float *shared_h = y + pairs * 2 * s.gates, *products = shared_h + tokens * 2 * s.shared_gates, *shared_products = products + pairs * s.dim;
    float* normed = shared_products + tokens * s.dim;
    const CudaFusion norm_fusion = {.norm_weight = norm.as<float>(), .norm_eps = 1e-6f};
    const auto apart = [&](int call) {
      const CudaBackend& cuda = *bench.backend;
      CudaMoeMatmulParams up = {.x = residual.as<float>(), .x_stride = s.dim, .x_rows = rows[call].as<int32_t>(),
                                .expert_begin = begins[call].as<int32_t>(),
                                .num_experts = s.num_experts, .max_pairs = pairs, .top_k = s.top_k, .weight = matrix(2 * s.gates, s.dim, nullptr),
                                .expert_data = gpu_up.as<const std::byte*>(), .expert_block_scales = fp8 ? scales.as<const float*>() : nullptr,
                                .y = y, .y_stride = s.gates, .fusion = norm_fusion};
      CudaMatmulParams shared_up = {.x = residual.as<float>(), .x_stride = s.dim, .m = tokens, .weight = matrix(2 * s.shared_gates, s.dim, shared),
                                    .y = shared_h, .y_stride = s.shared_gates, .fusion = norm_fusion};
      up.fusion.glu = shared_up.fusion.glu = true;
      int64_t h_stride = s.gates;
      if (cuda.moe_pair_fuses(bench.exec, up, shared_up)) {
        Check(cuda.moe_pair(bench.exec, up, shared_up));
      } else {
        Check(cuda.rms_norm(bench.exec, {.x = residual.as<float>(), .token_stride_x = s.dim, .num_tokens = tokens, .dim = s.dim,
                                         .weight = norm.as<float>(), .eps = 1e-6f, .y = normed, .token_stride_y = s.dim}));
        h_stride = 2 * s.gates;
        up.x = normed, up.fusion = {}, up.y_stride = h_stride;
        shared_up.x = normed, shared_up.fusion = {.glu = true};
        Check(cuda.moe_matmul(bench.exec, up));
        Check(cuda.matmul(bench.exec, shared_up));
        Check(cuda.swiglu(bench.exec, {.gate = y, .up = y + s.gates, .x_stride = h_stride, .m = pairs, .dim = s.gates, .y = y,
                                       .y_stride = h_stride}));
      }
      const CudaMoeMatmulParams down = {.x = y, .x_stride = h_stride, .expert_begin = begins[call].as<int32_t>(), .num_experts = s.num_experts,
                                        .max_pairs = pairs, .top_k = s.top_k, .weight = matrix(s.dim, s.gates, nullptr),
                                        .expert_data = gpu_down.as<const std::byte*>(),
                                        .expert_block_scales = fp8 ? scales.as<const float*>() : nullptr, .y = products, .y_stride = s.dim};
      CudaMatmulParams shared_down = {.x = shared_h, .x_stride = s.shared_gates, .m = tokens,
                                      .weight = matrix(s.dim, s.shared_gates, shared + padded(shared_up_bytes)), .y = shared_products,
                                      .y_stride = s.dim};
      const bool together = cuda.moe_pair_fuses(bench.exec, down, shared_down);
      Check(together ? cuda.moe_pair(bench.exec, down, shared_down) : cuda.moe_matmul(bench.exec, down));
      Check(cuda.moe_combine(bench.exec, {.y = products, .y_stride = s.dim, .pair_weights = weights.as<float>(),
                                          .token_pairs = of_tokens[call].as<int32_t>(), .num_tokens = tokens, .top_k = s.top_k, .dim = s.dim,
                                          .residual = residual.as<float>(), .residual_stride = s.dim,
                                          .extra = together ? shared_products : nullptr, .extra_stride = s.dim}));
      if (together) return;
      shared_down.y = residual.as<float>(), shared_down.accumulate = true;
      Check(cuda.matmul(bench.exec, shared_down));
    };
    const auto few = [&](int call) {
      return CudaMoeFewParams{.x = residual.as<float>(), .x_stride = s.dim, .norm = norm_fusion, .num_tokens = tokens, .top_k = s.top_k,
                              .num_experts = s.num_experts, .expert_begin = begins[call].as<int32_t>(), .token_rows = rows[call].as<int32_t>(),
                              .pair_weights = weights.as<float>(), .up = matrix(2 * s.gates, s.dim, nullptr), .down = matrix(s.dim, s.gates, nullptr),
                              .up_data = gpu_up.as<const std::byte*>(), .down_data = gpu_down.as<const std::byte*>(),
                              .up_scales = fp8 ? scales.as<const float*>() : nullptr, .down_scales = fp8 ? scales.as<const float*>() : nullptr,
                              .shared_up = matrix(2 * s.shared_gates, s.dim, shared),
                              .shared_down = matrix(s.dim, s.shared_gates, shared + padded(shared_up_bytes)),
                              .h = reinterpret_cast<uint16_t*>(y), .shared_h = reinterpret_cast<uint16_t*>(shared_h),
                              .residual = residual.as<float>(), .residual_stride = s.dim};
    };
    bench.Reserve(int64_t{64} << 20);  // the stream kernel's scratch
    std::vector<std::function<void()>> enqueues;
    for (const char* way : kWays) {
      enqueues.emplace_back([&, way] {
        Check(bench.backend->set_tune(way));
        for (int call = 0; call < kCalls; ++call) {
          if (way == kWays[0]) {
            apart(call);
          } else {
            Check(bench.backend->moe_few(bench.exec, few(call)));
          }
        }
      });
    }
    const std::vector<double> times = CapturedInTurn(bench.exec.stream, enqueues, rounds);
    Check(bench.backend->set_tune(""));
    const double bytes = active / kCalls * static_cast<double>(up_bytes + down_bytes) + static_cast<double>(shared_up_bytes + shared_down_bytes);
    std::printf("%-8s %lld tokens, %4.1f experts and the shared one, %6.1f MB", s.name, static_cast<long long>(tokens), active / kCalls,
                bytes * 1e-6);
    for (const double us : times) Cell(bench, us / kCalls, bytes, 0, false);
    std::printf("\n");
  }
}

}  // namespace

int FewTokensBench(int rounds) {
  Bench bench = Open();
  std::printf("%s, read roof %.0f GB/s. Cells: us of a layer's experts, %% of the roof for W's bytes.\n", bench.info.name, bench.roof * 1e-9);
  std::printf("apart | one launch | two\n");
  FewTokens(bench, {"V3", DType::kFP8E4M3, 256, 8, 7168, 2048, 2048}, rounds);
  FewTokens(bench, {"V2-Lite", DType::kF16, 64, 6, 2048, 1408, 2816}, rounds);
  return 0;
}

}  // namespace cachalot
