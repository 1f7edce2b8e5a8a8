#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <initializer_list>
#include <thread>

#include "kernels/common/parallel.h"
#include "kernels/matmul/cuda_view.h"
#include "kernels/matmul/matmul_impl.h"
#include "kernels/matmul/matmul_tap.h"
#include "kernels/matmul/panel.h"
#include "kernels/matmul/panel_kernels.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu/swiglu_variants.h"

namespace cachalot {
namespace internal {
std::atomic<MatmulTap*> g_matmul_tap{nullptr};
}  // namespace internal
namespace {

// The best panel kernels that `isa` allows for this matrix; null: only the reference covers it.
const PanelKernel* FindPanelKernel(const PackedMatrix& weight, Isa isa, bool as_int16) {
  if (weight.layout != PackLayout::kPanel) return nullptr;
  const auto find = [&](std::initializer_list<std::span<const PanelKernel>> lists) -> const PanelKernel* {
    for (const auto& kernels : lists) {
      for (const PanelKernel& kernel : kernels) {
        if (kernel.dtype == weight.dtype && kernel.isa <= isa) return &kernel;
      }
    }
    return nullptr;
  };
  if (as_int16) {
    if (const PanelKernel* kernel = find({Int16KernelsAvx512(), Int16KernelsAvx2()})) return kernel;
  }
  return find({CodesKernelsAmx(), FloatKernelsAvx512(), CodesKernelsAvx512(), FloatKernelsAvx2(), Codes32KernelsAvx2(),
               Codes16KernelsAvx2()});
}

// Whether F16 and BF16 weights are worth reading as 16-bit integers (matmul/int16_tile.h): many rows a matrix, and a
// matrix large enough for the call to matter. The bits depend on it, so a deterministic context never does.
bool WorthInt16(const ExecContext& ctx, const MatmulCall& call) {
  constexpr int64_t kMinRows = 32;
  constexpr int64_t kMinWeights = int64_t{1} << 18;
  const PackedMatrix& shape = *call.groups[0].weight;
  if (ctx.deterministic || shape.k % 32 != 0 || shape.n * shape.k < kMinWeights) return false;
  int64_t num_groups = 0, num_rows = 0;
  for (const MatmulGroup& group : call.groups) {
    num_groups += group.m > 0;
    num_rows += group.m;
  }
  return num_rows >= kMinRows * num_groups;
}

// --- Activations as the kernels want them: each row once. ---

// An odd number of cache lines: rows that are read side by side must not share the cache's sets.
int64_t XRowBytes(int64_t k, int64_t block_bytes) {
  return (((k + 31) / 32 * block_bytes + 63) / 64 | 1) * 64;
}

struct QuantizedX {
  const std::byte* rows = nullptr;  // null: the kernels read F32
  // The groups read the same x through their lists, so its rows were quantised where they stand; else row j
  // of the groups' rows one after the other is rows + j * row_bytes.
  bool shared = false;
  int64_t row_bytes = 0;
};

// The number of rows of x that the groups reach, if they all read one x; else 0.
int64_t SharedRows(std::span<const MatmulGroup> groups) {
  const MatmulGroup* first = nullptr;
  int64_t rows = 0;
  for (const MatmulGroup& group : groups) {
    if (group.m == 0) continue;
    if (first == nullptr) first = &group;
    if (group.x != first->x || group.x_stride != first->x_stride) return 0;
    if (group.x_rows == nullptr) {
      rows = std::max(rows, group.m);
    } else {
      for (int64_t i = 0; i < group.m; ++i) rows = std::max<int64_t>(rows, group.x_rows[i] + 1);
    }
  }
  return rows;
}

// Up to so many rows a kernel that reads x rounded has blocks of 32 values (Int16Kernels: of 128).
constexpr int64_t kFewRows = 16;

QuantizedX QuantizeX(const ExecContext& ctx, const MatmulCall& call, const PanelKernel& kernel, int64_t k) {
  QuantizedX out;
  if (kernel.quantize == nullptr) return out;
  out.row_bytes = XRowBytes(k, kernel.x_block_bytes);
  int64_t total = 0;
  const MatmulGroup* first = nullptr;
  for (const MatmulGroup& group : call.groups) {
    total += group.m;
    if (first == nullptr && group.m > 0) first = &group;
  }
  const int64_t shared_rows = SharedRows(call.groups);
  out.shared = shared_rows > 0 && shared_rows <= total;
  const int64_t num_rows = out.shared ? shared_rows : total;
  std::byte* rows = ctx.workspace->TakeBytes(num_rows * out.row_bytes);
  out.rows = rows;
  const double row_ns = static_cast<double>(k) * 0.45;
  if (out.shared && num_rows <= kFewRows && k % 32 == 0 && static_cast<double>(num_rows) * row_ns >= 2 * kMinRangeNs) {
    // Few long rows by columns: mostly those that the same thread has written (RunPanels).
    const int64_t num_blocks = k / 32, threads = ctx.pool->num_threads();
    ctx.pool->ParallelFor(threads, [&](int64_t index, int) {
      const int64_t begin = num_blocks * index / threads, end = num_blocks * (index + 1) / threads;
      for (int64_t i = 0; i < num_rows; ++i) {
        kernel.quantize(first->x + i * first->x_stride + begin * 32, (end - begin) * 32,
                        rows + i * out.row_bytes + begin * kernel.x_block_bytes);
      }
    });
    return out;
  }
  if (out.shared) {
    ParallelRanges(ctx, num_rows, row_ns, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        kernel.quantize(first->x + i * first->x_stride, k, rows + i * out.row_bytes);
    });
    return out;
  }
  for (const MatmulGroup& group : call.groups) {
    ParallelRanges(ctx, group.m, row_ns, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = group.x_rows != nullptr ? group.x_rows[i] : i;
        kernel.quantize(group.x + row * group.x_stride, k, rows + i * out.row_bytes);
      }
    });
    rows += group.m * out.row_bytes;
  }
  return out;
}

