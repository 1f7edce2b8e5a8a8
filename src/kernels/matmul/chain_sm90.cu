// Matmuls that follow each other: which calls the kernel takes (chain.cuh).
#include <algorithm>
#include <functional>

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
  if (params.m != 1 || w.n <= 0 || w.k <= 0 || w.k > kChainMostK || w.k % kChainRunValues != 0 ||
      CheckMatmul(params) != nullptr || !whole(w.data) || !whole(params.x) ||
      !whole(params.fusion.norm_weight) || params.y_half.data != nullptr) {
    return false;
  }
  if ((norm && (tune.fuse & CudaTune::kFuseNorm) == 0) ||
      (params.fusion.glu && ((tune.fuse & CudaTune::kFuseGlu) == 0 || w.n % 2 != 0 ||
                             params.bias != nullptr || params.accumulate))) {
    return false;
  }
  const CudaRowLayout layout = CudaRowsOf(w.dtype, w.k);
  *out = {.w = w.data,
          .rows = static_cast<int>(params.fusion.glu ? w.n / 2 : w.n),
          .k = static_cast<int>(w.k),
          .row_bytes = static_cast<int>(layout.row_bytes),
          .x = params.x,
          .norm_weight = params.fusion.norm_weight,
          .norm_eps = params.fusion.norm_eps,
          .bias = params.bias,
          .y = params.y,
          .accumulate = params.accumulate,
          .glu = params.fusion.glu};
  out->code_bytes = static_cast<int>(w.k / kChainRunValues) * kChainRunBytes;
  out->records_at = static_cast<int>(layout.scales_offset);
  return true;
}

// x of an op behind the one that writes it goes through the exchange, all of it; else it is what earlier
// kernels left. Blocks wait for nothing but such values, so whatever else an op touches of another's is the
// same lane's (what is added to), or was read by all whose values came.
bool Connect(ChainProblem* p) {
  const auto overlap = [](const float* a, int a_count, const float* b, int b_count) {
    return std::less<>()(a, b + b_count) && std::less<>()(b, a + a_count);
  };
  uint32_t in_front[kChainMost] = {};  // of an op: those whose values it gets, at first hand or not
  for (int i = 0; i < p->count; ++i) {
    ChainOp& op = p->ops[i];
    int writer = -1;
    for (int j = 0; j < i; ++j) {
      const ChainOp& other = p->ops[j];
      if (overlap(op.y, op.rows, other.y, other.rows) &&
          (op.y != other.y || op.rows != other.rows || op.glu != other.glu))
        return false;
      if (!overlap(op.x, op.k, other.y, other.rows)) continue;
      if (op.x != other.y || op.k != other.rows) return false;
      writer = j;
    }
    if (writer >= 0) {
      ChainOp& other = p->ops[writer];
      in_front[i] = in_front[writer] | 1u << writer;
      if (other.to == kChainNowhere) {
        other.to = p->words;
        p->words += (other.rows + 3) / 4 * 4;
      }
      op.from = other.to;
    }
    for (int j = 0; j <= i; ++j) {
      const ChainOp& other = p->ops[j];
      if (other.from == kChainNowhere && (in_front[i] >> j & 1) == 0 &&
          overlap(op.y, op.rows, other.x, other.k))
        return false;
    }
  }
  return true;
}

bool MakeChain(const CudaExec& exec, const CudaMatmulChain& chain, ChainProblem* out) {
  if (chain.count <= 0 || chain.count > kChainMost) return false;
  const DType dtype = chain.ops[0].weight.dtype;
  if (CurrentTune().chain == CudaTune::Chain::kNone || !ChainReads(dtype) || exec.deterministic ||
      WantsF32(exec, dtype) || !CurrentCard().RunsHopperCode()) {
    return false;
  }
  ChainProblem p = {.count = chain.count};
  int64_t most_k = 0;
  for (int i = 0; i < chain.count; ++i) {
    if (chain.ops[i].weight.dtype != dtype || !ChainFits(chain.ops[i].weight.n, exec.num_sms) ||
        !MakeOp(chain.ops[i], &p.ops[i]))
      return false;
    most_k = std::max(most_k, chain.ops[i].weight.k);
  }
  p.layout =
      LayChainOut(most_k, std::min(kChainMostSharedBytes, CurrentCard().shared_bytes - kChainOwnSharedBytes));
  if (p.layout.stages == 0 || !Connect(&p)) return false;
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
    return CudaFail(CudaFault::kInvalid,
                    "matmul_chain of %d is not one launch (the first of m %lld, n %lld, k %lld)", chain.count,
                    static_cast<long long>(chain.ops[0].m), static_cast<long long>(chain.ops[0].weight.n),
                    static_cast<long long>(chain.ops[0].weight.k));
  }
  return LaunchChain<DType::kQ4_K>(exec, p);
}

}  // namespace cachalot
