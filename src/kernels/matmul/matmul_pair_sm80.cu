// Experts and a dense matmul beside them in one launch, where the decode kernel takes both: the SMs are shared out by the rows of W.
#include <algorithm>

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/matmul/gemv_pair_params.h"
#include "kernels/matmul/matmul_launch.h"

namespace cachalot {
namespace {

constexpr int kMostColumns = 8;  // rows of x of a block: mma's n

struct PairKernel {
  DType dtype;
  CudaStatus (*launch)(const CudaExec&, const GemvPair&);
};
template <DType kType>
constexpr PairKernel Row() {
  return {kType, &LaunchGemvPair<kType>};
}
constexpr PairKernel kKernels[] = {Row<DType::kF16>(),  Row<DType::kBF16>(), Row<DType::kFP8E4M3>(),
                                   Row<DType::kQ8_0>(), Row<DType::kQ4_K>(), Row<DType::kQ6_K>()};

const PairKernel* FindKernel(DType dtype) {
  const auto* found = std::find_if(std::begin(kKernels), std::end(kKernels), [&](const PairKernel& k) { return k.dtype == dtype; });
  return found == std::end(kKernels) ? nullptr : found;
}

// False: they are launches of their own.
bool MakePair(const CudaExec& exec, const CudaMoeMatmulParams& moe, const CudaMatmulParams& matmul, GemvPair* out) {
  const DType dtype = matmul.weight.dtype;
  if ((CurrentTune().fuse & CudaTune::kFuseShared) == 0 || moe.weight.dtype != dtype || FindKernel(dtype) == nullptr ||
      matmul.m == 0 || moe.max_pairs == 0 || CheckMatmul(matmul) != nullptr || CheckMoeMatmul(moe) != nullptr) {
    return false;
  }
  GemvPair pair = {.dense = ProblemOf(matmul), .experts = ProblemOf(moe), .slots = moe.max_pairs};
  if (!DecodeFuses(exec, dtype, pair.dense, 0) || !DecodeFuses(exec, dtype, pair.experts, moe.max_pairs)) return false;
  // Bytes of W, each of its SMs' share; the experts' blocks are a whole number for each pair.
  const double dense_work = static_cast<double>(pair.dense.n) * static_cast<double>(pair.dense.layout.row_bytes);
  const double experts_work = static_cast<double>(pair.slots) * pair.experts.n * static_cast<double>(pair.experts.layout.row_bytes);
  const auto experts_sms = static_cast<int>(exec.num_sms * experts_work / (dense_work + experts_work));
  const bool experts_glu = pair.experts.glu_rows > 0, dense_glu = pair.dense.glu_rows > 0;
  pair.experts_shape = ShapeGemv(dtype, pair.slots, experts_glu ? pair.experts.glu_rows : pair.experts.n, pair.experts.k,
                                 std::min(pair.experts.m, kMostColumns), std::max(experts_sms, 1), experts_glu);
  const int64_t left = exec.num_sms - pair.slots * pair.experts_shape.blocks % exec.num_sms;
  pair.dense_shape = ShapeGemv(dtype, 1, dense_glu ? pair.dense.glu_rows : pair.dense.n, pair.dense.k,
                               std::min(pair.dense.m, kMostColumns), static_cast<int>(left), dense_glu);
  // Blocks of one size: splits are powers of two, so the larger number of them fits both.
  const auto warps_of = [](const GemvShape& shape) { return shape.teams * shape.splits; };
  const int unit = std::max(pair.dense_shape.splits, pair.experts_shape.splits);
  const int warps = std::min(warps_of(pair.dense_shape), warps_of(pair.experts_shape)) / unit * unit;
  if (warps == 0) return false;
  SetTeams(&pair.dense_shape, warps / pair.dense_shape.splits, GemvTiles(pair.dense_shape, dense_glu));
  SetTeams(&pair.experts_shape, warps / pair.experts_shape.splits, GemvTiles(pair.experts_shape, experts_glu));
  const int64_t most = std::min(kGemvMaxSharedBytes, CurrentCard().shared_bytes - kGemvOwnSharedBytes);
  if (std::max(GemvSharedBytes(dtype, pair.dense_shape), GemvSharedBytes(dtype, pair.experts_shape)) > most) return false;
  *out = pair;
  return true;
}

}  // namespace

bool CudaMoePairFuses(const CudaExec& exec, const CudaMoeMatmulParams& moe, const CudaMatmulParams& matmul) {
  GemvPair pair;
  return MakePair(exec, moe, matmul, &pair);
}

CudaStatus CudaMoePair(const CudaExec& exec, const CudaMoeMatmulParams& moe, const CudaMatmulParams& matmul) {
  GemvPair pair;
  if (!MakePair(exec, moe, matmul, &pair)) {
    return CudaFail(CudaFault::kInvalid, "moe_pair: %lld pairs, n %lld, k %lld, and m %lld, n %lld, k %lld are not one launch",
                    static_cast<long long>(moe.max_pairs), static_cast<long long>(moe.weight.n), static_cast<long long>(moe.weight.k),
                    static_cast<long long>(matmul.m), static_cast<long long>(matmul.weight.n), static_cast<long long>(matmul.weight.k));
  }
  return FindKernel(matmul.weight.dtype)->launch(exec, pair);
}

}  // namespace cachalot
