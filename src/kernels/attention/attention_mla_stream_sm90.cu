// Absorbed MLA decode (keys of 576, the value is their first 512, up to 16 heads, one token a sequence) over
// a paged 16-bit latent cache on Hopper, as one stream of bytes a block.
//
// Products are transposed, so that no heads are padded to the tensor cores' 64 rows: scores [64 tokens,
// heads] = latents queries^T, sums [512 columns, heads] = latents^T weights^T; both read the latents as they
// lie in shared memory, once along columns, once along rows. A thread has four heads in both, and few of
// their scores: the largest score of the earlier tokens stays in use until one exceeds it by so much that
// weights might leave F16's range, and only then the warps of a group agree on another.
//
// Four warps copy tiles of 48 tokens into three slots, two warpgroups attend them in turn: one slot is always
// on its way. A product has 64 rows all the same, of which the last 16 are of no tile. Work is laid out as in
// attention_stream.cuh, one block on each SM. A sequence that several blocks attend is folded by a kernel
// behind (attention_mla_fold_sm90.cu). Bound: 1152 bytes a token. Of the 2,980 clocks they take for 48 tokens
// the tensor cores need about 1,350: 36 products of 64 x 32 and 24 of 64 x 16, each as long as it takes to
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
#include "kernels/attention/attention_copy.cuh"
#include "kernels/attention/attention_mla_fold.cuh"
#include "kernels/attention/attention_mla_operands.cuh"
#include "kernels/attention/attention_mla_stream.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kTokens = 48;  // of a tile
constexpr int kTileRuns = kTokens / kRun, kTileRows = 64;
constexpr int kSlots = 3;
constexpr int kTurns = 2 * kSlots;  // after which a slot is the same warpgroup's again: barriers of their own
constexpr int kSmBytes = 228 * 1024,
              kReservedBytes = 1024;  // shared memory of an SM, and what each block costs beside its own
// Runs that a thread lets be under way beside the one it copies next, until the slots are full for the first time: more would only make
// the kernel in front wait, whose sums come by the same way.
constexpr int kFirstRuns = 2;
// Runs behind those that the slots hold, brought to L2 while nothing has been read yet, and clocks that memory takes for one.
constexpr int kAheadRuns = 6, kAheadClocks = 900;
constexpr int kTilesAtOnce = 32 / kTileRuns;  // whose blocks are looked up
// Of a warpgroup. Both meet equally often before they meet each other: racecheck loses count else.
constexpr int kMeetsOfTile = 3;
constexpr int kPanels = kMlaKeyDim / kPanelValues;
constexpr int kPanelTileBytes = kTokens * kPanelBytes;
// Products read on behind the last panel: into what follows it.
constexpr int kSlotBytes = kPanels * kPanelTileBytes;
constexpr int kThreads = kMlaConsumers + kMlaGroup;
// Of a thread: at the start, so that a block of the kernel behind this one fits beside it, and then by what
// the warps do.
constexpr int kRegisters = 128, kCopierRegisters = 64, kConsumerRegisters = 160;
static_assert(kMlaConsumers * kConsumerRegisters + kMlaGroup * kCopierRegisters <= kThreads * kRegisters);
constexpr int kDryRows = 4;  // tokens of a step, up to which a block first runs dry (AttendShare)
constexpr float kSlack = 8;  // by which a score may exceed what is taken for the largest, in units of log2
static_assert(kTokens % kRun == 0 && kTokens <= kTileRows && kSlotBytes % 1024 == 0);

// All of the block's shared memory.
struct Shared {
  unsigned char slots[kSlots][kSlotBytes];
  union {
    unsigned char queries[kPanels * kMlaQueryPanelBytes];
    MlaHand hand;  // at the end of a piece
  };
  unsigned char weights[2][2][kMlaWeightsBytes];  // of a group: [heads][tokens], rounded, and the rests
  float largest[2][4][kMlaHeads];                 // of a group's warps
  float group_m[2][kMlaHeads], warp_l[2][4][kMlaHeads], inverse_l[kMlaHeads];
  uint64_t full[kTurns], empty[kTurns];
};
// So that a block of the kernel that folds fits beside this one.
static_assert(sizeof(Shared) + sizeof(MlaFoldMemory) + 2 * kReservedBytes <= kSmBytes);

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

__device__ __forceinline__ void PrefetchRun(const std::byte* run) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(run), "n"(kRun * kMlaKeyDim * 2) : "memory");
}

