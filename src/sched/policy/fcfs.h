// First come, first served within a priority. Nobody who runs gives way to a newcomer. When memory ends, the
// victim is the youngest of the lowest priority: it has lost least.
#pragma once

#include <memory>

#include "sched/policy/scheduling_policy.h"

namespace cachalot {

std::unique_ptr<SchedulingPolicy> MakeFcfsPolicy();

}  // namespace cachalot
