// The experts' kernel for few tokens, weights of F16.
#include "kernels/moe_matmul/moe_few.cuh"

namespace cachalot {

template CudaStatus LaunchFew<DType::kF16>(const CudaExec&, const FewProblem&);

}  // namespace cachalot
