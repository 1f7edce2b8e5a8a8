#include "tasks/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "tensor/buffer.h"

namespace cachalot {
namespace {

// Sums of kStreams parts of the block, a cache line of each in turn; eight sums, so that the adds never wait for each
// other. What a core reads best differs: one stream or several (Zen 3: four, by 10 to 30 %).
template <int kStreams>
uint64_t SumBlock(const uint64_t* words, int64_t count) {
  constexpr int kLine = 8;
  uint64_t sums[kLine] = {};
  const int64_t stream = count / kStreams;
  for (int64_t i = 0; i < stream; i += kLine) {
    for (int s = 0; s < kStreams; ++s) {
      for (int lane = 0; lane < kLine; ++lane) sums[lane] += words[s * stream + i + lane];
    }
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
  for (int round = 0; round < 2 * rounds; ++round) {
    const auto sum_block = round % 2 == 0 ? SumBlock<1> : SumBlock<4>;
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(num_blocks, [&](int64_t block, int) {
      const auto* words = reinterpret_cast<const uint64_t*>(buffer.data() + block * kBlockBytes);
      sink.fetch_add(sum_block(words, kBlockBytes / 8), std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(num_blocks * kBlockBytes) / seconds.count());
  }
  // The sum is the same for every pass; reading it keeps the loops alive.
  return sink.load() == 1 ? 0.0 : best;
}

}  // namespace cachalot
