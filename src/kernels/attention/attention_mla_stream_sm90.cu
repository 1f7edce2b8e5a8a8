// Absorbed MLA decode (keys of 576, the value is their first 512, up to 16 heads, one token a sequence) over
// a paged 16-bit latent cache on Hopper, as one stream of bytes a block.
//
// Products are transposed, so that no heads are padded to the tensor cores' 64 rows: scores [64 tokens,
// heads] = latents queries^T, sums [512 columns, heads] = latents^T weights^T; both read the latents as they
// lie in shared memory, once along columns, once along rows. A thread has four heads in both, and few of
// their scores: the largest score of the earlier tokens stays in use until one exceeds it by so much that
// weights might leave F16's range, and only then the warps of a group agree on another.
//
// Four warps copy tiles of 64 tokens into two slots; each of two warpgroups attends the tiles of its slot.
// Work is laid out as in attention_stream.cuh, one block on each SM. What several blocks have attended is
// folded by a kernel behind this one. Bound: 1152 bytes a token. Of the 3,970 clocks they take for 64 tokens
// the tensor cores need about 1,500: 36 products of 64 x 32 and 32 of 64 x 16, each as long as it takes to
// read 64 x 16 latents and the other operand from shared memory.
//
// What earlier steps wrote is copied before the kernels in front of this one have ended
// (attention_stream_sm90.cu).
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_barrier.cuh"
#include "kernels/attention/attention_mla_stream.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kKeyDim = 576;
constexpr int kTokens = kSplitAlign;
constexpr int kPanels = kKeyDim / kPanelValues;
constexpr int kPanelTileBytes = kTokens * kPanelBytes;
constexpr int kTileBytes = kPanels * kPanelTileBytes;
constexpr int kQueryRows = 2 * kMlaHeads;  // and behind them their rests
constexpr int kQueryPanelBytes = kQueryRows * kPanelBytes;
constexpr int kWeightsBytes = kMlaHeads * kTokens * 2;
constexpr int kThreads = kMlaConsumers + kMlaGroup;
// Of a thread: at the start, so that a block of the kernel behind this one fits beside it, and then by what
// the warps do.
constexpr int kRegisters = 128, kCopierRegisters = 56, kConsumerRegisters = 160;
static_assert(kMlaConsumers * kConsumerRegisters + kMlaGroup * kCopierRegisters <= kThreads * kRegisters);
constexpr float kSlack = 8;  // by which a score may exceed what is taken for the largest, in units of log2
static_assert(kTokens == 64);

// All of the block's shared memory.
struct Shared {
  unsigned char slots[2][kTileBytes];  // of the warpgroups
  unsigned char queries[kPanels * kQueryPanelBytes];
  unsigned char weights[2][2][2][kWeightsBytes];  // of a group: of two tiles in turn: [heads][tokens],
                                                  // rounded, and the rests
  float hand[kMlaBlocks / 2 * 8][kMlaGroup];      // sums on their way to the other group
  float largest[2][4][kMlaHeads];                 // of a group's warps
  float group_m[2][kMlaHeads], warp_l[2][4][kMlaHeads];
  uint64_t full[2], empty[2];
};
static_assert(sizeof(Shared) <= 227 * 1024);

