#include "kernels/common/roofs.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cachalot {
namespace {

constexpr int kRepeats = 12;

template <typename Fn>
double Seconds(Fn&& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float MultiplyAdds(int64_t count, float seed) {
  __m256 sum[12];
  for (int i = 0; i < 12; ++i) sum[i] = _mm256_set1_ps(seed + static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(seed);
  for (int64_t n = 0; n < count; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sum[i] = _mm256_fmadd_ps(sum[i], factor, term);
  }
  for (int i = 1; i < 12; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  return _mm256_cvtss_f32(sum[0]);
}

__attribute__((target("avx512f"))) float MultiplyAdds512(int64_t count, float seed) {
  __m512 sum[12];
  for (int i = 0; i < 12; ++i) sum[i] = _mm512_set1_ps(seed + static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(seed);
  for (int64_t n = 0; n < count; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sum[i] = _mm512_fmadd_ps(sum[i], factor, term);
  }
  for (int i = 1; i < 12; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  return _mm512_cvtss_f32(sum[0]);
}
#endif

}  // namespace

double ReadRoofGbps(int num_threads) {
  constexpr int64_t kBytes = int64_t{192} << 20, kParts = 64, kWords = kBytes / 8 / kParts;
  ThreadPool pool(num_threads);
  Buffer buffer = Buffer::Allocate(kBytes).value();
  std::vector<uint64_t> sums(kParts);
  pool.ParallelFor(
      kParts, [&](int64_t part, int) { std::fill_n(buffer.as<uint64_t>() + part * kWords, kWords, part); });
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double seconds = Seconds([&] {
      pool.ParallelFor(kParts, [&](int64_t part, int) {
        const uint64_t* words = buffer.as<uint64_t>() + part * kWords;
        uint64_t sum[8] = {};
        const int64_t streams = repeat % 2 == 0 ? 1 : 4, stream = kWords / streams;  // what is better differs
        for (int64_t i = 0; i < stream; i += 8) {
          for (int64_t s = 0; s < streams; ++s) {
            for (int j = 0; j < 8; ++j) sum[j] += words[s * stream + i + j];
          }
        }
        for (uint64_t s : sum) sums[part] += s;
      });
    });
    best = std::max(best, static_cast<double>(kBytes) / seconds * 1e-9);
  }
  volatile uint64_t used = sums[0];  // or the loops would be removed
  static_cast<void>(used);
  return best;
}

double FmaRoofGflops(int num_threads, Isa isa) {
#if defined(__x86_64__)
  if (isa < Isa::kAvx2 || isa > BestIsa()) return 0;
  const bool wide = isa >= Isa::kAvx512;
  constexpr int64_t kCount = 300'000;
  ThreadPool pool(num_threads);
  volatile float used = 0;
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double seconds = Seconds([&] {
      pool.ParallelFor(num_threads, [&](int64_t part, int) {
        const float seed = static_cast<float>(part);
        used = wide ? MultiplyAdds512(kCount, seed) : MultiplyAdds(kCount, seed);
      });
    });
    best = std::max(best, num_threads * static_cast<double>(kCount) * 12 * (wide ? 32 : 16) / seconds * 1e-9);
  }
  return best;
#else
  return 0;
#endif
}

}  // namespace cachalot
