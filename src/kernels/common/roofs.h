// What this machine can do at most, measured in the run that it is compared with: for benches.
#pragma once

#include "base/cpu_features.h"

namespace cachalot {

// Reading memory that lies in no cache, all threads together; best of several.
double ReadRoofGbps(int num_threads);
// F32 multiply-adds (two flops each) from registers, all threads together; best of several. 0 without AVX2.
double FmaRoofGflops(int num_threads, Isa isa = Isa::kAvx2);

}  // namespace cachalot
