// Decode over a paged 16-bit cache with heads of 64 or 128 on Hopper, as one stream of bytes a block: a warp or two copy runs of 16
// tokens, many ahead, the others attend them, taking turns. Sixteen rows (token, query head of the group) a tile, as in
// attention_decode_sm80.cu, with the same arithmetic.
//
// Bound: the bytes of the visible keys and values. All (tile, KV head, 64 tokens) are laid end to end and shared out equally
// among one or two blocks on each SM, so that all end together; the copies go on while an item is merged and the next
// one's queries are fetched. A tile and head that several blocks share is folded by the last of them, in order of the blocks.
//
// What earlier steps wrote is copied before the kernels in front of this one have ended: between the plan of a step and a
// layer's attention only positions of the step's own tokens (from kv_len - q_len on) are written, and the plan's kernel has
// ended before any behind it starts.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_barrier.cuh"
#include "kernels/attention/attention_copy.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_run.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_stream.cuh"
#include "kernels/attention/attention_stream_merge.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

// kBlocks to an SM: one with many warps for little work, two for more. An SM has two warps that copy either way: what one can ask for is
// less than what memory gives (3.7 of 4.5 TB/s).
template <int kDim, int kBlocks>
struct Geometry {
  static constexpr int kConsumers = kBlocks == 1 ? 6 : 3;  // warps; with the copying ones eight on an SM, so that each may have 255 registers
  static constexpr int kCopiers = kBlocks == 1 ? 2 : 1;
  static constexpr int kConsumerThreads = kConsumers * 32;
  static constexpr int kThreads = kConsumerThreads + kCopiers * 32;
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kPieces = kDim / 8;              // of 16 bytes in a row
  static constexpr int kRunBytes = kRun * kRowBytes;    // keys, or values
  // A slot is always the same warp's: another one might wait for a slot's next run while the last has not even come, and take its
  // barrier's phase before for it.
  static constexpr int kSlots = 4 * kConsumers * 128 / kDim;
  static_assert(kSlots % kConsumers == 0 && kSlots % kCopiers == 0);
};

// All of the block's shared memory.
template <int kDim, int kBlocks>
struct Shared {
  using G = Geometry<kDim, kBlocks>;
  unsigned char slots[G::kSlots][2 * G::kRunBytes];  // keys, then values, of a run
  static constexpr int kConsumers = G::kConsumers;
  float merge[kConsumers][kMergeRows][kDim + kMergePad];
  float warp_m[kConsumers][kStreamRows], warp_l[kConsumers][kStreamRows];
  uint64_t full[G::kSlots], empty[G::kSlots];
  bool folds;
};
static_assert(sizeof(Shared<128, 1>) <= 227 * 1024 && sizeof(Shared<64, 1>) <= 227 * 1024);
static_assert(sizeof(Shared<128, 2>) <= 113 * 1024 && sizeof(Shared<64, 2>) <= 113 * 1024);

