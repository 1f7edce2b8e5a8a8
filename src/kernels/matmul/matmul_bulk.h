// The kernel of bulk copies as the matmuls' dispatch (matmul_sm80.cu) sees it: dense 16-bit weights on sm_90, 9 to 128 rows of x,
// converted; no counters, no partial sums in memory.
#pragma once

#include "kernels/matmul/bulk_cut.h"
#include "kernels/matmul/matmul_launch.h"

namespace cachalot {

CudaStatus LaunchBulkF16(const CudaExec& exec, const MatmulProblem& problem, const BulkCut& cut);
CudaStatus LaunchBulkBF16(const CudaExec& exec, const MatmulProblem& problem, const BulkCut& cut);

}  // namespace cachalot
