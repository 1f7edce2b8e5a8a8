// What GPU benches need of CUDA itself: timing of captured launches and the card's read roof.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace cachalot {

// Microseconds of one replay of what `enqueue` launches on the stream, captured into a graph. Median of `replays`.
double CapturedMicroseconds(void* stream, const std::function<void()>& enqueue, int replays);
// The same of several, replayed in turn, round after round, so that the card's clocks are the same for all.
std::vector<double> CapturedInTurn(void* stream, const std::vector<std::function<void()>>& enqueues, int rounds);

// Bytes per second that a plain kernel reads device memory with, over `bytes` (far more than the L2 cache).
double ReadRoof(void* stream, const void* data, int64_t bytes, int num_sms);

}  // namespace cachalot
