// What the kernels' benches share: the best time of a call, set against the machine's roofs as measured in
// this run. Counters: best_us; GFLOP/s and GB/s at that time and both as per cent of the roofs. Data that
// fits L3 is read from there: its GB/s may exceed the roof.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "kernels/common/roofs.h"

namespace cachalot {

inline constexpr int kBenchThreads = 2;

template <typename Fn>
void BenchAgainstRoofs(benchmark::State& state, double flops, double bytes, Fn&& fn) {
  static const double fma_roof = FmaRoofGflops(kBenchThreads), read_roof = ReadRoofGbps(kBenchThreads);
  fn();
  double best = 1e9;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  state.counters["best_us"] = best * 1e6;
  if (flops > 0) {
    state.counters["GFLOP/s"] = flops / best * 1e-9;
    if (fma_roof > 0) state.counters["%fma"] = 100 * flops / best * 1e-9 / fma_roof;
  }
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["%read"] = 100 * bytes / best * 1e-9 / read_roof;
}

inline void Register(const std::string& name, const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMicrosecond)->UseRealTime()->MinTime(0.3);
}

}  // namespace cachalot
