// The experts of a few tokens: which calls the kernel takes (moe_few.cuh), and in how many launches.
#include <algorithm>
#include <climits>

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "kernels/matmul/matmul_launch.h"
#include "kernels/matmul/matmul_problem.cuh"
#include "kernels/moe_matmul/moe_few_cuda.h"
#include "kernels/moe_matmul/moe_few_launch.h"

namespace cachalot {
namespace {

struct FewKernelRow {
  DType dtype;
  CudaStatus (*launch)(const CudaExec&, const FewProblem&);
};
constexpr FewKernelRow kKernels[] = {{DType::kF16, &LaunchFew<DType::kF16>}, {DType::kFP8E4M3, &LaunchFew<DType::kFP8E4M3>}};

const FewKernelRow* FindKernel(DType dtype) {
  const auto* found = std::find_if(std::begin(kKernels), std::end(kKernels), [&](const FewKernelRow& row) { return row.dtype == dtype; });
  return found == std::end(kKernels) ? nullptr : found;
}

int64_t MostBytes() { return std::min(kFewMostSharedBytes, CurrentCard().shared_bytes - kFewOwnSharedBytes); }

// Rows without padding, in pieces that the warps take.
bool HasWholeRows(const CudaMatrix& w) {
  const int64_t bytes = CudaRowsOf(w.dtype, w.k).row_bytes, value_bytes = w.dtype == DType::kFP8E4M3 ? 1 : 2;
  return w.k > 0 && w.n > 0 && bytes == w.k * value_bytes && bytes % kFewWholeBytes == 0;
}
FewMatrix MatrixOf(const CudaMatrix& w, bool glu) {
  return {.w = w.data, .scales = w.block_scales, .rows = static_cast<int>(glu ? w.n / 2 : w.n), .k = static_cast<int>(w.k),
          .row_bytes = static_cast<int>(CudaRowsOf(w.dtype, w.k).row_bytes), .scale_rows = static_cast<int>(w.block_scale_rows)};
}

// Whether the router can be in the same launch: of one token, softmax without groups and bias, a block for each expert.
bool RoutesWithin(const CudaExec& exec, const CudaMoeFewParams& params) {
  const CudaMoeGateParams& gate = *params.gate;
  const MoeRouteParams& route = gate.route;
  return CudaMoeGateFuses(exec, gate) && params.num_tokens == 1 && gate.sort.num_tokens == 1 && gate.sort.top_k == params.top_k &&
         gate.sort.num_experts == params.num_experts && gate.router.k == params.up.k && gate.x == params.x &&
         gate.norm.norm_weight == params.norm.norm_weight && params.up.k <= kFewMostRouterDim && params.num_experts <= kFewMostRouterExperts &&
         params.num_experts <= exec.num_sms && route.score == MoeScore::kSoftmax && route.group_score == MoeGroupScore::kNone &&
         route.choice_bias == nullptr;
}

// False: other kernels take it.
bool MakeProblem(const CudaExec& exec, const CudaMoeFewParams& params, FewProblem* out) {
  const CudaTune& tune = CurrentTune();
  const DType dtype = params.up.dtype;
  const int64_t pairs = params.num_tokens * params.top_k;
  const bool shared = params.shared_up.data != nullptr, norm = params.norm.norm_weight != nullptr, fp8 = dtype == DType::kFP8E4M3;
  if (tune.experts == CudaTune::Experts::kApart || exec.deterministic || WantsF32(exec, dtype) || !CurrentCard().RunsHopperCode() ||
      FindKernel(dtype) == nullptr || exec.counters == nullptr || params.num_tokens <= 0 || params.num_tokens > kFewTokens ||
      pairs > kFewPairs || params.num_experts <= 0 || params.num_experts > kFewExperts) {
    return false;
  }
  if (norm && (tune.fuse & CudaTune::kFuseNorm) == 0) return false;
  const auto fits = [&](const CudaMatrix& up, const CudaMatrix& down) {
    return up.dtype == dtype && down.dtype == dtype && HasWholeRows(up) && HasWholeRows(down) && up.n % 2 == 0 && up.n / 2 == down.k &&
           up.k == params.up.k && down.n == params.down.n && CheckWeight(up, params.num_tokens, 1, "moe_few") == nullptr &&
           CheckWeight(down, pairs, 1, "moe_few") == nullptr;
  };
  if (!fits(params.up, params.down) || (shared && !fits(params.shared_up, params.shared_down))) return false;
  if (shared && params.shared_down.data == nullptr) return false;
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  if (params.up.k > kFewMostDim || params.x_stride % 4 != 0 || !whole(params.x) || !whole(params.h) || !whole(params.shared_h) ||
      (norm && (params.up.k < kNormLeastDim || !whole(params.norm.norm_weight)))) {
    return false;
  }
  const CudaMoeGateParams* gate = params.gate;
  if (gate != nullptr && !RoutesWithin(exec, params)) return false;
  FewShape shape = {.tokens = static_cast<int>(params.num_tokens), .pairs = static_cast<int>(pairs), .dim = static_cast<int>(params.up.k),
                    .gates = static_cast<int>(params.down.k), .shared_gates = shared ? static_cast<int>(params.shared_down.k) : 0};
  if (params.down.n != params.up.k) return false;  // x and the residual stream are of one width
  if (!FewFits(std::max({params.up.n, params.down.n, params.shared_up.n}), exec.num_sms)) return false;
  FewProblem p;
  p.each[0] = MatrixOf(params.up, true), p.each[1] = MatrixOf(params.down, false);
  p.each[0].w = p.each[1].w = nullptr;
  if (shared) p.shared[0] = MatrixOf(params.shared_up, true), p.shared[1] = MatrixOf(params.shared_down, false);
  p.data[0] = params.up_data, p.data[1] = params.down_data;
  if (fp8) p.scales[0] = params.up_scales, p.scales[1] = params.down_scales;
  p.expert_begin = params.expert_begin;
  p.token_rows = params.token_rows;
  p.pair_weights = params.pair_weights;
  p.num_experts = params.num_experts, p.num_tokens = shape.tokens, p.num_pairs = shape.pairs;
  p.x = params.x, p.x_stride = params.x_stride, p.x_dim = shape.dim;
  p.norm_weight = params.norm.norm_weight, p.norm_eps = params.norm.norm_eps;
  p.h = params.h, p.shared_h = params.shared_h;
  p.residual = params.residual, p.residual_stride = params.residual_stride;
  p.counters = exec.counters;
  if (gate != nullptr) {
    p.routes = true, p.router = reinterpret_cast<const float*>(gate->router.data);
    p.normalize = gate->route.normalize, p.scaling = gate->route.scaling;
    p.logits = gate->logits, p.expert_ids = gate->route.expert_ids, p.weights = gate->route.weights;
    p.sort = gate->sort, p.row_slots = params.row_slots;
  }
  const int64_t most = MostBytes();
  p.layout = LayFewOut(shape, exec.num_sms, most);
  const bool one = tune.experts == CudaTune::Experts::kUsual ? p.layout.stages >= kFewRoomyStages : tune.experts == CudaTune::Experts::kOne;
  if (gate != nullptr && !one) return false;
  if (gate != nullptr) p.layout.in_flight = std::min(p.layout.stages, kFewInFlight);
  p.last_phase = one ? 1 : 0;
  shape.down = one;
  if (!one) p.layout = LayFewOut(shape, exec.num_sms, most);
  FewShape second = shape;
  second.up = false, second.down = true;
  const FewLayout of_down = LayFewOut(second, exec.num_sms, most);
  if (p.layout.stages == 0 || of_down.stages == 0 || of_down.block_rows > kFewMostBlockRows) return false;
  *out = p;
  return true;
}

}  // namespace

bool CudaMoeFewFuses(const CudaExec& exec, const CudaMoeFewParams& params) {
  FewProblem p;
  return MakeProblem(exec, params, &p);
}

CudaStatus CudaMoeFew(const CudaExec& exec, const CudaMoeFewParams& params) {
  FewProblem p;
  if (!MakeProblem(exec, params, &p)) {
    return CudaFail(CudaFault::kInvalid, "moe_few: %lld tokens of top %d of %d experts, %lld gates of %lld, are not one launch",
                    static_cast<long long>(params.num_tokens), params.top_k, params.num_experts, static_cast<long long>(params.up.n / 2),
                    static_cast<long long>(params.up.k));
  }
  const auto launch = FindKernel(params.up.dtype)->launch;
  if (CudaStatus failure = launch(exec, p)) return failure;
  if (p.last_phase == 1) return nullptr;
  p.first_phase = p.last_phase = 1;
  const FewShape shape = {.tokens = p.num_tokens, .pairs = p.num_pairs, .dim = p.each[0].k, .gates = p.each[1].k,
                          .shared_gates = p.shared[1].k, .up = false, .down = true};
  p.layout = LayFewOut(shape, exec.num_sms, MostBytes());
  return launch(exec, p);
}

}  // namespace cachalot
