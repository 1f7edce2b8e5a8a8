// Absorbed MLA decode (up to 16 heads, one token a sequence) over a latent cache in INT6 with scales of 128
// columns, as one stream of bytes a block; work is laid out and folded as in
// attention_mla_code_stream_sm90.cu.
//
// A warp copies tiles of 64 tokens as they lie in the cache, a bulk copy a run of 16 or four, into a ring. Two teams of four warps score a
// tile each in turn (latent_six.h): each warp 16 tokens; codes come apart in registers, as wgmma's operand A, and their bytes are left for four
// more warps, which have 128 columns each of the weighted sums and take all tiles in order. What a tile's weights are relative to (TileBase) is
// the tile's before it, unless a score exceeds that by more than kSlack, or a scale the largest scale; so bits depend on no timing.
//
// Bound: memory. 520 bytes a token; a tile takes 1,880 clocks of an SM at 4.4 TB/s and 1.98 GHz. Instructions of a tile: about 560 of each of
// four scoring warps, 300 of each adding one: 860 of each scheduler. Without copies a tile takes 2,230 clocks all the same, for reasons that are
// not known: neither products (IMMA or wgmma), nor more warps that score or add, nor fewer instructions changed that by much.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_six_block.cuh"

namespace cachalot {
namespace {

using namespace six;

__device__ __forceinline__ void CopyBulk(uint32_t to, const std::byte* from, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Each lane has the block of a run of its own; four in a row have a tile.
__device__ __forceinline__ void CopyShare(const PagedKv& kv, const CodePlanes& planes, Walk walk,
                                          Shared& shared) {
  constexpr int kTilesAtOnce = 32 / kSixRuns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Where a block's planes are a run's, they are one piece of memory.
  const bool whole =
      planes.key.high == kSixHigh && planes.key.scales == kSixScales && planes.exact == kSixExact;
  bool waited = false;
  uint32_t turn = 0;  // tiles so far
  Piece piece;
  while (walk.Next(&piece)) {
    const int32_t* table = kv.block_tables + piece.seq.slot * kv.table_stride;
    const int old_end = piece.seq.kv_len - piece.seq.q_len;
    const Tiles tiles(piece);
    const int first_run = piece.begin / kRun, last_run = (piece.end - 1) / kRun;
    const auto look_up = [&](int tile, int* row) {
      const int t = min(max(tiles.first / kRun + tile * kSixRuns + lane, first_run), last_run) * kRun;
      *row = t % kv.block_tokens;
      return __ldg(table + t / kv.block_tokens);
    };
    int next_row, next_block = look_up(0, &next_row);
    for (int base = 0; base < tiles.count; base += kTilesAtOnce) {
      const int row = next_row;
      const std::byte* from = kv.data + int64_t{next_block} * kv.block_bytes;
      next_block = look_up(base + kTilesAtOnce, &next_row);
      for (int i = 0; i < min(kTilesAtOnce, tiles.count - base); ++i, ++turn) {
        const int t0 = tiles.first + (base + i) * kSixTokens;
        if (!waited && t0 + kSixTokens > old_end) {
          WaitForEarlierKernels();
          waited = true;
        }
        if (turn >= kSlots) WaitBarrier(SharedAddress(&shared.empty[turn % kSlots]), (turn / kSlots & 1) ^ 1);
        const uint32_t barrier = SharedAddress(&shared.full[turn % kSlots]);
        const int begin = max(t0 / kRun, first_run), end = min(t0 / kRun + kSixRuns, last_run + 1);
        if (lane == 0) ArriveExpecting(barrier, static_cast<uint32_t>(end - begin) * kSixRunBytes);
        __syncwarp();
        const int run = lane - i * kSixRuns;
        if (run >= 0 && run < kSixRuns && t0 / kRun + run >= begin && t0 / kRun + run < end) {
          const uint32_t to =
              SharedAddress(shared.slots[turn % kSlots]) + static_cast<uint32_t>(run * kSixRunPitch);
          if (whole) {
            CopyBulk(to, from, kSixRunBytes, barrier);
          } else {
            CopyBulk(to, from + planes.key.main + row * kSixMainRow, kRunTokens * kSixMainRow, barrier);
            CopyBulk(to + kSixHigh, from + planes.key.high + row * kSixHighRow, kRunTokens * kSixHighRow,
                     barrier);
            CopyBulk(to + kSixScales, from + planes.key.scales + row * kSixScaleRow,
                     kRunTokens * kSixScaleRow, barrier);
            CopyBulk(to + kSixExact, from + planes.exact + row * kSixExactRow, kRunTokens * kSixExactRow,
                     barrier);
          }
        }
      }
    }
  }
}

// By all: what lies in the rows is turned back, and becomes the output or a partial result.
__device__ __forceinline__ void EndPiece(const AttentionParams& p, const CodePlanes& planes,
                                         const AttentionSchedule& s, const Piece& piece, Turn last,
                                         Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  ConsumersMeet();  // sums are in the rows, parts of l where they belong
  const int64_t partial = 2 * static_cast<int64_t>(blockIdx.x) + (piece.continues ? 0 : 1);
  if (warp == kConsumerWarps - 1 && lane < kCodeRows) {
    const float start = shared.bases[last.base()].start[lane];
    float l = 0;
#pragma unroll
    for (int team = 0; team < kTeams; ++team) {
      const float of_team = shared.team_start[team][lane];
      const float weight = of_team == kNone ? 0.0f : Exp2(start - of_team);
#pragma unroll
      for (int w = 0; w < 4; ++w) l = __fmaf_rn(shared.warp_l[team][w][lane], weight, l);
    }
    shared.sums_l[lane] = l;
    if (!piece.whole)
      s.partial_stats[partial * kMlaHeads + lane] = {start == kNone ? -CUDART_INF_F : -start, l};
  }
  if (piece.whole) ConsumersMeet();  // for l
  float4* to = reinterpret_cast<float4*>(s.partial_out + partial * kMlaSums);
#pragma unroll 2
  for (int i = warp; i < kCodeRows * kSixGroups; i += kConsumerWarps) {
    const int row = i / kSixGroups, four = i * 32 + lane;
    float4 sum = shared.rows.fours[SixRows::At(row, four % SixRows::kFours)];
    if (planes.rotation > 1) RotateFour(&sum);
    if (piece.whole) {
      WriteSixFour(p, piece.seq.q_begin, s.group, four, sum, 1.0f / shared.sums_l[row]);
    } else {
      to[four] = sum;
    }
  }
  ConsumersMeet();  // what is in the rows has been read, and all is written
  if (!piece.whole && threadIdx.x == 0) AddCut(s, piece, shared.cuts);
}

__device__ __forceinline__ void ScoreShare(const AttentionParams& p, const CodePlanes& planes,
                                           const AttentionSchedule& s, Walk walk, bool aligned,
                                           Shared& shared) {
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0),
            lane = static_cast<int>(threadIdx.x) % 32;
  Scorer own = {warp / 4, warp % 4, lane, SixPlaces(lane, warp % 4), {}};
  const uint32_t queries = SharedAddress(&shared.queries);
  uint32_t taken = 0;  // tiles of the block before the piece
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    StoreSixRows(p, planes, piece.seq.q_begin, s.group, warp, aligned, &shared.rows, &shared.queries);
    FenceForWgmma();
    ScorersMeet();
    ScoreState state;
#pragma unroll
    for (int h = 0; h < 4; ++h)
      state.start[h] = kNone, state.l[h] = 0, own.factor[h] = shared.queries.factors[HeadOf(lane, h)];
    const Tiles tiles(piece);
#pragma unroll 1
    for (int i = static_cast<int>((own.team + kTeams - taken % kTeams) % kTeams); i < tiles.count;
         i += kTeams) {
      const Turn turn = {taken + static_cast<uint32_t>(i)};
      WaitBarrier(SharedAddress(&shared.full[turn.slot()]), turn.number / kSlots & 1);
      ScoreTile(shared, own, queries, turn, tiles.first + i * kSixTokens, i == 0, piece, &state);
    }
    taken += static_cast<uint32_t>(tiles.count);
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      float l = state.l[h];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) l += __shfl_xor_sync(kAllLanes, l, lanes);
      if (lane < 4) shared.warp_l[own.team][own.warp][HeadOf(lane, h)] = l;
      if (lane < 4 && own.warp == 0) shared.team_start[own.team][HeadOf(lane, h)] = state.start[h];
    }
    EndPiece(p, planes, s, piece, {taken - 1}, shared);
  }
}