// --- How a call is cut. ---

// Panels that a task takes: worth a parallel loop's cost (about 64 KB to stream, or as long in arithmetic),
// and few enough for the threads to end together. One row reads panels side by side, four or fewer at a time.
int64_t PanelsPerTask(int64_t num_panels, int64_t panel_bytes, int64_t k, int64_t num_groups,
                      int64_t num_rows, int num_threads) {
  constexpr int64_t kMinBytes = 64 << 10;
  constexpr int64_t kMinProducts = 400'000;
  constexpr int64_t kLargeTaskBytes = 512 << 10;
  constexpr int64_t kSideBySide = 4;
  const int64_t bytes = panel_bytes * num_groups, products = kPanelRows * k * num_rows;
  const int64_t worth =
      std::max({int64_t{1}, num_panels * bytes / kMinBytes, num_panels * products / kMinProducts});
  const int64_t enough = std::max(int64_t{16} * num_threads, num_panels * bytes / kLargeTaskBytes);
  const int64_t tasks = std::min({num_panels, worth, enough});
  const int64_t per_task = (num_panels + tasks - 1) / tasks;
  const int64_t whole = (per_task + kSideBySide - 1) / kSideBySide * kSideBySide;
  return num_rows == num_groups && num_panels >= whole * 8 * num_threads ? whole : per_task;
}

