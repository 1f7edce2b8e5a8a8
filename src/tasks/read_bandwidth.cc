#include "tasks/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "tensor/buffer.h"

namespace cachalot {
namespace {

// Four streams within a block and four sums each, so that the adds never wait for each other.
uint64_t SumBlock(const uint64_t* words, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i < count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum += lane;
  return sum;
}

}  // namespace

Result<double> MeasureReadBandwidth(ThreadPool& pool, int64_t total_bytes, int rounds) {
  constexpr int64_t kBlockBytes = int64_t{1} << 20;
  const int64_t num_blocks = std::max<int64_t>(1, total_bytes / kBlockBytes);
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(num_blocks * kBlockBytes));
  // Pages that were never written are one shared page of zeros.
  pool.ParallelFor(num_blocks, [&](int64_t block, int) {
    std::memset(buffer.data() + block * kBlockBytes, static_cast<int>(block & 0xff), kBlockBytes);
  });
  std::atomic<uint64_t> sink{0};
  double best = 0.0;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(num_blocks, [&](int64_t block, int) {
      const auto* words = reinterpret_cast<const uint64_t*>(buffer.data() + block * kBlockBytes);
      sink.fetch_add(SumBlock(words, kBlockBytes / 8), std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(num_blocks * kBlockBytes) / seconds.count());
  }
  // The sum is the same for every pass; reading it keeps the loops alive.
  return sink.load() == 1 ? 0.0 : best;
}

}  // namespace cachalot
