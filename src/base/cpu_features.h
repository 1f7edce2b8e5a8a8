// What this CPU can do, and which instruction set the kernels are asked to use.
#pragma once

#include <string_view>

#include "base/status.h"

namespace cachalot {

// Ordered: a higher one includes the lower ones.
enum class Isa { kRef = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

std::string_view IsaName(Isa isa);
// "auto" gives the best one whose kernels have been measured: up to kAvx512, which wants no state of its own from the
// system. An ISA that this CPU lacks is kUnsupported.
Result<Isa> ParseIsa(std::string_view name);
// kAvx2 means AVX2 + FMA + F16C + BMI2; kAvx512 adds F, BW, VL, DQ and VNNI; kAmx adds
// AMX-TILE and AMX-INT8, for which the first call asks the system (it saves their state for this process from then
// on).
Isa BestIsa();

// Physical cores that this process may run on (affinity mask and cgroup CPU quota respected); at least 1.
int NumPhysicalCores();

}  // namespace cachalot