void RunPanels(const ExecContext& ctx, const MatmulCall& call, const PanelKernel& kernel) {
  const PackedMatrix& shape = *call.groups[0].weight;
  const int64_t panel_bytes = PanelBytes(shape.dtype, shape.k), num_panels = NumPanels(shape.n);
  WorkspaceScope scope(ctx.workspace);
  const QuantizedX quantized = QuantizeX(ctx, call, kernel, shape.k);
  const int num_threads = ctx.pool->num_threads();
  std::byte* scratch = ctx.workspace->TakeBytes(num_threads * kThreadScratchBytes);

  int64_t num_groups = 0, num_rows = 0;
  for (const MatmulGroup& group : call.groups) {
    num_groups += group.m > 0;
    num_rows += group.m;
  }
  // Panels `first` .. `first + panels - 1` for the rows of all groups.
  const auto run = [&](int64_t first, int64_t panels, int thread_idx) {
    const std::byte* quantized_rows = quantized.rows;
    const int64_t first_column = first * kPanelRows;
    for (const MatmulGroup& group : call.groups) {
      if (group.m == 0) continue;
      PanelTask task;
      task.panels = group.weight->data + first * panel_bytes;
      task.panel_bytes = panel_bytes;
      task.num_panels = panels;
      task.num_columns = std::min(panels * kPanelRows, shape.n - first_column);
      task.k = shape.k;
      task.m = group.m;
      if (quantized.rows == nullptr) {
        task.x = reinterpret_cast<const std::byte*>(group.x);
        task.x_stride_bytes = group.x_stride * static_cast<int64_t>(sizeof(float));
        task.x_rows = group.x_rows;
      } else {
        task.x = quantized_rows;
        task.x_stride_bytes = quantized.row_bytes;
        task.x_rows = quantized.shared ? group.x_rows : nullptr;
        if (!quantized.shared) quantized_rows += group.m * quantized.row_bytes;
      }
      task.y = group.y + first_column;
      task.y_stride = group.y_stride;
      task.y_rows = group.y_rows;
      task.bias = call.bias != nullptr ? call.bias + first_column : nullptr;
      task.row_scale = group.row_scale;
      task.accumulate = call.accumulate;
      task.scratch = scratch + thread_idx * kThreadScratchBytes;
      kernel.run(task);
    }
  };
  if (call.swiglu) {
    // As many gates as ups a task, pairs of panels as the first cache holds them.
    const int64_t half = num_panels / 2, width = half * kPanelRows;
    const int64_t per_task =
        (PanelsPerTask(half, 2 * panel_bytes, shape.k, num_groups, 2 * num_rows, num_threads) + 1) / 2 * 2;
    const MatmulGroup& group = call.groups[0];
    ctx.pool->ParallelFor((half + per_task - 1) / per_task, [&](int64_t index, int thread_idx) {
      const int64_t first = index * per_task, panels = std::min(per_task, half - first);
      run(first, panels, thread_idx);
      run(half + first, panels, thread_idx);
      float* y = group.y + first * kPanelRows;
      SwiGluRowsAvx2({.gate = y, .up = y + width, .x_stride = group.y_stride, .m = group.m, .dim = panels * kPanelRows,
                      .y = y, .y_stride = group.y_stride});
    });
  } else {
    const int64_t per_task = PanelsPerTask(num_panels, panel_bytes, shape.k, num_groups, num_rows, num_threads);
    ctx.pool->ParallelFor((num_panels + per_task - 1) / per_task, [&](int64_t index, int thread_idx) {
      const int64_t first = index * per_task;
      run(first, std::min(per_task, num_panels - first), thread_idx);
    });
  }
  CountWeightBytes(ctx, num_panels * panel_bytes * num_groups);
}

void Run(const ExecContext& ctx, const MatmulCall& call) {
  if (const PanelKernel* kernel = FindPanelKernel(*call.groups[0].weight, ctx.isa, WorthInt16(ctx, call))) {
    return RunPanels(ctx, call, *kernel);
  }
  if (ctx.isa > Isa::kRef && ctx.counters != nullptr) {
    ctx.counters->generic_calls.fetch_add(1, std::memory_order_relaxed);
  }
  MatmulRef(ctx, call);
}

void CheckGroup(const MatmulGroup& group, const MatmulGroup& first) {
  CHECK(group.m >= 0 && group.weight != nullptr);
  const PackedMatrix& weight = *group.weight;
  CHECK(weight.n == first.weight->n && weight.k == first.weight->k && weight.dtype == first.weight->dtype &&
        weight.layout == first.weight->layout)
      << "groups of one matmul must have equal shape, type and layout";
  DCHECK(group.m == 0 || (group.x != nullptr && group.y != nullptr));
  DCHECK(group.m <= 1 || group.x_rows != nullptr || group.x_stride >= weight.k);
  DCHECK(group.m <= 1 || group.y_rows != nullptr || group.y_stride >= weight.n);
}

MatmulGroup GroupOf(const MatmulParams& params) {
  MatmulGroup group;
  group.weight = params.weight;
  group.m = params.m;
  group.x = params.x;
  group.x_stride = params.x_stride;
  group.y = params.y;
  group.y_stride = params.y_stride;
  CheckGroup(group, group);
  return group;
}

