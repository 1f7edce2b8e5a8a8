// A conversation in a file: a note (its text) and the KV blocks of its tokens, in the format of the disk tier
// (kv/kv_segment.h). The note is the first record and readable whatever model wrote it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/engine.h"
#include "runtime/executor.h"
#include "sched/scheduler.h"

namespace cachalot {

// As Engine has them.
Status SaveKvSession(const std::string& path, const std::string& note, std::span<const int32_t> tokens,
                     StepExecutor* executor, const Scheduler& scheduler);
Result<Engine::LoadedSession> LoadKvSession(const std::string& path, StepExecutor* executor, Scheduler* scheduler);

}  // namespace cachalot
