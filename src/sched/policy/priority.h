// By priority, then by deadline, then by arrival; and a newcomer that finds no place takes that of a running
// sequence of lower priority.
#pragma once

#include <memory>

#include "sched/policy/scheduling_policy.h"

namespace cachalot {

std::unique_ptr<SchedulingPolicy> MakePriorityPolicy();

}  // namespace cachalot
