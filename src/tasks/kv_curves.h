// Results of kv_simulate.h for people and programs: table, CSV and a picture of the miss-ratio curves. The
// same results give the same bytes.
#pragma once

#include <string>
#include <vector>

#include "tasks/kv_simulate.h"

namespace cachalot {

// policy,blocks,lookups,hits,hit_ratio,miss_ratio,evictions
std::string CurvesCsv(const std::vector<KvSimulation>& results);
// Hit ratios: a row for each policy, a column for each size.
std::string CurvesTable(const std::vector<KvSimulation>& results);
// Miss ratios over the size, on a logarithmic axis.
std::string CurvesSvg(const std::vector<KvSimulation>& results, const std::string& title);

}  // namespace cachalot
