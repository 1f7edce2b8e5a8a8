// `bench --compare-drafts --pairs`: what drafts cost that are not worth making. Short stretches of generation with and
// without them take turns in one process, and what counts are the ratios of stretches that stand side by side: whatever else
// has the machine meets both alike.
#pragma once

#include <span>
#include <string>

#include "cli/bench_run.h"

namespace cachalot {

std::string DraftPairsHead();
// Two lines of the table for each case: as many drafts as pay, at most `max_drafts`, by an engine that goes on learning, from
// one case to the next, too, and by a new one each time, both against none.
Result<std::string> CompareDraftPairs(Session& session, std::span<const BenchCase> cases, std::span<const std::string> tests,
                                      int32_t max_drafts, int32_t num_pairs, const StopOnInterrupt& stop);

}  // namespace cachalot