// The copying warps; each brings four tokens of each of a tile's runs, which lie in one block of the cache
// each. Positions outside a piece become zeros. While all slots are full and wait for queries, the next runs go to L2,
// as fast as memory gives them.
template <typename T>
__device__ __forceinline__ void CopyShare(const PagedKv& kv, Walk walk, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kMlaGroup / 32;
  const int in_run = warp * 4 + lane / 8, column = lane % 8;
  constexpr int kLookedUp = kTilesAtOnce * kTileRuns;
  const uint64_t policy = PassingPolicy();
  bool waited = false;
  uint32_t turn = 0;  // tiles so far
  Piece piece;
  while (walk.Next(&piece)) {
    const int32_t* table = kv.block_tables + piece.seq.slot * kv.table_stride;
    const int old_end = piece.seq.kv_len - piece.seq.q_len;
    const int first = piece.begin / kRun * kRun, tiles = (piece.end - first + kTokens - 1) / kTokens;
    const int last_run = (piece.end - 1) / kRun * kRun;
    // Where this lane's run of a group of kTilesAtOnce tiles lies.
    const auto look_up = [&](int tile, int* row) {
      const int t = min(first + tile * kTokens + min(lane, kLookedUp - 1) * kRun, last_run);
      *row = t % kv.block_tokens;
      return __ldg(table + t / kv.block_tokens);
    };
    int next_row, next_block = look_up(0, &next_row);
    for (int base = 0; base < tiles; base += kTilesAtOnce) {
      const int row = next_row, block = next_block;
      next_block = look_up(base + kTilesAtOnce, &next_row);
      for (int i = 0; i < min(kTilesAtOnce, tiles - base); ++i, ++turn) {
        const int t0 = first + (base + i) * kTokens;
        if (!waited && t0 + kTokens > old_end) {
          WaitForEarlierKernels();
          waited = true;
        }
        if (turn == kSlots && i == kSlots && warp == 0) {
          WaitBarrier(SharedAddress(&shared.full[kSlots - 1]), 0);
          for (int run = 0; run < kAheadRuns; ++run) {
            const int64_t from_block = __shfl_sync(kAllLanes, block, i * kTileRuns + run);
            const int from_row = __shfl_sync(kAllLanes, row, i * kTileRuns + run);
            if (t0 + (run + 1) * kRun > min(old_end, piece.end)) break;
            if (lane == 0) PrefetchRun(kv.data + from_block * kv.block_bytes + from_row * (kMlaKeyDim * 2));
            bool freed = false;
            for (const int64_t begin = clock64(); !freed && clock64() - begin < kAheadClocks;)
              freed = PhaseIsOver(SharedAddress(&shared.empty[0]), 0);
            if (__any_sync(kAllLanes, freed)) break;
          }
        }
        if (turn >= kSlots)
          WaitBarrier(SharedAddress(&shared.empty[(turn - kSlots) % kTurns]), (turn - kSlots) / kTurns & 1);
        const uint32_t tile = SharedAddress(shared.slots[turn % kSlots]);
#pragma unroll
        for (int run = 0; run < kTileRuns; ++run) {
          if (turn < kSlots) WaitAsync<kFirstRuns>();
          const int64_t from_block = __shfl_sync(kAllLanes, block, i * kTileRuns + run);
          const int from_row = __shfl_sync(kAllLanes, row, i * kTileRuns + run) + in_run;
          const int at = run * kRun + in_run;
          const bool valid = t0 + at >= piece.begin && t0 + at < piece.end;
          const T* source = reinterpret_cast<const T*>(kv.data + (valid ? from_block * kv.block_bytes : 0)) +
                            (valid ? from_row * kMlaKeyDim + column * 8 : 0);
          const uint32_t to = tile + Swizzled<kPanelBytes>(at, column);
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel)
            CopyPassing16(to + panel * kPanelTileBytes, source + panel * kPanelValues, valid, policy);
          if (turn < kSlots) CommitAsync();
        }
        ArriveWhenCopied(SharedAddress(&shared.full[turn % kTurns]));
      }
    }
  }
}

// Sums of values: o += latents^T weights^T, of the group's own half of the columns and of the other's.
template <typename T>
__device__ __forceinline__ void AddValues(float (&o)[kMlaBlocks][8], int group, uint32_t tile,
                                          uint32_t weights) {
  constexpr int kHalf = kMlaBlocks / 2;
  const uint64_t own = RowsDescriptor(tile + group * kHalf * kPanelTileBytes, kPanelTileBytes);
  const uint64_t others = RowsDescriptor(tile + (group ^ 1) * kHalf * kPanelTileBytes, kPanelTileBytes);
  const uint64_t b = ColumnsDescriptor(weights);
#pragma unroll
  for (int kk = 0; kk < kTokens / 16; ++kk) {
#pragma unroll
    for (int block = 0; block < kMlaBlocks; ++block)
      Wgmma<T, 16, false>::MmaTransposed(
          o[block],
          Further(block < kHalf ? own : others, block % kHalf * kPanelTileBytes + kk * 16 * kPanelBytes),
          Further(b, kk * 32), true);
  }
}

// One tile at t0, of which positions [begin, end) are visible. Of two passes over the values the second is
// with the rests of the weights.
template <typename T>
__device__ __forceinline__ void AttendTile(Shared& shared, int group, uint32_t tile, int t0, int begin,
                                           int end, int passes, bool dry, MlaState* state) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kMlaGroup / 32,
            quad = lane % 4;
  const uint32_t weights = SharedAddress(shared.weights[group]);
  const uint64_t latents = ColumnsDescriptor(tile),
                 queries = ColumnsDescriptor(SharedAddress(shared.queries));
  float both[16];
  WgmmaBegin();
