// The experts' kernel for few tokens, weights of FP8.
#include "kernels/moe_matmul/moe_few.cuh"

namespace cachalot {

template CudaStatus LaunchFew<DType::kFP8E4M3>(const CudaExec&, const FewProblem&);

}  // namespace cachalot
