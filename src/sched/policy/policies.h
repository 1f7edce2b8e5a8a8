// The table of scheduling policies, by name.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "sched/policy/scheduling_policy.h"

namespace cachalot {

// "fcfs", "priority", "fair".
Result<std::unique_ptr<SchedulingPolicy>> MakeSchedulingPolicy(std::string_view name);

}  // namespace cachalot