CudaMatmulParams OnGpu(const MatmulParams& params) {
  return {.x = params.x,
          .x_stride = params.x_stride,
          .m = params.m,
          .weight = CudaView(*params.weight),
          .bias = params.bias,
          .y = params.y,
          .y_stride = params.y_stride,
          .accumulate = params.accumulate,
          .fusion = params.fusion};
}

}  // namespace

bool MatmulFuses(const ExecContext& ctx, const MatmulParams& params) {
  return OnCuda(ctx) && ctx.cuda->backend != nullptr && ctx.cuda->backend->matmul_fuses(ctx.cuda->exec, OnGpu(params));
}

void Matmul(const ExecContext& ctx, const MatmulParams& params) {
  if (OnCuda(ctx)) {
    if (params.m == 0 || params.weight->n == 0) return;
    CudaMatmulParams on_gpu = OnGpu(params);
    on_gpu.x_half = FindHalf(ctx, on_gpu.weight, params.x, params.x_stride, params.m);
    const int64_t width = on_gpu.weight.n / (params.fusion.glu ? 2 : 1);
    ctx.cuda->halves.Overwritten(params.y, params.m, params.y_stride, width);
    if (params.fusion.glu) {
      on_gpu.y_half = ctx.cuda->halves.Begin(CudaHalfSource::kSwiGlu, params.y, params.y_stride, params.m, width);
    }
    if (ctx.cuda->Chain(on_gpu)) return;
    RunCudaMatmul(ctx, &CudaBackend::matmul, &CudaBackend::matmul_workspace_bytes, on_gpu);
    return;
  }
  DCHECK(!params.fusion.any());
  const MatmulGroup group = GroupOf(params);
  if (params.m == 0 || params.weight->n == 0) return;
  if (MatmulTap* tap = CurrentMatmulTap()) tap->OnRows(group);
  Run(ctx, {.groups = {&group, 1}, .bias = params.bias, .accumulate = params.accumulate});
}

void MatmulThenSwiGlu(const ExecContext& ctx, const MatmulParams& params) {
  DCHECK(!OnCuda(ctx) && !params.fusion.any() && !params.accumulate);
  const int64_t width = params.weight->n / 2;
  // One row reads a matrix as one stream.
  const bool together = params.m > 1 && params.weight->n % (2 * kPanelRows) == 0 && params.y_stride >= params.weight->n &&
                        FindPanelKernel(*params.weight, ctx.isa, /*as_int16=*/false) != nullptr;
  if (!together) {
    Matmul(ctx, params);
    SwiGlu(ctx, {.gate = params.y, .up = params.y + width, .x_stride = params.y_stride, .m = params.m, .dim = width,
                 .y = params.y, .y_stride = params.y_stride});
    return;
  }
  const MatmulGroup group = GroupOf(params);
  if (MatmulTap* tap = CurrentMatmulTap()) tap->OnRows(group);
  Run(ctx, {.groups = {&group, 1}, .bias = params.bias, .swiglu = true});
}

void GroupedMatmul(const ExecContext& ctx, const GroupedMatmulParams& params) {
  bool any = false;
  for (const MatmulGroup& group : params.groups) {
    CheckGroup(group, params.groups[0]);
    any |= group.m > 0 && group.weight->n > 0;
  }
  if (MatmulTap* tap = CurrentMatmulTap()) {
    for (const MatmulGroup& group : params.groups) tap->OnRows(group);
  }
  if (any) Run(ctx, {.groups = params.groups, .bias = nullptr, .accumulate = params.accumulate});
}

int64_t MatmulWorkspaceBytes(int64_t max_rows, int64_t k, int num_threads) {
  if (num_threads <= 0) num_threads = std::max(16, static_cast<int>(std::thread::hardware_concurrency()));
  const int64_t reference_row = Workspace::Padded(k * static_cast<int64_t>(sizeof(float)));
  return Workspace::Padded(max_rows * XRowBytes(k, kMaxXBlockBytes)) +
         num_threads * std::max(reference_row, Workspace::Padded(kThreadScratchBytes));
}

}  // namespace cachalot