// A copying warp: of kCopiers each takes every other run of the block, so that a slot is always the same one's. Positions outside a piece
// become zeros.
template <typename T, int kDim, int kBlocks>
__device__ __forceinline__ void CopyShare(const PagedKv& kv, Walk walk, Shared<kDim, kBlocks>& shared) {
  using G = Geometry<kDim, kBlocks>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = lane / G::kPieces, piece_of_row = lane % G::kPieces;
  constexpr int kRowsAStep = 32 / G::kPieces, kSteps = kRun / kRowsAStep;
  bool waited = false;
  int others = static_cast<int>(threadIdx.x) / 32 - G::kConsumers;  // runs of the other copying warps before this one's next
  int slot = 0;
  uint32_t parity = 1;  // slots are empty
  const auto step = [&] {
    if (++slot == G::kSlots) {
      slot = 0;
      parity ^= 1;
    }
  };
  const uint64_t policy = kBlocks == 1 ? PassingPolicy() : 0;
  const auto copy = [&](uint32_t to, const T* source, bool valid) {
    if constexpr (kBlocks == 1) {
      CopyPassing16(to, source, valid, policy);
    } else {
      CopyAsync16(to, source, valid);
    }
  };
  Piece piece;
  while (walk.Next(&piece)) {
    const int32_t* table = kv.block_tables + piece.seq.slot * kv.table_stride;
    const int old_end = piece.seq.kv_len - piece.seq.q_len;
    const int64_t k_at = piece.kv_head * kv.k_head_stride + first_row * kDim + piece_of_row * 8;
    const int64_t v_at = kv.v_offset + piece.kv_head * kv.v_head_stride + first_row * kDim + piece_of_row * 8;
    for (int base = 0; base < piece.runs; base += 32) {
      const int count = min(32, piece.runs - base);
      const int mine = (piece.first_run + base + min(lane, count - 1)) * kRun;
      const int block = __ldg(table + mine / kv.block_tokens), in_block = mine % kv.block_tokens;
      for (int i = 0; i < count; ++i) {
        if constexpr (G::kCopiers > 1) {
          const bool mine_next = others == 0;
          others = mine_next ? G::kCopiers - 1 : others - 1;
          if (!mine_next) {
            step();
            continue;
          }
        }
        const int64_t from_block = __shfl_sync(kAllLanes, block, i);
        const int row = __shfl_sync(kAllLanes, in_block, i), t0 = (piece.first_run + base + i) * kRun;
        const T* from = reinterpret_cast<const T*>(kv.data + from_block * kv.block_bytes) + row * kDim;
        if (!waited && t0 + kRun > old_end) {
          WaitForEarlierKernels();
          waited = true;
        }
        const uint32_t keys = SharedAddress(shared.slots[slot]), values = keys + G::kRunBytes;
        WaitBarrier(SharedAddress(&shared.empty[slot]), parity);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int at = step * kRowsAStep + first_row;
          const bool valid = t0 + at >= piece.begin && t0 + at < piece.end;
          copy(keys + Swizzled<G::kRowBytes>(at, piece_of_row), from + k_at + step * kRowsAStep * kDim, valid);
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const int at = step * kRowsAStep + first_row;
          const bool valid = t0 + at >= piece.begin && t0 + at < piece.end;
          copy(values + Swizzled<G::kRowBytes>(at, piece_of_row), from + v_at + step * kRowsAStep * kDim, valid);
        }
        ArriveWhenCopied(SharedAddress(&shared.full[slot]));
        step();
      }
    }
  }
}

// Queries of a tile as A fragments, scaled for softmax in base 2: rounded, and the rests.
template <int kDim>
struct Queries {
  uint32_t high[kDim / 16][4];
  uint32_t rest[kDim / 16][4];
};

template <typename T, int kDim>
__device__ __forceinline__ void LoadQueries(const AttentionParams& p, const TileRow (&rows)[2], Queries<kDim>* q) {
  const int quad = threadIdx.x % 4;
  const float scale = p.scale * kLog2E;
  const bool pairs = p.q_token_stride % 2 == 0 && p.q_head_stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.q) % 8 == 0;
  float2 values[2][kDim / 8];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool exists = rows[r].position >= 0;
    const float* from = p.q + rows[r].row * p.q_token_stride + rows[r].head * p.q_head_stride + quad * 2;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      values[r][i] = {0, 0};
      if (!exists) continue;
      values[r][i] = pairs ? *reinterpret_cast<const float2*>(from + i * 8) : float2{from[i * 8], from[i * 8 + 1]};
    }
  }
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 value = values[i % 2][kk * 2 + i / 2];
      const float a = value.x * scale, b = value.y * scale;
      q->high[kk][i] = Pack2(a, b, T{});
      q->rest[kk][i] = PackRest2(a, b, q->high[kk][i], T{});
    }
  }
}

// One run of 16 tokens at t0: scores, softmax, values.
template <typename T, int kDim, int kBlocks>
__device__ __forceinline__ void AttendRun(uint32_t keys, const Queries<kDim>& q, int t0, const Visible& visible,
                                          WarpState<kDim>* state) {
  using G = Geometry<kDim, kBlocks>;
  const int lane = threadIdx.x % 32;
  const uint32_t values = keys + G::kRunBytes;
  float s[2][4] = {}, rest[2][4] = {};
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
    uint32_t k[4];
    LoadMatrix4(k, keys + Swizzled<G::kRowBytes>((lane & 7) + ((lane >> 4) << 3), kk * 2 + ((lane >> 3) & 1)));
    Mma(s[0], q.high[kk], k[0], k[1], T{});
    Mma(s[1], q.high[kk], k[2], k[3], T{});
    Mma(rest[0], q.rest[kk], k[0], k[1], T{});
    Mma(rest[1], q.rest[kk], k[2], k[3], T{});
  }
  Weights p;
  SoftmaxRun<T>(s, rest, t0, visible, state, &p);
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d) {
    uint32_t v[4];
    LoadMatrix4Transposed(v, values + Swizzled<G::kRowBytes>(lane & 15, d * 2 + (lane >> 4)));
    Mma(state->o[2 * d], p.high, v[0], v[1], T{});
    Mma(state->o[2 * d + 1], p.high, v[2], v[3], T{});
    Mma(state->o[2 * d], p.rest, v[0], v[1], T{});
    Mma(state->o[2 * d + 1], p.rest, v[2], v[3], T{});
  }
}

