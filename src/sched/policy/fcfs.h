// First come, first served; a level of priority is worth kPriorityUs of waiting, so that no stream of better
// requests shuts the others out for ever. Nobody who runs gives way to a newcomer. When memory ends, the victim
// is the last in this order: it has lost least.
#pragma once

#include <cstdint>
#include <memory>

#include "sched/policy/scheduling_policy.h"

namespace cachalot {

inline constexpr int64_t kPriorityUs = 30'000'000;

std::unique_ptr<SchedulingPolicy> MakeFcfsPolicy();

}  // namespace cachalot
