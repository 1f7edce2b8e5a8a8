// How fast this machine's threads read main memory: the roof that decoding is measured against.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"

namespace cachalot {

// Bytes a second over `total_bytes` of memory of its own (several times the last-level cache to mean
// anything), the best of `rounds` passes as one stream a thread and as four; `pool`'s threads share the work.
Result<double> MeasureReadBandwidth(ThreadPool& pool, int64_t total_bytes, int rounds);

}  // namespace cachalot