// The attending warps.
template <typename T, int kDim, int kBlocks>
__device__ __forceinline__ void AttendShare(const AttentionParams& p, const AttentionSchedule& s, Walk walk, Shared<kDim, kBlocks>& shared) {
  using G = Geometry<kDim, kBlocks>;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int taken = 0;  // runs of the block before the piece
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    const int first_row = piece.tile * TileRowsOf(s, piece.seq);
    TileRow rows[2];
    Visible visible;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = RowOfTile(piece.seq, first_row + lane / 4 + 8 * r, s.group, piece.kv_head);
      visible.begin[r] = VisibleBegin(rows[r].position, s.window);
      visible.end[r] = rows[r].position + 1;
    }
    Queries<kDim> q;
    LoadQueries<T, kDim>(p, rows, &q);
    WarpState<kDim> state;
    state.Clear();
    constexpr int kWarps = G::kConsumers;
    for (int run = (warp + kWarps - taken % kWarps) % kWarps; run < piece.runs; run += kWarps) {
      const int at = taken + run, slot = at % G::kSlots;
      WaitBarrier(SharedAddress(&shared.full[slot]), static_cast<uint32_t>(at / G::kSlots) & 1);
      AttendRun<T, kDim, kBlocks>(SharedAddress(shared.slots[slot]), q, (piece.first_run + run) * kRun, visible, &state);
      Arrive(SharedAddress(&shared.empty[slot]));
    }
    taken += piece.runs;
    MergePiece<kDim>(p, s, piece, state, shared);
  }
}

template <typename T, int kDim, int kBlocks>
__global__ __launch_bounds__(Geometry<kDim, kBlocks>::kThreads, kBlocks) void StreamKernel(const __grid_constant__ AttentionParams p, const SeqSpan* spans,
                                                            const __grid_constant__ AttentionSchedule s) {
#if __CUDA_ARCH__ >= 900
  using G = Geometry<kDim, kBlocks>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim, kBlocks>*>(memory);
  LetNextKernelStart();
  if (threadIdx.x == G::kConsumerThreads) {
    for (int i = 0; i < G::kSlots; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 32);
      InitBarrier(SharedAddress(&shared.empty[i]), 32);
    }
  }
  PrefetchUpcoming(p);
  const Walk walk(s, spans);
  __syncthreads();
  if (threadIdx.x >= G::kConsumerThreads) {
    CopyShare<T, kDim, kBlocks>(p.kv, walk, shared);
  } else {
    AttendShare<T, kDim, kBlocks>(p, s, walk, shared);
  }
#endif
}

template <typename T, int kDim, int kBlocks>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                  const AttentionParams& params) {
  auto* kernel = &StreamKernel<T, kDim, kBlocks>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared<kDim, kBlocks>)}, "attention stream")) return failure;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, schedule.stream_blocks, Geometry<kDim, kBlocks>::kThreads, int64_t{sizeof(Shared<kDim, kBlocks>)}, exec.stream, params,
                                           batch.spans, schedule);
  return CudaLaunched("attention stream of %d spans, %d/%d heads of %d", batch.num_spans, params.num_q_heads,
                      params.kv.num_kv_heads, kDim);
}

template <typename T>
CudaStatus LaunchDim(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                     const AttentionParams& params) {
  const bool one = schedule.stream_blocks_per_sm == 1;
  if (params.kv.k_dim == 64) {
    return one ? Launch<T, 64, 1>(exec, batch, schedule, params) : Launch<T, 64, 2>(exec, batch, schedule, params);
  }
  return one ? Launch<T, 128, 1>(exec, batch, schedule, params) : Launch<T, 128, 2>(exec, batch, schedule, params);
}

}  // namespace

bool StreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule) {
  if (CurrentTune().attention == CudaTune::Attention::kRounds || schedule.stream_blocks == 0) return false;
  // Drafts of several tiles: blocks side by side read the same tokens in attention_decode_sm80.cu.
  const int64_t rows = int64_t{batch.max_q_len} * schedule.group;
  return rows <= kStreamRows || rows > schedule.max_split_rows;
}

CudaStatus RunStreamAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                              const AttentionParams& params) {
  return params.kv.dtype == DType::kF16 ? LaunchDim<__half>(exec, batch, schedule, params)
                                        : LaunchDim<__nv_bfloat16>(exec, batch, schedule, params);
}

}  // namespace cachalot