// The threads of one warpgroup. True for all if it is for any.
__device__ __forceinline__ bool MeetGroup(int group, bool flag = false) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(uint32_t{flag}), "r"(1 + group), "n"(kMlaGroup)
      : "memory");
  return any != 0;
}
// The copying warps; each brings 16 tokens of a tile, which lie in one block of the cache. Positions outside
// a piece become zeros.
template <typename T>
__device__ __forceinline__ void CopyShare(const PagedKv& kv, Walk walk, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32,
            own = static_cast<int>(threadIdx.x) % kMlaGroup / 32 * 16;
  const int first_row = lane / 8, column = lane % 8;
  bool waited = false;
  uint32_t slot = 0, parity = 1;  // slots are empty
  Piece piece;
  while (walk.Next(&piece)) {
    const int32_t* table = kv.block_tables + piece.seq.slot * kv.table_stride;
    const int old_end = piece.seq.kv_len - piece.seq.q_len;
    const int first = piece.begin / kTokens, tiles = (piece.end + kTokens - 1) / kTokens - first;
    const int last_run = (piece.end - 1) / kRun * kRun;
    for (int base = 0; base < tiles; base += 32) {
      const int count = min(32, tiles - base);
      const int mine = min((first + base + min(lane, count - 1)) * kTokens + own, last_run);
      const int block = __ldg(table + mine / kv.block_tokens), in_block = mine % kv.block_tokens;
      for (int i = 0; i < count; ++i) {
        const int64_t from_block = __shfl_sync(kAllLanes, block, i);
        const int row = __shfl_sync(kAllLanes, in_block, i), t0 = (first + base + i) * kTokens + own;
        const T* from = reinterpret_cast<const T*>(kv.data + from_block * kv.block_bytes) +
                        (row + first_row) * kKeyDim + column * 8;
        if (!waited && t0 + kRun > old_end) {
          WaitForEarlierKernels();
          waited = true;
        }
        WaitBarrier(SharedAddress(&shared.empty[slot]), parity);
        const uint32_t tile = SharedAddress(shared.slots[slot]);
#pragma unroll
        for (int step = 0; step < kRun / 4; ++step) {
          const int at = step * 4 + first_row;
          const bool valid = t0 + at >= piece.begin && t0 + at < piece.end;
          const T* source = valid ? from + step * 4 * kKeyDim : reinterpret_cast<const T*>(kv.data);
          const uint32_t to = tile + Swizzled<kPanelBytes>(own + at, column);
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel)
            CopyAsync16(to + panel * kPanelTileBytes, source + panel * kPanelValues, valid);
        }
        ArriveWhenCopied(SharedAddress(&shared.full[slot]));
        slot ^= 1;
        parity ^= slot ^ 1;
      }
    }
  }
}

// The queries of a sequence, scaled for softmax in base 2, kWidth values at a time, and their rests; by all
// consumers.
template <typename T, int kWidth>
__device__ __forceinline__ void StoreQueries(const AttentionParams& p, int64_t row, int heads,
                                             uint32_t queries) {
  constexpr int kUnits = kKeyDim / kWidth;  // of a head
  constexpr int kBatch = kMlaHeads * kUnits / kMlaConsumers / (4 / kWidth);
  static_assert(kMlaHeads * kUnits % (kBatch * kMlaConsumers) == 0);
  const float scale = p.scale * kLog2E;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < kMlaHeads * kUnits;
       first += kBatch * kMlaConsumers) {
    float q[kBatch][kWidth];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kMlaConsumers, head = at / kUnits;
#pragma unroll
      for (float& value : q[i]) value = 0;
      if (head >= heads) continue;
      const float* from = p.q + row * p.q_token_stride + head * p.q_head_stride + at % kUnits * kWidth;
      if constexpr (kWidth == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        q[i][0] = four.x, q[i][1] = four.y, q[i][2] = four.z, q[i][3] = four.w;
      } else {
        q[i][0] = from[0], q[i][1] = from[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kMlaConsumers, head = at / kUnits, column = at % kUnits * kWidth;
      const uint32_t panel = queries + column / kPanelValues * kQueryPanelBytes;
#pragma unroll
      for (int c = 0; c < kWidth; c += 2) {
        const float a = q[i][c] * scale, b = q[i][c + 1] * scale;
        const uint32_t rounded = Pack2(a, b, T{}), in_piece = (column % 8 + c) * 2;
        const int unit = column % kPanelValues / 8;
        StoreShared32(panel + Swizzled<kPanelBytes>(head, unit) + in_piece, rounded);
        StoreShared32(panel + Swizzled<kPanelBytes>(head + kMlaHeads, unit) + in_piece,
                      PackRest2(a, b, rounded, T{}));
      }
    }
  }
}

