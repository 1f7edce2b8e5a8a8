// Experts beside a dense matmul, Q6_K weights.
#include "kernels/matmul/gemv_pair.cuh"

namespace cachalot {

template CudaStatus LaunchGemvPair<DType::kQ6_K>(const CudaExec&, const GemvPair&);

}  // namespace cachalot
