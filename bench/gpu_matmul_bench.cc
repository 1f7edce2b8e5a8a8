// Speed of the GPU's matmuls at the shapes of real models: microseconds, per cent of the read roof measured in the same run
// (of W's bytes alone), and TFLOP/s where arithmetic decides. Each graph runs through copies of W that do not fit in L2.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "gpu_matmul_bench.h"

namespace cachalot {
namespace {

CudaMatrix MatrixAt(const Bench& bench, DType dtype, int64_t n, int64_t k, int64_t offset) {
  return {.dtype = dtype, .n = n, .k = k, .data = bench.pool.data() + offset,
          .block_scales = dtype == DType::kFP8E4M3 ? bench.pool.as<float>() : nullptr};
}

void Dense(Bench& bench, DType dtype, int64_t n, int64_t k) {
  const int64_t bytes = n * CudaRowsOf(dtype, k).row_bytes, step = (bytes + 255) / 256 * 256;
  const int64_t copies = std::clamp<int64_t>((kColdBytes + bytes - 1) / bytes, 2, std::min<int64_t>(40, kPoolBytes / step));
  std::printf("%-8s %6lld x %5lld %6.1f MB", DTypeName(dtype), static_cast<long long>(n), static_cast<long long>(k),
              static_cast<double>(bytes) * 1e-6);
  for (int64_t m : {1, 4, 8, 16, 32, 64, 128, 136, 512, 2048}) {
    CudaMatmulParams params = {.x = bench.x(), .x_stride = k, .m = m, .weight = MatrixAt(bench, dtype, n, k, 0),
                               .y = bench.y.as<float>(), .y_stride = n};
    bench.Reserve(bench.backend->matmul_workspace_bytes(params, bench.info.num_sms));
    const int64_t calls = m >= 512 ? std::min<int64_t>(copies, 4) : copies;
    const double us = CapturedMicroseconds(bench.exec.stream, [&] {
      for (int64_t i = 0; i < calls; ++i) {
        params.weight = MatrixAt(bench, dtype, n, k, i * step);
        Check(bench.backend->matmul(bench.exec, params));
      }
    }, kReplays) / static_cast<double>(calls);
    Cell(bench, us, static_cast<double>(bytes), 2.0 * static_cast<double>(m * n) * static_cast<double>(k), m > 64);
  }
  std::printf("\n");
}

void Heads(Bench& bench, int32_t heads, int64_t n, int64_t k) {
  const int64_t bytes = heads * n * k * 2, copies = std::clamp<int64_t>(kColdBytes / bytes, 2, 40);
  std::printf("heads    %3d x %3lld x %3lld %6.1f MB", heads, static_cast<long long>(n), static_cast<long long>(k),
              static_cast<double>(bytes) * 1e-6);
  for (int64_t m : {1, 4, 8, 16, 32, 64, 128, 512}) {
    CudaHeadMatmulParams params = {.x = bench.x(), .x_stride = heads * k, .x_head_stride = k, .m = m, .num_heads = heads, .n = n,
                                   .weight = MatrixAt(bench, DType::kF16, heads * n, k, 0), .y = bench.y.as<float>(),
                                   .y_stride = heads * n, .y_head_stride = n};
    bench.Reserve(bench.backend->head_matmul_workspace_bytes(params, bench.info.num_sms));
    const double us = CapturedMicroseconds(bench.exec.stream, [&] {
      for (int64_t i = 0; i < copies; ++i) {
        params.weight.data = bench.pool.data() + i * bytes;
        Check(bench.backend->head_matmul(bench.exec, params));
      }
    }, kReplays) / static_cast<double>(copies);
    Cell(bench, us, static_cast<double>(bytes), 2.0 * static_cast<double>(m * heads * n) * static_cast<double>(k), m > 64);
  }
  std::printf("\n");
}

// Tokens go to top_k experts of num_experts at random, anew at each call of a graph.
void Experts(Bench& bench, DType dtype, int32_t num_experts, int32_t top_k, int64_t n, int64_t k, bool gather) {
  constexpr int kCalls = 8;
  const int64_t bytes = n * CudaRowsOf(dtype, k).row_bytes, step = (bytes + 255) / 256 * 256;
  const int64_t held = std::min<int64_t>(num_experts, kPoolBytes / step);
  std::printf("%-8s top %d of %3d, %5lld x %5lld", DTypeName(dtype), top_k, num_experts, static_cast<long long>(n),
              static_cast<long long>(k));
  std::vector<const std::byte*> data;
  for (int32_t e = 0; e < num_experts; ++e) data.push_back(bench.pool.data() + e % held * step);
  const CudaBuffer gpu_data = bench.Upload(data);
  const CudaBuffer scales = bench.Upload(std::vector<const float*>(num_experts, bench.pool.as<float>()));
  for (int64_t tokens : {1, 4, 16, 64, 512, 2048}) {
    std::vector<CudaBuffer> begins, rows;
    double active = 0;
    for (int call = 0; call < kCalls; ++call) {
      std::vector<std::vector<int32_t>> of(num_experts);
      std::vector<int32_t> order(num_experts);
      std::iota(order.begin(), order.end(), 0);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int32_t j = 0; j < top_k; ++j) {
          std::swap(order[j], order[j + static_cast<int32_t>(bench.Random() % static_cast<uint64_t>(num_experts - j))]);
          of[order[j]].push_back(static_cast<int32_t>(t));
        }
      }
      std::vector<int32_t> begin, row;
      for (const auto& list : of) {
        begin.push_back(static_cast<int32_t>(row.size()));
        row.insert(row.end(), list.begin(), list.end());
        active += !list.empty();
      }
      begin.push_back(static_cast<int32_t>(row.size()));
      begins.push_back(bench.Upload(begin));
      rows.push_back(bench.Upload(row));
    }
    CudaMoeMatmulParams params = {.x = bench.x(), .x_stride = k, .num_experts = num_experts, .max_pairs = tokens * top_k,
                                  .top_k = top_k, .weight = MatrixAt(bench, dtype, n, k, 0),
                                  .expert_data = gpu_data.as<const std::byte*>(),
                                  .expert_block_scales = dtype == DType::kFP8E4M3 ? scales.as<const float*>() : nullptr,
                                  .y = bench.y.as<float>(), .y_stride = n};
    bench.Reserve(bench.backend->moe_matmul_workspace_bytes(params, bench.info.num_sms));
    const double us = CapturedMicroseconds(bench.exec.stream, [&] {
      for (int call = 0; call < kCalls; ++call) {
        params.expert_begin = begins[call].as<int32_t>();
        params.x_rows = gather ? rows[call].as<int32_t>() : nullptr;
        Check(bench.backend->moe_matmul(bench.exec, params));
      }
    }, kReplays) / kCalls;
    Cell(bench, us, active / kCalls * static_cast<double>(bytes),
         2.0 * static_cast<double>(tokens * top_k) * static_cast<double>(n) * static_cast<double>(k), tokens > 512);
  }
  std::printf("\n");
}

