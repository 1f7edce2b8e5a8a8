// Which kernel computes a matmul, and with what scratch.
//
//   F32 math or F32 weights          matmul_f32_sm80.cu
//   m > 128, dense                   cuBLASLt (matmul_blas_sm80.cu), codes expanded to F16, a slab of rows at a time; not
//                                    where deterministic, not without exec.matmul_plans
//   8 < m <= 128, 16 bits, sm_90      the kernel of bulk copies (matmul_bulk.cuh) where n is enough for most SMs; dense, not where
//                                    deterministic
//   m > 8, sm_90                     the wgmma kernels (matmul_wgmma.cuh, matmul_wgmma_codes.cuh); not where deterministic,
//                                    not for Q4_1 and rows of codes
//   m <= 4, FP8 (CudaTune::few), sm_90 the kernel that streams equal shares to all SMs (moe_matmul/moe_few.cuh); dense
//   m <= 4, few pairs of experts     the decode kernel (gemv.cuh), where its shared memory suffices; not where deterministic
//   all else                         the stream kernel (matmul_stream.cuh); deterministic: with ranges that n and k alone fix
#include <algorithm>
#include <climits>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "kernels/matmul/gemv_shape.h"
#include "kernels/matmul/matmul_bulk.h"
#include "kernels/matmul/matmul_launch.h"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {

