// Matmuls that follow each other: which calls the kernel takes (chain.cuh).
#include <algorithm>

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/matmul/chain.h"
#include "kernels/matmul/matmul_launch.h"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {
namespace {

// False: the kernel does not take it.
bool MakeOp(const CudaMatmulParams& params, ChainOp* out) {
  const CudaMatrix& w = params.weight;
  const CudaTune& tune = CurrentTune();
  const bool norm = params.fusion.norm_weight != nullptr;
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  if (params.m != 1 || w.n <= 0 || w.k <= 0 || w.k > (norm ? kChainMostNormK : kChainMostK) || w.k % kChainRunValues != 0 ||
      CheckMatmul(params) != nullptr || !whole(w.data) || !whole(params.x) || !whole(params.fusion.norm_weight) || params.y_half.data != nullptr) {
    return false;
  }
  if ((norm && (tune.fuse & CudaTune::kFuseNorm) == 0) ||
      (params.fusion.glu && ((tune.fuse & CudaTune::kFuseGlu) == 0 || w.n % 2 != 0 || params.bias != nullptr || params.accumulate))) {
    return false;
  }
  const CudaRowLayout layout = CudaRowsOf(w.dtype, w.k);
  *out = {.w = w.data, .rows = static_cast<int>(params.fusion.glu ? w.n / 2 : w.n), .k = static_cast<int>(w.k),
          .row_bytes = static_cast<int>(layout.row_bytes), .x = params.x, .norm_weight = params.fusion.norm_weight,
          .norm_eps = params.fusion.norm_eps, .bias = params.bias, .y = params.y, .accumulate = params.accumulate, .glu = params.fusion.glu};
  out->code_bytes = static_cast<int>(w.k / kChainRunValues) * kChainRunBytes;
  out->records_at = static_cast<int>(layout.scales_offset);
  return true;
}

bool MakeChain(const CudaExec& exec, const CudaMatmulChain& chain, ChainProblem* out) {
  if (chain.count <= 0 || chain.count > kChainMost) return false;
  const DType dtype = chain.ops[0].weight.dtype;
  if (CurrentTune().chain == CudaTune::Chain::kNone || !ChainReads(dtype) || exec.deterministic || WantsF32(exec, dtype) || !CurrentCard().RunsHopperCode() ||
      exec.counters == nullptr) {
    return false;
  }
  ChainProblem p = {.count = chain.count, .counters = exec.counters};
  int64_t most_k = 0;
  for (int i = 0; i < chain.count; ++i) {
    if (chain.ops[i].weight.dtype != dtype || !ChainFits(chain.ops[i].weight.n, exec.num_sms) || !MakeOp(chain.ops[i], &p.ops[i])) return false;
    most_k = std::max(most_k, chain.ops[i].weight.k);
  }
  p.layout = LayChainOut(most_k, std::min(kChainMostSharedBytes, CurrentCard().shared_bytes - kChainOwnSharedBytes));
  if (p.layout.stages == 0) return false;
  *out = p;
  return true;
}

}  // namespace

bool CudaMatmulChains(const CudaExec& exec, const CudaMatmulChain& chain) {
  ChainProblem p;
  return MakeChain(exec, chain, &p);
}

CudaStatus CudaRunMatmulChain(const CudaExec& exec, const CudaMatmulChain& chain) {
  ChainProblem p;
  if (!MakeChain(exec, chain, &p)) {
    return CudaFail(CudaFault::kInvalid, "matmul_chain of %d is not one launch (the first of m %lld, n %lld, k %lld)", chain.count,
                    static_cast<long long>(chain.ops[0].m), static_cast<long long>(chain.ops[0].weight.n),
                    static_cast<long long>(chain.ops[0].weight.k));
  }
  return LaunchChain<DType::kQ4_K>(exec, p);
}

}  // namespace cachalot
