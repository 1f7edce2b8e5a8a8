// Everything about a request that can be found wrong before it is queued, but for its size
// (Scheduler::CanAdd).
#pragma once

#include "base/status.h"
#include "engine/engine.h"

namespace cachalot {

// Whether Request::text may be false.
bool CanLeaveText(const Request& request);
Status CheckRequest(const Request& request, const ExecutorInfo& info, bool has_tokenizer);

}  // namespace cachalot
