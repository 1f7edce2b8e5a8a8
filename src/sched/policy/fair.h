// Fair among tenants: whoever was served least, by weight, is next; a level of priority is worth kPriorityTokens
// of that. Start-time fair queueing: a sequence gets its place at arrival, where its tenant's work so far ends (or now, if the tenant
// was idle: nobody saves up), so the order never changes. Work is counted in tokens; what will be generated
// is guessed at arrival and set right when the sequence leaves.
#pragma once

#include <memory>

#include "sched/policy/scheduling_policy.h"

namespace cachalot {

inline constexpr double kPriorityTokens = 65536;

std::unique_ptr<SchedulingPolicy> MakeFairPolicy();

}  // namespace cachalot
