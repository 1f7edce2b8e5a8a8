// Matmul against the roofs of the machine it runs on: what two threads can read from memory and how many F32
// multiply-adds they can do, both measured in the same run. Weights cycle through copies that do not fit the
// caches together, as the layers of a model do.
//   cachalot_kernels_bench --benchmark_filter=Matmul/Q4_1
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <chrono>
#include <deque>

#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

constexpr int kThreads = 2;
constexpr int64_t kColdBytes = int64_t{96} << 20;

double Seconds(auto&& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Best of several, as are the figures that people compare with.
double ReadRoofGbps() {
  ThreadPool pool(kThreads);
  Buffer buffer = Buffer::Allocate(int64_t{256} << 20).value();
  const int64_t words = buffer.size() / 8, chunk = words / 64;
  std::vector<int64_t> sums(64);
  pool.ParallelFor(64, [&](int64_t i, int) { std::fill_n(buffer.as<int64_t>() + i * chunk, chunk, i); });
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double seconds = Seconds([&] {
      pool.ParallelFor(64, [&](int64_t i, int) {
        const int64_t* p = buffer.as<int64_t>() + i * chunk;
        int64_t sum[8] = {};
        for (int64_t j = 0; j + 8 <= chunk; j += 8) {
          for (int u = 0; u < 8; ++u) sum[u] += p[j + u];
        }
        for (int64_t s : sum) sums[i] += s;
      });
    });
    benchmark::DoNotOptimize(sums.data());
    best = std::max(best, static_cast<double>(buffer.size()) / seconds * 1e-9);
  }
  return best;
}

__attribute__((target("avx2,fma"))) void FmaLoop(int64_t count, float* out) {
  __m256 sum[12];
  for (int j = 0; j < 12; ++j) sum[j] = _mm256_set1_ps(static_cast<float>(j));
  const __m256 a = _mm256_set1_ps(0.999f + *out), b = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, b);
  }
  for (int j = 0; j < 12; ++j) _mm256_storeu_ps(out, sum[j]);
}

double FmaRoofGflops() {
  ThreadPool pool(kThreads);
  constexpr int64_t kCount = 200'000;
  double best = 0;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const double seconds = Seconds([&] {
      pool.ParallelFor(kThreads, [&](int64_t, int) {
        float out[8] = {};
        FmaLoop(kCount, out);
        benchmark::DoNotOptimize(out[0]);
      });
    });
    best = std::max(best, kThreads * static_cast<double>(kCount) * 12 * 16 / seconds * 1e-9);
  }
  return best;
}

struct Shape {
  int64_t k, n;
};
// SmolLM2-135M's fused qkv, gate+up, down, head; the 2,048-wide models' qkv, gate+up (one expert's and a
// dense one's).
constexpr Shape kShapes[] = {{576, 960},   {576, 3072},  {1536, 576}, {576, 49152},
                             {2048, 3072}, {2048, 2816}, {8192, 2048}};
constexpr DType kTypes[] = {DType::kF32,  DType::kF16,    DType::kBF16, DType::kFP8E4M3,
                            DType::kQ8_0, DType::kQ4_0,   DType::kQ4_1, DType::kQ5_0,
                            DType::kQ5_1, DType::kIQ4_NL, DType::kQ2_K, DType::kQ3_K,
                            DType::kQ4_K, DType::kQ5_K,   DType::kQ6_K, DType::kIQ4_XS};

const std::deque<PackedMatrix>& Weights(DType dtype, const Shape& shape) {
  static DType held_type;
  static Shape held_shape{};
  static std::deque<PackedMatrix> held;
  if (held.empty() || held_type != dtype || held_shape.k != shape.k || held_shape.n != shape.n) {
    held.clear();
    const TestWeight weight(dtype, shape.n, shape.k, 1);
    do {
      held.push_back(weight.Pack(BestIsa()));
    } while (static_cast<int64_t>(held.size()) * held[0].data_bytes < kColdBytes);
    held_type = dtype;
    held_shape = shape;
  }
  return held;
}

void MatmulBench(benchmark::State& state, DType dtype, Shape shape, int64_t m) {
  static const double read_roof = ReadRoofGbps(), fma_roof = FmaRoofGflops();
  const auto& weights = Weights(dtype, shape);
  TestContext ctx(BestIsa(), kThreads);
  TestRng rng(2);
  const std::vector<float> x = rng.NormalVector(m * shape.k);
  std::vector<float> y(m * shape.n);
  size_t next = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) {
    Matmul(ctx, {.x = x.data(),
                 .x_stride = shape.k,
                 .m = m,
                 .weight = &weights[next],
                 .y = y.data(),
                 .y_stride = shape.n});
    next = (next + 1) % weights.size();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double calls_per_ns = static_cast<double>(state.iterations()) / seconds * 1e-9;
  const double gbps = static_cast<double>(weights[0].data_bytes) * calls_per_ns;
  const double gflops = 2.0 * static_cast<double>(m * shape.n * shape.k) * calls_per_ns;
  state.counters["GB/s"] = gbps;
  state.counters["GFLOP/s"] = gflops;
  state.counters["%read"] = gbps * 100 / read_roof;
  state.counters["%fma"] = gflops * 100 / fma_roof;
}

const bool kRegistered = [] {
  for (DType dtype : kTypes) {
    for (const Shape& shape : kShapes) {
      for (int64_t m : {1, 8, 32, 512}) {
        const std::string name = fmt::format("Matmul/{}/{}x{}/m:{}", DTypeName(dtype), shape.k, shape.n, m);
        benchmark::RegisterBenchmark(name.c_str(), MatmulBench, dtype, shape, m)->UseRealTime();
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace cachalot