// Four 8x8 matrices of 16-bit values as mma's accumulators hold them, transposed; lane i gives the address of
// row i % 8 of matrix i / 8.
__device__ __forceinline__ void StoreMatrix4Transposed(uint32_t shared, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Weights of this thread's scores, [place of the head's pair][token][head], to `weights` (the address for
// this lane's row), and their rests behind them; returns their sums.
template <typename T>
__device__ __forceinline__ void StoreWeights(const float (&score)[8], const float (&m)[4], bool rests,
                                             uint32_t weights, float (&sum)[4]) {
  float w[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float largest = m[i / 4 * 2 + i % 2];
    w[i] = exp2f(score[i] - (largest == -CUDART_INF_F ? 0.0f : largest));
  }
  uint32_t rounded[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rounded[i] = Pack2(w[2 * i], w[2 * i + 1], T{});
    sum[i] = w[i / 2 * 4 + i % 2] + w[i / 2 * 4 + i % 2 + 2];
  }
  StoreMatrix4Transposed(weights, rounded);
  if (!rests) return;
  uint32_t rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rest[i] = PackRest2(w[2 * i], w[2 * i + 1], rounded[i], T{});
  StoreMatrix4Transposed(weights + kWeightsBytes, rest);
}

// Sums of values: o += latents^T weights^T.
template <typename T>
__device__ __forceinline__ void AddValues(float (&o)[kMlaBlocks][8], uint32_t tile, uint32_t weights) {
#pragma unroll
  for (int kk = 0; kk < kTokens / 16; ++kk) {
#pragma unroll
    for (int b = 0; b < kMlaBlocks; ++b) {
      Wgmma<T, 16, false>::MmaTransposed(
          o[b], RowsDescriptor(tile + b * kPanelTileBytes + kk * 16 * kPanelBytes, kPanelTileBytes),
          ColumnsDescriptor(weights + kk * 32), true);
    }
  }
}

// One tile at t0, of which positions [begin, end) are visible. Of two passes over the values the second is
// with the rests of the weights.
template <typename T>
__device__ __forceinline__ void AttendTile(Shared& shared, int group, uint32_t turn, int t0, int begin,
                                           int end, int passes, MlaState* state) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kMlaGroup / 32,
            quad = lane % 4;
  const uint32_t tile = SharedAddress(shared.slots[group]), queries = SharedAddress(shared.queries);
  const uint32_t weights = SharedAddress(shared.weights[group][turn]);
  float both[16];
  WgmmaBegin();
#pragma unroll
  for (int kk = 0; kk < kKeyDim / 16; ++kk) {
    Wgmma<T, kQueryRows, false>::Mma(both, ColumnsDescriptor(tile + kk / 4 * kPanelTileBytes + kk % 4 * 32),
                                     ColumnsDescriptor(queries + kk / 4 * kQueryPanelBytes + kk % 4 * 32),
                                     kk > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>(both);
  float score[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) score[i] = AddScoreRest(both[i], both[i + 8]);
  if (t0 < begin || t0 + kTokens > end) {
    const int t = t0 + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = t + i / 2 % 2 * 8;
      if (at < begin || at >= end) score[i] = -CUDART_INF_F;
    }
  }
  bool exceeds = false;
#pragma unroll
  for (int i = 0; i < 8; ++i) exceeds |= score[i] > state->m[i / 4 * 2 + i % 2] + kSlack;

  // Matrix i of a warp's weights: heads 8 (i / 2) .., tokens 8 (i % 2) ..
  const uint32_t to = weights + Swizzled<kPanelBytes>(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  float sum[4];
  StoreWeights<T>(score, state->m, passes > 1, to, sum);
  FenceForWgmma();
  if (MeetGroup(group, exceeds)) {
    float top[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      top[h] = fmaxf(score[h / 2 * 4 + h % 2], score[h / 2 * 4 + h % 2 + 2]);
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2)
        top[h] = fmaxf(top[h], __shfl_xor_sync(kAllLanes, top[h], lanes));
      if (lane < 4) shared.largest[group][warp][h / 2 * 8 + quad * 2 + h % 2] = top[h];
    }
    MeetGroup(group);
    float factor[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      float largest = state->m[h];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        largest = fmaxf(largest, shared.largest[group][w][h / 2 * 8 + quad * 2 + h % 2]);
      factor[h] = largest == -CUDART_INF_F ? 1.0f : exp2f(state->m[h] - largest);
      state->m[h] = largest;
      state->l[h] *= factor[h];
    }
#pragma unroll
    for (auto& block : state->o) {
#pragma unroll
      for (int i = 0; i < 8; ++i) block[i] *= factor[i / 4 * 2 + i % 2];
    }
    StoreWeights<T>(score, state->m, passes > 1, to, sum);
    FenceForWgmma();
    MeetGroup(group);
  }
#pragma unroll
  for (int h = 0; h < 4; ++h) state->l[h] += sum[h];

#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    WgmmaBegin();
    AddValues<T>(state->o, tile, weights + pass * kWeightsBytes);
    WgmmaCommit();
    WgmmaWait<0>(state->o);
  }
}

