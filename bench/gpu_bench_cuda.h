// What GPU benches need of CUDA itself: timing of captured launches and the card's read roof.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cachalot {

// Microseconds of one replay of what `enqueue` launches on the stream, captured into a graph. Median of `replays`.
double CapturedMicroseconds(void* stream, const std::function<void()>& enqueue, int replays);

// Bytes per second that a plain kernel reads device memory with, over `bytes` (far more than the L2 cache).
double ReadRoof(void* stream, const void* data, int64_t bytes, int num_sms);

}  // namespace cachalot