#pragma unroll
  for (int kk = 0; kk < kMlaKeyDim / 16; ++kk) {
    Wgmma<T, kMlaQueryRows, false>::Mma(both, Further(latents, kk / 4 * kPanelTileBytes + kk % 4 * 32),
                                        Further(queries, kk / 4 * kMlaQueryPanelBytes + kk % 4 * 32), kk > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>(both);
  float score[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) score[i] = AddScoreRest(both[i], both[i + 8]);
  if (t0 < begin || t0 + kTokens > end || warp >= kTileRuns) {
    const int t = t0 + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = t + i / 2 % 2 * 8;
      if (at < begin || at >= end || warp >= kTileRuns) score[i] = -CUDART_INF_F;
    }
  }
  bool exceeds = dry;
#pragma unroll
  for (int i = 0; i < 8; ++i) exceeds |= score[i] > state->m[i / 4 * 2 + i % 2] + kSlack;

  const bool rescaled = MeetGroup(group, exceeds);  // and all have read the weights of the tile before
  if (rescaled) {
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
  }
  // Matrix i of a warp's weights: heads 8 (i / 2) .., tokens 8 (i % 2) ..
  const uint32_t to = weights + Swizzled<kPanelBytes>(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
  float sum[4];
  StoreMlaWeights<T>(score, state->m, passes > 1, to, sum);
  FenceForWgmma();
  MeetGroup(group);
#pragma unroll
  for (int h = 0; h < 4; ++h) state->l[h] += sum[h];

#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    WgmmaBegin();
    AddValues<T>(state->o, group, tile, weights + pass * kMlaWeightsBytes);
    WgmmaCommit();
    if (pass == 0 && !rescaled) MeetGroup(group);  // as often for every tile (kMeetsOfTile)
    WgmmaWait<0>(state->o);
  }
}

// The attending warpgroups. `dry`: before they wait for the kernels in front they do all that they will do,
// with nothing visible and nothing written: what else has run on the SM meanwhile has taken their
// instructions' place in its caches.
template <typename T>
__device__ __forceinline__ void AttendShare(const AttentionParams& p, const AttentionSchedule& s, Walk walk,
                                            Shared& shared, bool dry) {
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kMlaGroup, 0);
  const bool aligned =
      p.q_token_stride % 4 == 0 && p.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
  uint32_t taken = 0;  // tiles of the block before the piece
  Piece piece;
  bool more = walk.Next(&piece);
  if (!more || !dry) WaitForEarlierKernels();
  while (more) {
    const int first = piece.begin / kRun * kRun, tiles = (piece.end - first + kTokens - 1) / kTokens;
    StoreMlaQueries<T>(p, piece.seq.q_begin, dry ? 0 : s.group, aligned, SharedAddress(shared.queries));
    FenceForWgmma();
    MlaConsumersMeet();
    const int passes =
        piece.seq.kv_len <= kPreciseTokens ? 2 : 1;  // the second with the rests of the weights
    MlaState state;
#pragma unroll
    for (auto& block : state.o) {
#pragma unroll
      for (float& o : block) o = 0;
    }
#pragma unroll
    for (int h = 0; h < 4; ++h) state.m[h] = -CUDART_INF_F, state.l[h] = 0;
#pragma unroll 1
    for (int i = dry ? 0 : static_cast<int>((group ^ taken) & 1); i < (dry ? 1 : tiles); i += 2) {
      const uint32_t turn = taken + static_cast<uint32_t>(i);
      if (!dry) WaitBarrier(SharedAddress(&shared.full[turn % kTurns]), turn / kTurns & 1);
      FenceForWgmma();
      AttendTile<T>(shared, group, SharedAddress(shared.slots[turn % kSlots]), first + i * kTokens,
                    piece.begin, dry ? piece.begin : piece.end, passes, dry, &state);
      if (!dry) Arrive(SharedAddress(&shared.empty[turn % kTurns]));
    }
    if (!dry && ((group ^ taken) & 1 & tiles)) {  // a tile less than the other
      for (int i = 0; i < kMeetsOfTile; ++i) MeetGroup(group);
    }
    FinishPiece(p, s, piece, dry, &state, shared);
    if (dry) {
      dry = false;
      WaitForEarlierKernels();
    } else {
      taken += static_cast<uint32_t>(tiles);
      more = walk.Next(&piece);
    }
    if (more) MlaConsumersMeet();  // what is in the queries' place has been read
  }
}

template <typename T>
__global__ __maxnreg__(kRegisters) void MlaStreamKernel(const __grid_constant__ AttentionParams p,
                                                        const SeqSpan* spans,
                                                        const __grid_constant__ AttentionSchedule s,
                                                        bool dry) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  LetNextKernelStart();
  if (threadIdx.x == kMlaConsumers) {
    for (int i = 0; i < kTurns; ++i) {
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
    AttendShare<T>(p, s, walk, shared, dry);
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
                                           exec.stream, params, batch.spans, schedule,
                                           batch.num_rows <= kDryRows);
  LaunchMlaFold(exec, batch, schedule, params);
  return CudaLaunched("attention MLA stream of %d spans, %d heads", batch.num_spans, params.num_q_heads);
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
