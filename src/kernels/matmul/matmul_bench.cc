// Matmul against the roofs of the machine it runs on: what the threads can read from memory and how many F32
// multiply-adds they can do, both measured in the same run. Weights cycle through copies that do not fit the
// caches together, as the layers of a model do.
//   cachalot_kernels_bench --benchmark_filter='Matmul/avx512/Q4_1/2048x2816/m:8/t:1'
#include <benchmark/benchmark.h>

#include <chrono>
#include <deque>
#include <map>

#include "kernels/common/roofs.h"
#include "kernels/matmul/matmul_testing.h"

namespace cachalot {
namespace {

constexpr int64_t kColdBytes = int64_t{96} << 20;

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

// The same panels for every instruction set above kRef.
const std::deque<PackedMatrix>& Weights(DType dtype, const Shape& shape) {
  static DType held_type;
  static Shape held_shape{};
  static std::deque<PackedMatrix> held;
  if (held.empty() || held_type != dtype || held_shape.k != shape.k || held_shape.n != shape.n) {
    held.clear();
    ThreadPool pool(NumPhysicalCores());
    const TestWeight weight(dtype, shape.n, shape.k, 1, &pool);
    do {
      held.push_back(weight.Pack(BestIsa()));
    } while (static_cast<int64_t>(held.size()) * held[0].data_bytes < kColdBytes);
    held_type = dtype;
    held_shape = shape;
  }
  return held;
}

struct Roofs {
  double read_gbps, fma_gflops;
};
const Roofs& RoofsOf(Isa isa, int threads) {
  static std::map<std::pair<Isa, int>, Roofs> measured;
  const auto [it, is_new] = measured.try_emplace({isa, threads});
  if (is_new) it->second = {ReadRoofGbps(threads), FmaRoofGflops(threads, isa)};
  return it->second;
}

void MatmulBench(benchmark::State& state, Isa isa, DType dtype, Shape shape, int64_t m, int threads) {
  const auto [read_roof, fma_roof] = RoofsOf(isa, threads);
  const auto& weights = Weights(dtype, shape);
  TestContext ctx(isa, threads);
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

// Instruction sets innermost: they run on the same weights, one after the other.
const bool kRegistered = [] {
  for (DType dtype : kTypes) {
    for (const Shape& shape : kShapes) {
      for (int64_t m : {1, 8, 32, 512}) {
        for (int threads : {1, 2}) {
          for (Isa isa : TestableIsas()) {
            if (isa == Isa::kRef) continue;
            const std::string name = fmt::format("Matmul/{}/{}/{}x{}/m:{}/t:{}", IsaName(isa),
                                                 DTypeName(dtype), shape.k, shape.n, m, threads);
            benchmark::RegisterBenchmark(name.c_str(), MatmulBench, isa, dtype, shape, m, threads)
                ->UseRealTime();
          }
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace cachalot
