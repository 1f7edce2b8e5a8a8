// What an engine's statistics are made of.
#pragma once

#include "engine/engine.h"
#include "sched/scheduler.h"

namespace cachalot {

// All that the scheduler counts.
void ReadStats(const Scheduler& scheduler, EngineStats* stats);
// The step is counted in stats->steps already.
void CountExperts(const StepResult& result, int32_t num_experts, EngineStats* stats);

}  // namespace cachalot
