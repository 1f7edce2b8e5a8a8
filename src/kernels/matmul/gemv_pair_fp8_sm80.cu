// Experts beside a dense matmul, FP8E4M3 weights.
#include "kernels/matmul/gemv_pair.cuh"

namespace cachalot {

template CudaStatus LaunchGemvPair<DType::kFP8E4M3>(const CudaExec&, const GemvPair&);

}  // namespace cachalot
