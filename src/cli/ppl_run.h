// Scores windows of tokens through an engine, several at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/engine.h"
#include "tasks/ppl_windows.h"

namespace cachalot {

// done: windows that are finished; false stops the work (kCancelled).
using PplProgress = std::function<bool(int64_t done, int64_t total, const PplTotals& so_far)>;

// At most `in_flight` windows are with the engine at a time. The sum runs over the windows in their order,
// whatever order they finish in.
Result<PplTotals> ScoreWindows(Engine& engine, std::span<const PplWindow> windows, int32_t in_flight,
                               const PplProgress& progress);

}  // namespace cachalot