// The attending warpgroups.
template <typename T>
__device__ __forceinline__ void AttendShare(const AttentionParams& p, const AttentionSchedule& s, Walk walk,
                                            Shared& shared) {
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kMlaGroup, 0);
  const bool aligned =
      p.q_token_stride % 4 == 0 && p.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
  int taken = 0;       // tiles of the block before the piece
  uint32_t turns = 0;  // tiles of the group
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    const int first = piece.begin / kTokens, tiles = (piece.end + kTokens - 1) / kTokens - first;
    if (aligned) {
      StoreQueries<T, 4>(p, piece.seq.q_begin, s.group, SharedAddress(shared.queries));
    } else {
      StoreQueries<T, 2>(p, piece.seq.q_begin, s.group, SharedAddress(shared.queries));
    }
    FenceForWgmma();
    MlaConsumersMeet();
    const int passes =
        piece.seq.kv_len <= kPreciseTokens ? 2 : 1;  // the second with the rests of the weights
    MlaState state;
#pragma unroll
    for (auto& block : state.o) {
#pragma unroll
      for (float& value : block) value = 0;
    }
#pragma unroll
    for (int h = 0; h < 4; ++h) state.m[h] = -CUDART_INF_F, state.l[h] = 0;
#pragma unroll 1
    for (int i = (group ^ taken) & 1; i < tiles; i += 2, ++turns) {
      WaitBarrier(SharedAddress(&shared.full[group]), turns & 1);
      FenceForWgmma();
      AttendTile<T>(shared, group, turns & 1, (first + i) * kTokens, piece.begin, piece.end, passes, &state);
      Arrive(SharedAddress(&shared.empty[group]));
    }
    taken += tiles;
    FinishPiece(p, s, piece, &state, shared);
  }
}

template <typename T>
__global__ __maxnreg__(kRegisters) void MlaStreamKernel(const __grid_constant__ AttentionParams p,
                                                        const SeqSpan* spans,
                                                        const __grid_constant__ AttentionSchedule s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  LetNextKernelStart();
  if (threadIdx.x == kMlaConsumers) {
    for (int i = 0; i < 2; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), kMlaGroup);
      InitBarrier(SharedAddress(&shared.empty[i]), kMlaGroup);
    }
  }
  PrefetchUpcoming(p);
  const Walk walk(s, spans);
  __syncthreads();
  if (threadIdx.x >= kMlaConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCopierRegisters));
    CopyShare<T>(p.kv, walk, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
    AttendShare<T>(p, s, walk, shared);
  }
#endif
}

template <typename T>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                  const AttentionParams& params) {
  auto* kernel = &MlaStreamKernel<T>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared)}, "attention MLA stream"))
    return failure;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, schedule.stream_blocks, kThreads, int64_t{sizeof(Shared)},
                                           exec.stream, params, batch.spans, schedule);
  if (CudaStatus failure =
          CudaLaunched("attention MLA stream of %d spans, %d heads", batch.num_spans, params.num_q_heads))
    return failure;
  return RunMlaFold(exec, batch, schedule, params);
}

}  // namespace

bool MlaStreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule) {
  return CurrentTune().mla != CudaTune::Mla::kRounds && batch.max_q_len == 1 && schedule.stream_blocks > 0 &&
         schedule.stream_blocks <= kMlaMostPieces;
}

CudaStatus RunMlaStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                        const AttentionParams& params) {
  return params.kv.dtype == DType::kF16 ? Launch<__half>(exec, batch, schedule, params)
                                        : Launch<__nv_bfloat16>(exec, batch, schedule, params);
}

}  // namespace cachalot
