// Experts beside a dense matmul, Q4_K weights.
#include "kernels/matmul/gemv_pair.cuh"

namespace cachalot {

template CudaStatus LaunchGemvPair<DType::kQ4_K>(const CudaExec&, const GemvPair&);

}  // namespace cachalot
