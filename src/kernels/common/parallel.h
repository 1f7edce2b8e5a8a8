// Parallel loops over rows that are independent of each other: how they are cut never changes a result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/exec_context.h"

namespace cachalot {

// A parallel loop costs about a microsecond while its workers spin, so a range must be worth about this much.
inline constexpr int64_t kMinRangeNs = 2500;

// Calls fn(begin, end, thread_idx) for ranges that cover [0, count); inline when the work is too small to
// share. item_ns: a rough guess of one item's time on one thread.
template <typename Fn>
void ParallelRanges(const ExecContext& ctx, int64_t count, double item_ns, Fn&& fn) {
  if (count <= 0) return;
  const int64_t worth = static_cast<int64_t>(static_cast<double>(count) * item_ns) / kMinRangeNs;
  const int64_t num_ranges = std::min({count, worth, int64_t{4} * ctx.pool->num_threads()});
  if (num_ranges <= 1 || ctx.pool->num_threads() == 1) {
    fn(int64_t{0}, count, 0);
    return;
  }
  ctx.pool->ParallelFor(num_ranges, [&](int64_t range, int thread_idx) {
    fn(count * range / num_ranges, count * (range + 1) / num_ranges, thread_idx);
  });
}

}  // namespace cachalot