// Types that are named on the command line: real dense shapes and V2-Lite's experts.
int Some(int count, char** names) {
  std::vector<DType> types;
  for (int i = 0; i < count; ++i) {
    const Result<DType> dtype = ParseDType(names[i]);
    Check(dtype.status());
    if (CudaRowsOf(*dtype, 256).row_bytes == 0) {
      std::fprintf(stderr, "no kernel reads %s\n", names[i]);
      return 1;
    }
    types.push_back(*dtype);
  }
  Bench bench = Open();
  std::printf("%s, read roof %.0f GB/s. Cells: us, %% of the roof for W's bytes, or TFLOP/s.\n", bench.info.name, bench.roof * 1e-9);
  for (DType dtype : types) {
    std::printf("dense, m = 1 4 8 16 32 64 128 136 512 2048\n");
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}}) {
      Dense(bench, dtype, n, k);
    }
    std::printf("experts, tokens = 1 4 16 64 512 2048\n");
    Experts(bench, dtype, 64, 6, 2816, 2048, true);
    Experts(bench, dtype, 64, 6, 2048, 1536, false);
  }
  return 0;
}

int Main() {
  Bench bench = Open();
  std::printf("%s, read roof %.0f GB/s. Cells: us, %% of the roof for W's bytes, or TFLOP/s.\n", bench.info.name,
              bench.roof * 1e-9);
  std::printf("dense, m = 1 4 8 16 32 64 128 136 512 2048\n");
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kFP8E4M3, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ6_K}) {
    const bool all = dtype != DType::kBF16 && dtype != DType::kQ4_1;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}}) {
      if (all || (n == 28672)) Dense(bench, dtype, n, k);
    }
  }
  Dense(bench, DType::kF32, 256, 7168);  // a router
  std::printf("heads of F16, m = 1 4 8 16 32 64 128 512\n");
  for (int32_t heads : {16, 128}) {
    Heads(bench, heads, 512, 128);
    Heads(bench, heads, 128, 512);
  }
  std::printf("experts, tokens = 1 4 16 64 512 2048\n");
  Experts(bench, DType::kF16, 64, 6, 2816, 2048, true);
  Experts(bench, DType::kF16, 64, 6, 2048, 1408, false);
  Experts(bench, DType::kQ8_0, 64, 6, 2816, 2048, true);
  Experts(bench, DType::kFP8E4M3, 256, 8, 4096, 7168, true);
  Experts(bench, DType::kFP8E4M3, 256, 8, 7168, 2048, false);
  return 0;
}

}  // namespace
}  // namespace cachalot

// No arguments: all matmuls; names of types: those; `experts [ROUNDS]`: a mixture's experts for a few tokens;
// `chain [ROUNDS]`: a layer's matmuls of one row.
int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "experts") == 0) return cachalot::FewTokensBench(argc > 2 ? std::atoi(argv[2]) : 9);
  if (argc > 1 && std::strcmp(argv[1], "chain") == 0) return cachalot::ChainBench(argc > 2 ? std::atoi(argv[2]) : 9);
  return argc > 1 ? cachalot::Some(argc - 1, argv + 1) : cachalot::Main();
}
