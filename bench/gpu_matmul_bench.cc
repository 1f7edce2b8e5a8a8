// Speed of the GPU's matmuls at the shapes of real models: microseconds, per cent of the read roof measured in the same run
// (of W's bytes alone), and TFLOP/s where arithmetic decides. Each graph runs through copies of W that do not fit in L2.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "device/cuda/cuda_library.h"
#include "gpu_bench_cuda.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/moe_matmul/moe_few_cuda.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

constexpr int64_t kPoolBytes = int64_t{8} << 30;
constexpr int64_t kPatternBytes = int64_t{64} << 20;
constexpr int64_t kColdBytes = int64_t{300} << 20;  // what one graph reads at least
constexpr int kReplays = 7;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
void Check(CudaStatus status) { Check(FromCuda(status)); }

struct Bench {
  const CudaBackend* backend = nullptr;
  CudaDeviceInfo info;
  CudaExec exec;
  CudaBuffer pool, y, workspace, counters;
  double roof = 0;
  uint64_t seed = 1;

  uint64_t Random() {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 24;
  }
  template <typename T>
  CudaBuffer Upload(const std::vector<T>& values) const {
    CudaBuffer buffer = CudaBuffer::Allocate(backend, static_cast<int64_t>(values.size() * sizeof(T))).value();
    Check(backend->copy(buffer.data(), values.data(), buffer.size(), exec.stream));
    Check(backend->stream_synchronize(exec.stream));
    return buffer;
  }
  // Weights: bits that are a number near one as BF16, F16 and F32, and some code or other in every format.
  void FillPool() {
    std::vector<uint16_t> pattern(kPatternBytes / 2);
    for (uint16_t& word : pattern) word = static_cast<uint16_t>((Random() & 0x83ff) | 0x3c00);
    Check(backend->copy(pool.data(), pattern.data(), kPatternBytes, exec.stream));
    for (int64_t done = kPatternBytes; done < pool.size(); done *= 2) {
      Check(backend->copy(pool.data() + done, pool.data(), std::min(done, pool.size() - done), exec.stream));
    }
    Check(backend->stream_synchronize(exec.stream));
  }
  const float* x() const { return pool.as<float>(); }  // F32 values of the same bits
  void Reserve(int64_t bytes) {
    if (bytes > workspace.size()) workspace = CudaBuffer::Allocate(backend, bytes).value();
    exec.workspace = workspace.data();
    exec.workspace_bytes = workspace.size();
  }
};

Bench Open() {
  Bench bench;
  Result<const CudaBackend*> backend = LoadCudaBackend();
  Check(backend.status());
  bench.backend = *backend;
  Check(bench.backend->set_device(0));
  Check(bench.backend->device_info(0, &bench.info));
  Check(bench.backend->matmul_init(&bench.exec.matmul_plans));
  Check(bench.backend->stream_create(false, &bench.exec.stream));
  bench.exec.num_sms = bench.info.num_sms;
  bench.pool = CudaBuffer::Allocate(bench.backend, kPoolBytes).value();
  bench.y = CudaBuffer::Allocate(bench.backend, int64_t{2048} * 128256 * 4).value();
  bench.counters = CudaBuffer::Allocate(bench.backend, kCudaCounters * 4).value();
  Check(bench.backend->fill(bench.counters.data(), 0, bench.counters.size(), bench.exec.stream));
  bench.exec.counters = bench.counters.as<uint32_t>();
  bench.FillPool();
  bench.roof = ReadRoof(bench.exec.stream, bench.pool.data(), int64_t{4} << 30, bench.info.num_sms);
  return bench;
}

void Cell(const Bench& bench, double us, double bytes, double flops, bool arithmetic) {
  const double percent = bytes / us * 1e6 / bench.roof * 100;
  if (arithmetic) {
    std::printf(" | %7.1f %3.0fT", us, flops / us * 1e-6);
  } else {
    std::printf(" | %6.1f %3.0f%%", us, percent);
  }
  std::fflush(stdout);
}

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

// The experts of a few tokens, from the residual stream back to it, as the layers call them: matmuls of their own, and the kernel that
// does all (one launch or two, copied by cp.async or in bulk), in turn.
struct FewShape {
  const char* name;
  DType dtype;
  int32_t num_experts, top_k;
  int64_t dim, gates, shared_gates;
};
void FewTokens(Bench& bench, const FewShape& s, int rounds) {
  constexpr int kCalls = 6;
  const char* const kWays[] = {"experts=apart", "experts=one", "experts=two", "experts=one,expert_copies=bulk", "experts=two,expert_copies=bulk"};
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
      CudaMoeMatmulParams up = {.x = residual.as<float>(), .x_stride = s.dim, .x_rows = rows[call].as<int32_t>(), .expert_begin = begins[call].as<int32_t>(),
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
        Check(cuda.swiglu(bench.exec, {.gate = y, .up = y + s.gates, .x_stride = h_stride, .m = pairs, .dim = s.gates, .y = y, .y_stride = h_stride}));
      }
      const CudaMoeMatmulParams down = {.x = y, .x_stride = h_stride, .expert_begin = begins[call].as<int32_t>(), .num_experts = s.num_experts,
                                        .max_pairs = pairs, .top_k = s.top_k, .weight = matrix(s.dim, s.gates, nullptr),
                                        .expert_data = gpu_down.as<const std::byte*>(),
                                        .expert_block_scales = fp8 ? scales.as<const float*>() : nullptr, .y = products, .y_stride = s.dim};
      CudaMatmulParams shared_down = {.x = shared_h, .x_stride = s.shared_gates, .m = tokens,
                                      .weight = matrix(s.dim, s.shared_gates, shared + padded(shared_up_bytes)), .y = shared_products, .y_stride = s.dim};
      const bool together = cuda.moe_pair_fuses(bench.exec, down, shared_down);
      Check(together ? cuda.moe_pair(bench.exec, down, shared_down) : cuda.moe_matmul(bench.exec, down));
      Check(cuda.moe_combine(bench.exec, {.y = products, .y_stride = s.dim, .pair_weights = weights.as<float>(), .token_pairs = of_tokens[call].as<int32_t>(),
                                          .num_tokens = tokens, .top_k = s.top_k, .dim = s.dim, .residual = residual.as<float>(), .residual_stride = s.dim,
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
    std::printf("%-8s %lld tokens, %4.1f experts and the shared one, %6.1f MB", s.name, static_cast<long long>(tokens), active / kCalls, bytes * 1e-6);
    for (const double us : times) Cell(bench, us / kCalls, bytes, 0, false);
    std::printf("\n");
  }
}

int Few(int rounds) {
  Bench bench = Open();
  std::printf("%s, read roof %.0f GB/s. Cells: us of a layer's experts, %% of the roof for W's bytes.\n", bench.info.name, bench.roof * 1e-9);
  std::printf("apart | one launch | two | one, bulk copies | two, bulk copies\n");
  FewTokens(bench, {"V3", DType::kFP8E4M3, 256, 8, 7168, 2048, 2048}, rounds);
  FewTokens(bench, {"V2-Lite", DType::kF16, 64, 6, 2048, 1408, 2816}, rounds);
  return 0;
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

// No arguments: all matmuls; names of types: those; `experts [ROUNDS]`: a mixture's experts for a few tokens.
int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "experts") == 0) return cachalot::Few(argc > 2 ? std::atoi(argv[2]) : 9);
  return argc > 1 ? cachalot::Some(argc - 1, argv + 1) : cachalot::Main();
}