namespace {

constexpr int kBlasRows = 128;      // cuBLASLt above
constexpr int kWgmmaCutRows = 112;  // of W in a tile, at least, where all tiles are cut alike: x counts beside W
constexpr int kLargestTile = 128;
constexpr int64_t kSlabBytes = int64_t{64} << 20;  // of codes as F16
constexpr int kManyTiles = 12;  // a block: so many that whole tiles balance well enough

constexpr int64_t Padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

bool Is16Bit(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

int ColumnsFor(int64_t m) {
  int columns = 8;
  while (columns < kLargestTile && columns < m) columns *= 2;
  return columns;
}

// Rows of one expert that a tile is made for: twice the average, and never more than there can be.
int ExpertColumns(const CudaMoeMatmulParams& p) {
  const int64_t most = p.max_pairs / std::max(p.top_k, 1);
  const int64_t average = (p.max_pairs + p.num_experts - 1) / std::max(p.num_experts, 1);
  return ColumnsFor(std::min(most, 2 * average));
}

// Rows of W that are expanded at a time: slabs of one size, about.
int64_t SlabRows(int64_t n, int64_t k) {
  const int64_t most = std::max<int64_t>(kSlabBytes / (StreamRowValues(k) * 2) / kStreamRows, 1) * kStreamRows;
  const int64_t slabs = (n + most - 1) / most, rows = (n + slabs - 1) / slabs;
  return (rows + kStreamRows - 1) / kStreamRows * kStreamRows;
}

struct Scratch {
  int64_t x_bytes = 0;
  int64_t other_bytes = 0;  // partial tiles, or cuBLASLt's
  int64_t total() const { return Padded(x_bytes) + Padded(other_bytes); }
};

Scratch ScratchOf(DType dtype, int64_t k, int64_t x_rows, int columns, int num_sms) {
  if (dtype == DType::kF32) return {};
  return {x_rows * StreamRowValues(k) * 2, StreamPartialBytes(num_sms, columns)};
}

// A deterministic matmul of as many rows has room in it too.
Scratch BlasScratchOf(const CudaMatrix& w, int64_t m, int num_sms) {
  Scratch scratch = ScratchOf(w.dtype, w.k, m, kLargestTile, num_sms);
  const int64_t slab_bytes = Is16Bit(w.dtype) ? 0 : SlabRows(w.n, w.k) * StreamRowValues(w.k) * 2;
  scratch.other_bytes = std::max(scratch.other_bytes, kBlasWorkspaceBytes + slab_bytes);
  return scratch;
}

CudaStatus CheckScratch(const CudaExec& exec, int64_t bytes, const char* op) {
  if (bytes <= exec.workspace_bytes) return nullptr;
  return CudaFail(CudaFault::kInvalid, "%s: workspace of %lld bytes, %lld needed", op,
                  static_cast<long long>(exec.workspace_bytes), static_cast<long long>(bytes));
}

// x of all groups to 16 bits into the workspace, or as it has been converted already; the problem reads it from there.
CudaStatus ConvertForStream(const CudaExec& exec, DType dtype, bool fragments, int64_t x_rows, MatmulProblem* p) {
  if (p->x_half.data != nullptr && dtype != DType::kBF16 && StreamOrderOf(dtype) == StreamOrder::kPlain && !fragments) {
    p->x = p->x_half.data;
    p->x_stride = p->x_half.stride;
    return nullptr;
  }
  ConvertXParams params;
  params.x = static_cast<const float*>(p->x);
  params.x_stride = p->x_stride;
  params.x_group_stride = p->x_group_stride;
  params.num_rows = x_rows;
  params.num_groups = p->expert_begin != nullptr ? 1 : p->num_groups;
  params.k = p->k;
  params.aligned = HasAlignedX(*p);
  params.half = dtype != DType::kBF16;
  params.order = StreamOrderOf(dtype);
  params.fragments = fragments;
  params.out = exec.workspace;
  p->x = exec.workspace;
  p->x_group_stride = StreamRowValues(p->k);
  p->x_stride = p->x_group_stride * params.num_groups;
  return ConvertX(exec, params);
}

// The kernels of each format; what has a row in CudaRowsOf and is not F32 has one here.
struct FormatKernels {
  DType dtype;
  CudaStatus (*stream)(const CudaExec&, const MatmulProblem&, const StreamPlan&);
  CudaStatus (*gemv)(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t slots);  // groups, or pairs of experts
};
template <DType kType>
constexpr FormatKernels Row() {
  return {kType, &LaunchStream<kType>, &LaunchGemv<kType>};
}
constexpr FormatKernels kFormats[] = {
    Row<DType::kF16>(),    Row<DType::kBF16>(), Row<DType::kFP8E4M3>(), Row<DType::kQ8_0>(), Row<DType::kQ4_0>(),
    Row<DType::kQ4_1>(),   Row<DType::kQ5_0>(), Row<DType::kQ5_1>(),    Row<DType::kQ2_K>(), Row<DType::kQ3_K>(),
    Row<DType::kQ4_K>(),   Row<DType::kQ5_K>(), Row<DType::kQ6_K>(),    Row<DType::kIQ4_NL>(), Row<DType::kIQ4_XS>(),
};
const FormatKernels& KernelsOf(DType dtype) {
  const FormatKernels* row = kFormats;
  while (row->dtype != dtype) ++row;
  return *row;
}

CudaStatus LaunchStreamOf(const CudaExec& exec, DType dtype, bool wgmma, const MatmulProblem& p, const StreamPlan& plan) {
  if (wgmma) {
    switch (dtype) {
      case DType::kF16:
        return LaunchWgmmaF16(exec, p, plan);
      case DType::kBF16:
        return LaunchWgmmaBF16(exec, p, plan);
      case DType::kFP8E4M3:
        return LaunchWgmmaFp8(exec, p, plan);
      case DType::kQ8_0:
        return LaunchWgmmaQ8(exec, p, plan);
      default:
        return LaunchWgmmaQ4(exec, p, plan);
    }
  }
  return KernelsOf(dtype).stream(exec, p, plan);
}

// Twice the rows where even so half the SMs have a tile to begin with: there is less of x to read, and more to fold.
int WgmmaRows(const MatmulProblem& p, int columns, int num_sms) {
  const int64_t tall_tiles = int64_t{(p.n + 255) / 256} * ((p.m + columns - 1) / columns) * p.num_groups;
  return columns >= 64 && p.n >= 256 && tall_tiles * 2 >= num_sms ? 256 : 128;
}

// A dense wgmma matmul of many columns, cut so that nearly all SMs have the same to do: whole tiles, or all tiles' k in as
// many pieces. Rows 0: no such cut.
struct WgmmaCut {
  int rows = 0;
  int splits = 1;
};
WgmmaCut EvenCut(const MatmulProblem& p, int columns, int64_t num_sms) {
  const int64_t step = p.glu_rows > 0 ? 16 : 8;
  constexpr int64_t kMost = 256;  // rows: shared memory
  const int64_t least = Tuned(CurrentTune().wgmma_rows, kWgmmaCutRows);
  if (columns < 64 || p.m > columns || p.num_groups > 1 || p.expert_begin != nullptr) return {};
  const auto rows_of = [&](int64_t parts, int64_t of) { return ((p.n * of + parts - 1) / parts + step - 1) / step * step; };
  const auto tiles_of = [&](int64_t rows) { return (p.n + rows - 1) / rows; };
  const auto even = [](int64_t busy, int64_t all) { return busy <= all && busy * 16 >= all * 15; };
  for (int64_t rounds = 1; rows_of(num_sms * rounds, 1) >= least; ++rounds) {
    const int64_t rows = rows_of(num_sms * rounds, 1);
    if (rows <= kMost && even(tiles_of(rows), num_sms * rounds)) return {static_cast<int>(rows), 1};
  }
  for (int64_t splits = 2; splits <= 8 && p.k >= splits * 512 && rows_of(num_sms, splits) <= kMost; ++splits) {
    const int64_t rows = rows_of(num_sms, splits);
    if (rows >= least && even(tiles_of(rows) * splits, num_sms)) return {static_cast<int>(rows), static_cast<int>(splits)};
  }
  return {};
}

bool TakesWgmma(const CudaExec& exec, DType dtype, int columns) {
  return !exec.deterministic && dtype != DType::kQ4_1 && !IsCodeRow(dtype) && columns > 8 && CurrentCard().RunsHopperCode();
}

// The cut of the kernel of bulk copies, where it takes the problem (rows 0: another does).
BulkCut FindBulk(const CudaExec& exec, DType dtype, const MatmulProblem& p, int columns) {
  const bool dense = p.expert_begin == nullptr && p.num_groups == 1, measured = CurrentTune().wgmma_rows > 0;
  if (!dense || measured || !Is16Bit(dtype) || p.m > kBulkMostColumns || p.glu_rows % 8 != 0) return {};
  if (!TakesWgmma(exec, dtype, columns)) return {};
  BulkCut cut = FindBulkCut(p.m, p.n, p.k, p.glu_rows > 0, exec.num_sms);
  const auto whole = [](const void* pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; };
  cut.pairs = p.n % 2 == 0 && p.glu_rows % 2 == 0 && p.y_stride % 2 == 0 && whole(p.y, 8) &&
              (p.y_half.data == nullptr || (whole(p.y_half.data, 4) && p.y_half.stride % 2 == 0));
  return cut;
}

// Whether what the problem asks for beside its products is one launch: of the decode kernel, or SwiGLU of 16-bit weights on wgmma.
bool Fuses(const CudaExec& exec, DType dtype, const MatmulProblem& p, int64_t pairs, int columns) {
  const bool norm = p.norm_weight != nullptr, glu = p.glu_rows > 0, experts = p.expert_begin != nullptr;
  if (FindGemvShape(exec, dtype, p, pairs).blocks > 0) return DecodeFuses(exec, dtype, p, pairs);
  return glu && !norm && GluFits(p) && (CurrentTune().fuse & CudaTune::kFuseGluMany) != 0 && Is16Bit(dtype) &&
         !WantsF32(exec, dtype) && TakesWgmma(exec, dtype, columns) && (experts || p.m <= Tuned(CurrentTune().blas_rows, kBlasRows));
}

CudaStatus NotFused(const MatmulProblem& p, const char* op) {
  return CudaFail(CudaFault::kInvalid, "%s: norm or SwiGLU of m %d, n %d, k %d are not one launch", op, p.m, p.n, p.k);
}

// The decode kernel, that of bulk copies, the stream kernel or the wgmma kernel. `x_rows`: rows of x that are read, of a group; `pairs`: of experts.
CudaStatus RunStream(const CudaExec& exec, DType dtype, MatmulProblem p, int64_t x_rows, int64_t pairs, int columns,
                     const char* op) {
  const bool experts = p.expert_begin != nullptr;
  if (const GemvShape shape = FindGemvShape(exec, dtype, p, pairs); shape.blocks > 0) {
    return KernelsOf(dtype).gemv(exec, p, shape, experts ? pairs : p.num_groups);
  }
  if (const BulkCut cut = FindBulk(exec, dtype, p, columns); cut.rows > 0) {
    if (CudaStatus failure = CheckScratch(exec, x_rows * StreamRowValues(p.k) * 2, op)) return failure;
    if (CudaStatus failure = ConvertForStream(exec, dtype, false, x_rows, &p)) return failure;
    return dtype == DType::kBF16 ? LaunchBulkBF16(exec, p, cut) : LaunchBulkF16(exec, p, cut);
  }
  const bool codes = !Is16Bit(dtype);
  const bool wgmma = TakesWgmma(exec, dtype, columns);
  StreamPlan plan;
  const int blocks = wgmma && !codes ? exec.num_sms : StreamBlocks(columns, exec.num_sms);
  const bool counts = exec.counters != nullptr && blocks * kStreamCounters <= kCudaCounters;
  WgmmaCut cut;
  if (wgmma && !codes) cut = EvenCut(p, columns, exec.num_sms);
  if (cut.splits > 1 && !counts) cut = {};
  plan.rows = cut.rows > 0 ? cut.rows : wgmma && !codes ? WgmmaRows(p, columns, exec.num_sms) : kStreamRows;
  plan.columns = columns;
  plan.x_f32 = columns == 8 && HasAlignedX(p);
  const int64_t converted_rows = x_rows * (experts ? 1 : p.num_groups);  // what lies behind them must not touch them
  Scratch scratch = ScratchOf(dtype, p.k, converted_rows, columns, exec.num_sms);
  if (plan.x_f32) scratch.x_bytes = 0;

  const int64_t n_tiles = (p.n + plan.rows - 1) / plan.rows, chunks = (p.k + StreamChunk(dtype) - 1) / StreamChunk(dtype);
  const int64_t m_tiles = (p.m + columns - 1) / columns, tiles = n_tiles * m_tiles * p.num_groups;
  if (tiles * chunks > INT_MAX) {
    return CudaFail(CudaFault::kInvalid, "%s: m %d, n %d, k %d of %d groups in one call", op, p.m, p.n, p.k, p.num_groups);
  }
  plan.whole_tiles = !counts || chunks < 3 ||
                     (!experts && (tiles % blocks == 0 || tiles >= int64_t{kManyTiles} * blocks));
  if (cut.rows > 0) {
    plan.whole_tiles = cut.splits == 1;
    plan.num_ranges = plan.whole_tiles ? 0 : static_cast<int>(n_tiles * cut.splits);
  }
  int64_t m_step = p.m;  // rows of x of a launch
  if (exec.deterministic) {
    const int64_t splits = std::min(exec.num_sms / n_tiles, chunks / 4);
    plan.whole_tiles = experts || p.num_groups > 1 || !counts || splits < 2;
    if (!plan.whole_tiles) {
      plan.num_ranges = static_cast<int>(n_tiles * splits);
      m_step = columns;
    }
  }
  if (plan.whole_tiles) scratch.other_bytes = 0;
  if (CudaStatus failure = CheckScratch(exec, scratch.total(), op)) return failure;
  plan.partials = reinterpret_cast<float*>(exec.workspace + Padded(scratch.x_bytes));
  plan.counters = exec.counters;
  if (!plan.x_f32) {
    if (CudaStatus failure = ConvertForStream(exec, dtype, wgmma && codes, x_rows, &p)) return failure;
  }
  const int64_t value_bytes = plan.x_f32 ? 4 : 2;
  const int m = p.m;
  for (int64_t m0 = 0; m0 < m; m0 += m_step) {
    p.m = static_cast<int>(std::min<int64_t>(m_step, m - m0));
    if (CudaStatus failure = LaunchStreamOf(exec, dtype, wgmma, p, plan)) return failure;
    p.x = static_cast<const std::byte*>(p.x) + m_step * p.x_stride * value_bytes;
    p.y += m_step * p.y_stride;
  }
  return nullptr;
}

CudaStatus RunBlas(const CudaExec& exec, const CudaMatmulParams& params, MatmulProblem p) {
  const CudaMatrix& w = params.weight;
  const Scratch scratch = BlasScratchOf(w, params.m, exec.num_sms);
  if (CudaStatus failure = CheckScratch(exec, scratch.total(), "matmul")) return failure;
  if (params.bias != nullptr) {
    if (CudaStatus failure = AddBias(exec, params)) return failure;
  }
  const DType dtype = w.dtype == DType::kBF16 ? DType::kBF16 : DType::kF16;
  if (CudaStatus failure = ConvertForStream(exec, dtype, false, params.m, &p)) return failure;
  BlasMatmul blas;
  blas.dtype = dtype;
  blas.m = params.m;
  blas.n = w.n;
  blas.k = w.k;
  blas.x = p.x;
  blas.x_stride = p.x_stride;
  blas.w = w.data;
  blas.w_stride = p.layout.row_bytes / 2;
  blas.y = params.y;
  blas.y_stride = params.y_stride;
  blas.accumulate = params.accumulate || params.bias != nullptr;
  blas.workspace = exec.workspace + Padded(scratch.x_bytes);
  if (Is16Bit(w.dtype)) return RunBlasMatmul(exec, blas);
  std::byte* const slab = blas.workspace + kBlasWorkspaceBytes;
  const int64_t slab_rows = SlabRows(w.n, w.k);
  blas.w = slab;
  blas.w_stride = StreamRowValues(w.k);
  for (int64_t first = 0; first < w.n; first += slab_rows) {
    blas.n = std::min(slab_rows, w.n - first);
    blas.y = params.y + first;
    if (CudaStatus failure = ExpandRows(exec, w, first, blas.n, slab)) return failure;
    if (CudaStatus failure = RunBlasMatmul(exec, blas)) return failure;
  }
  return nullptr;
}

}  // namespace

CudaStatus CudaMatmulInit(void** plans) {
  BlasPlans* made = nullptr;
  CudaStatus failure = MakeBlasPlans(&made);
  *plans = made;
  return failure;
}
void CudaMatmulRelease(void* plans) { ReleaseBlasPlans(static_cast<BlasPlans*>(plans)); }

int64_t CudaMatmulWorkspaceBytes(const CudaMatmulParams& params, int32_t num_sms) {
  const CudaMatrix& w = params.weight;
  if (params.m > Tuned(CurrentTune().blas_rows, kBlasRows) && w.dtype != DType::kF32) return BlasScratchOf(w, params.m, num_sms).total();
  return ScratchOf(w.dtype, w.k, params.m, ColumnsFor(params.m), num_sms).total();
}

bool CudaMatmulFuses(const CudaExec& exec, const CudaMatmulParams& params) {
  return params.m > 0 && CheckMatmul(params) == nullptr &&
         Fuses(exec, params.weight.dtype, ProblemOf(params), 0, ColumnsFor(params.m));
}

CudaStatus CudaMatmul(const CudaExec& exec, const CudaMatmulParams& params) {
  const CudaMatrix& weight = params.weight;
  if (params.m == 0 || weight.n == 0) return nullptr;
  if (CudaStatus failure = CheckMatmul(params)) return failure;
  const MatmulProblem p = ProblemOf(params);
  if (params.fusion.any() && !Fuses(exec, weight.dtype, p, 0, ColumnsFor(params.m))) return NotFused(p, "matmul");
  if (WantsF32(exec, weight.dtype)) return LaunchF32Matmul(exec, weight.dtype, p);
  const bool whole_y = reinterpret_cast<uintptr_t>(params.y) % 16 == 0 && params.y_stride % 4 == 0;
  if (!exec.deterministic && params.m > Tuned(CurrentTune().blas_rows, kBlasRows) && whole_y && exec.matmul_plans != nullptr) return RunBlas(exec, params, p);
  return RunStream(exec, weight.dtype, p, params.m, 0, ColumnsFor(params.m), "matmul");
}

int64_t CudaHeadMatmulWorkspaceBytes(const CudaHeadMatmulParams& params, int32_t num_sms) {
  return ScratchOf(params.weight.dtype, params.weight.k, params.m * params.num_heads, ColumnsFor(params.m), num_sms)
      .total();
}

CudaStatus CudaHeadMatmul(const CudaExec& exec, const CudaHeadMatmulParams& params) {
  if (params.m == 0 || params.n == 0 || params.num_heads == 0) return nullptr;
  CudaMatrix head = params.weight;
  head.n = params.n;
  if (CudaStatus failure = CheckWeight(head, params.m, params.num_heads, "head_matmul")) return failure;
  if (head.dtype == DType::kFP8E4M3) {
    return CudaFail(CudaFault::kUnsupported, "head_matmul: FP8 weights (%d heads)", params.num_heads);
  }
  MatmulProblem p = ProblemOf(head);
  p.x = params.x;
  p.x_stride = params.x_stride;
  p.x_group_stride = params.x_head_stride;
  p.m = static_cast<int>(params.m);
  p.num_groups = params.num_heads;
  p.y = params.y;
  p.y_stride = params.y_stride;
  p.y_group_stride = params.y_head_stride;
  const bool f32 = WantsF32(exec, head.dtype);
  const bool decode = !f32 && FindGemvShape(exec, head.dtype, p, 0).blocks > 0;
  if (decode) p.y_half = params.y_half;
  if (CudaStatus failure = f32 ? LaunchF32Matmul(exec, head.dtype, p)
                               : RunStream(exec, head.dtype, p, params.m, 0, ColumnsFor(params.m), "head_matmul")) {
    return failure;
  }
  if (decode || params.y_half.data == nullptr) return nullptr;
  ConvertXParams convert;  // behind kernels that do not write it themselves
  convert.x = params.y;
  convert.x_stride = params.y_stride;
  convert.num_rows = params.m;
  convert.k = int64_t{params.num_heads} * params.n;
  convert.aligned = reinterpret_cast<uintptr_t>(params.y) % 16 == 0 && params.y_stride % 4 == 0;
  convert.out = params.y_half.data;
  return ConvertX(exec, convert);
}

int64_t CudaMoeMatmulWorkspaceBytes(const CudaMoeMatmulParams& params, int32_t num_sms) {
  return ScratchOf(params.weight.dtype, params.weight.k, params.max_pairs, ExpertColumns(params), num_sms).total();
}

bool CudaMoeMatmulFuses(const CudaExec& exec, const CudaMoeMatmulParams& params) {
  return params.max_pairs > 0 && CheckMoeMatmul(params) == nullptr &&
         Fuses(exec, params.weight.dtype, ProblemOf(params), params.max_pairs, ExpertColumns(params));
}

CudaStatus CudaMoeMatmul(const CudaExec& exec, const CudaMoeMatmulParams& params) {
  const CudaMatrix& weight = params.weight;
  if (params.max_pairs == 0 || weight.n == 0) return nullptr;
  if (CudaStatus failure = CheckMoeMatmul(params)) return failure;
  const MatmulProblem p = ProblemOf(params);
  if (params.fusion.any() && !Fuses(exec, weight.dtype, p, params.max_pairs, ExpertColumns(params))) return NotFused(p, "moe_matmul");
  if (WantsF32(exec, weight.dtype)) return LaunchF32Matmul(exec, weight.dtype, p);
  const int64_t x_rows = params.x_rows != nullptr ? params.max_pairs / params.top_k : params.max_pairs;
  return RunStream(exec, weight.dtype, p, x_rows, params.max_pairs, ExpertColumns(params), "moe_matmul");
}

}  // namespace cachalot