__device__ __forceinline__ void AddShare(const AttentionParams& p, const CodePlanes& planes,
                                         const AttentionSchedule& s, Walk walk, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = (static_cast<int>(threadIdx.x) - kScorers) / 32;
  const SixSources at(lane, group);
  Turn turn = {0};
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    SixSums sums;
    sums.Clear();
    const Tiles tiles(piece);
#pragma unroll 1
    for (int i = 0; i < tiles.count; ++i, ++turn.number)
      AddTile(shared, at, lane, group, turn, i == 0, &sums);
    const Turn last = {turn.number - 1};
    sums.Finish(shared.bases[last.base()].exponent, 1.0f / static_cast<float>(planes.rotation));
    AddersMeet();  // all bytes have been read
#pragma unroll
    for (int j = 0; j < kSixTiles; j += 4) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = group * kSixColumns + SixColumnOf(lane % 4 * 2 + c % 2, j);
        shared.rows.fours[SixRows::At(lane / 4 + c / 2 * 8, column / 4)] = {
            sums.o[j][c], sums.o[j + 1][c], sums.o[j + 2][c], sums.o[j + 3][c]};
      }
    }
    EndPiece(p, planes, s, piece, last, shared);
  }
}

__global__ __maxnreg__(kRegisters) void MlaSixStreamKernel(const __grid_constant__ AttentionParams p,
                                                           const __grid_constant__ CodePlanes planes,
                                                           const SeqSpan* spans,
                                                           const __grid_constant__ AttentionSchedule s,
                                                           bool aligned) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  LetNextKernelStart();
  if (threadIdx.x == kConsumers) {
    for (CodeCut& cut : shared.cuts) cut.last = -1;
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 1);
      InitBarrier(SharedAddress(&shared.empty[i]), kTeamThreads);
    }
    for (int i = 0; i < kTeams; ++i) {
      InitBarrier(SharedAddress(&shared.scored[i]), kTeamThreads);
      InitBarrier(SharedAddress(&shared.added[i]), kAdders);
    }
    for (int i = 0; i < kBases; ++i) InitBarrier(SharedAddress(&shared.based[i]), 32);
    FenceForWgmma();
  }
  PrefetchUpcoming(p);
  const Walk walk(s, spans);
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCopierRegisters));
    if (threadIdx.x < kConsumers + 32) CopyShare(p.kv, planes, walk, shared);
    return;
  }
  if (threadIdx.x >= kScorers) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kAdderRegisters));
    AddShare(p, planes, s, walk, shared);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kScorerRegisters));
  ScoreShare(p, planes, s, walk, aligned, shared);
  ScorersMeet();
  if (threadIdx.x < kFoldThreads) {
#pragma unroll 1
    for (const CodeCut& cut : shared.cuts) {
      if (cut.last >= 0) FoldSixCut(p, s, cut, &shared.fold);
    }
  }
#endif
}

}  // namespace

bool MlaSixStreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule, const CodePlanes& planes) {
  return MlaStreamCovers(batch, schedule) && planes.key.code == KvCode::kInt6 &&
         planes.key.groups == kSixGroups;
}

CudaStatus RunMlaSixStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                           const AttentionParams& params, const CodePlanes& planes) {
  static_assert(sizeof(Shared) <= 227 * 1024);
  auto* kernel = &MlaSixStreamKernel;
  if (CudaStatus failure =
          AllowSharedBytes(kernel, int64_t{sizeof(Shared)}, "attention MLA stream over INT6"))
    return failure;
  const bool aligned = params.q_token_stride % 4 == 0 && params.q_head_stride % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(params.q) % 16 == 0;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, static_cast<unsigned>(schedule.stream_blocks), kThreads,
                                           int64_t{sizeof(Shared)}, exec.stream, params, planes, batch.spans,
                                           schedule, aligned);
  return CudaLaunched("attention MLA stream over INT6 of %d spans, %d heads", batch.num_spans,
                      params.num_q_heads);
}

}  // namespace cachalot
