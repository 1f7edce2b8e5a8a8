// Absorbed MLA decode (up to 16 heads, one token a sequence) over a latent cache in INT6 with scales of 128 columns, as one stream of bytes a block;
// work is laid out and folded as in attention_mla_code_stream_sm90.cu.
//
// A warp copies tiles of 64 tokens as they lie in the cache, a bulk copy a run of 16 or four, into a ring. Teams of four warps attend a tile each
// in turn: a warp scores 16 tokens, all make their weights known to each other, and each adds 128 columns of all 64 (latent_six.h). A team meets
// once a tile, and once or twice more where a score exceeds the largest of its earlier ones by more than kSlack, or a scale the largest scale.
// Teams have sums of their own, which become one at the end of a piece.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/attention/attention_barrier.cuh"
#include "kernels/attention/attention_latent_values.cuh"
#include "kernels/attention/attention_mla_code_fold.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_run.cuh"
#include "kernels/attention/attention_six_tile.cuh"

#ifndef SIX_TEAMS
#define SIX_CLOCK(i)
#define SIX_MODE 0
#define SIX_TEAMS 2
#define SIX_SLOTS 5
#endif

namespace cachalot {
namespace {

constexpr int kTeams = SIX_TEAMS, kSlots = SIX_SLOTS;
constexpr int kTeamThreads = kSixGroups * 32;
constexpr int kConsumers = kTeams * kTeamThreads;
constexpr int kThreads = kConsumers + 128;  // of the last warpgroup one warp copies
// Of a thread: at the start, and then by what the warps do.
constexpr int kRegisters = kTeams == 2 ? 168 : 128, kConsumerRegisters = kTeams == 2 ? 224 : 144, kCopierRegisters = 56;
static_assert(kConsumers * kConsumerRegisters + 128 * kCopierRegisters <= kThreads * kRegisters);
constexpr int kTurns = kTeams * kSlots;  // after which a slot is the same team's again: barriers of their own
constexpr float kSlack = 8;              // by which a score may exceed what is taken for the largest, in units of log2
static_assert(kConsumers >= kFoldThreads);

// A team's sums on their way to the first.
using Hand = float4[kSixTiles][kTeamThreads];

// All of the block's shared memory.
struct Shared {
  unsigned char slots[kSlots][kSixTileBytes];
  SharedSixQueries queries;
  SixWeights weights[kTeams][2][4];
  union {
    Hand hand;
    CodeFoldMemory fold;
  };
  float largest[kTeams][4][kCodeRows];  // of a team's warps
  uint32_t exponents[kTeams][4];
  float team_m[kTeams][kCodeRows], warp_l[kTeams][4][kCodeRows];
  uint64_t full[kTurns], empty[kTurns];
  CodeCut cuts[2];
};

__device__ __forceinline__ void ConsumersMeet() { asm volatile("bar.sync 4, %0;\n" ::"n"(kConsumers) : "memory"); }
// The threads of a team. True for all if it is for any.
__device__ __forceinline__ bool MeetTeam(int team, bool flag = false) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(uint32_t{flag}), "r"(5 + team), "n"(kTeamThreads)
      : "memory");
  return any != 0;
}

__device__ __forceinline__ void CopyBulk(uint32_t to, const std::byte* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

// Tiles of a piece: the first begins at a multiple of kSixTokens, and may lie in front of what is visible.
struct Tiles {
  int first, count;
  __device__ __forceinline__ explicit Tiles(const Piece& piece)
      : first(piece.begin / kSixTokens * kSixTokens), count((piece.end - first + kSixTokens - 1) / kSixTokens) {}
};

// Each lane has the block of a run of its own; four in a row have a tile.
__device__ __forceinline__ void CopyShare(const PagedKv& kv, const CodePlanes& planes, Walk walk, Shared& shared) {
  constexpr int kTilesAtOnce = 32 / kSixRuns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Where a block's planes are a run's, they are one piece of memory.
  const bool whole = planes.key.high == kSixHigh && planes.key.scales == kSixScales && planes.exact == kSixExact;
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
        if (turn >= kSlots) WaitBarrier(SharedAddress(&shared.empty[(turn - kSlots) % kTurns]), (turn - kSlots) / kTurns & 1);
        const uint32_t barrier = SharedAddress(&shared.full[turn % kTurns]);
        const int begin = max(t0 / kRun, first_run), end = min(t0 / kRun + kSixRuns, last_run + 1);
        if (lane == 0) ArriveExpecting(barrier, SIX_MODE == 1 ? 0u : static_cast<uint32_t>(end - begin) * kSixRunBytes);
        __syncwarp();
        const int run = lane - i * kSixRuns;
        if (SIX_MODE != 1 && run >= 0 && run < kSixRuns && t0 / kRun + run >= begin && t0 / kRun + run < end) {
          const uint32_t to = SharedAddress(shared.slots[turn % kSlots]) + static_cast<uint32_t>(run * kSixRunPitch);
          if (whole) {
            CopyBulk(to, from, kSixRunBytes, barrier);
          } else {
            CopyBulk(to, from + planes.key.main + row * kSixMainRow, kRunTokens * kSixMainRow, barrier);
            CopyBulk(to + kSixHigh, from + planes.key.high + row * kSixHighRow, kRunTokens * kSixHighRow, barrier);
            CopyBulk(to + kSixScales, from + planes.key.scales + row * kSixScaleRow, kRunTokens * kSixScaleRow, barrier);
            CopyBulk(to + kSixExact, from + planes.exact + row * kSixExactRow, kRunTokens * kSixExactRow, barrier);
          }
        }
      }
    }
  }
}

// A team's softmax so far. Rows g and g + 8; scores before their rows' factors.
struct TeamState {
  SixSums sums;
  float m[2];
  float l[2];         // of this thread's tokens
  uint32_t exponent;  // of scales, in BF16's place
};

struct TeamWarp {
  int team, warp, lane;
  SixPlaces at;
  float starts[2][kSixGroups], factor[2], slack[2];
};

// A tile at t0 in `slot`; `odd`: every other one of the team.
__device__ __forceinline__ void AttendTile(Shared& shared, const TeamWarp& own, uint32_t slot, int t0, const Piece& piece, int odd, TeamState* state) {
  const int lane = own.lane, g = lane / 4, quad = lane % 4;
  float s[2][4];
  uint32_t scales[2][2][2];
  SixScores(slot, own.at, lane, shared.queries, own.starts, s, scales);
  if (t0 < piece.begin || t0 + kSixTokens > piece.end) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = i / 2, e = i % 2, n = 2 * quad + e;
      const int t = t0 + SixRunOf(n) * kRun + SixTokenOf(own.warp, tile, n);
      if (t >= piece.begin && t < piece.end) continue;
      s[tile][e] = s[tile][2 + e] = -CUDART_INF_F;
      scales[tile][e][0] = scales[tile][e][1] = 0;
    }
  }
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) most = __vmaxu2(most, scales[i / 4][i / 2 % 2][i % 2]);
  most = max(most >> 16, most & 0xffffu) & 0x7f80u;
  bool exceeds = most > state->exponent;
#pragma unroll
  for (int i = 0; i < 8; ++i) exceeds |= s[i / 4][i % 4] > state->m[i % 4 / 2] + own.slack[i % 4 / 2];

  SixWeights& weights = shared.weights[own.team][odd][own.warp];
  float sum[2];
  while (true) {
    float p[2][4];
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float start = state->m[r] == -CUDART_INF_F ? 0.0f : -state->m[r] * own.factor[r];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int c = 2 * r; c < 2 * r + 2; ++c) {
          p[tile][c] = Exp2(__fmaf_rn(s[tile][c], own.factor[r], start));
          sum[r] += p[tile][c];
        }
      }
    }
    StoreWords4(SharedAddress(&weights.weights[lane]), Pack2(p[0][0], p[0][1], __half{}), Pack2(p[0][2], p[0][3], __half{}),
                Pack2(p[1][0], p[1][1], __half{}), Pack2(p[1][2], p[1][3], __half{}));
    if (g < kSixGroups) {
      const float inverse = __uint_as_float((254u << 23) - (state->exponent << 16)) * kSixBoost;
      float of[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) of[i] = ScaleOf(g < 2 ? scales[i / 2][i % 2][0] : scales[i / 2][i % 2][1], g % 2 != 0) * inverse;
      StoreWords2(SharedAddress(&weights.factors[g][quad]), Pack2(of[0], of[1], __half{}), Pack2(of[2], of[3], __half{}));
    }
    if (!MeetTeam(own.team, exceeds)) break;
    exceeds = false;
    float largest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
      if (quad == 0) shared.largest[own.team][own.warp][g + 8 * r] = largest[r];
    }
    most = __reduce_max_sync(kAllLanes, most);
    if (lane == 0) shared.exponents[own.team][own.warp] = most;
    MeetTeam(own.team);
    uint32_t exponent = state->exponent;
#pragma unroll
    for (int w = 0; w < 4; ++w) exponent = max(exponent, shared.exponents[own.team][w]);
    const float unit = __uint_as_float(static_cast<uint32_t>(max(127 - (static_cast<int>(exponent - state->exponent) >> 7), 0)) << 23);
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = state->m[r];
#pragma unroll
      for (int w = 0; w < 4; ++w) m = fmaxf(m, shared.largest[own.team][w][g + 8 * r]);
      by[r] = m == state->m[r] ? 1.0f : Exp2((state->m[r] - m) * own.factor[r]);
      state->l[r] *= by[r];
      by[r] *= unit;
      state->m[r] = m;
    }
    state->exponent = exponent;
    state->sums.Scale(by);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) state->l[r] += sum[r];
  if (SIX_MODE != 3) AddSixTile(slot, own.at, lane, own.warp, shared.weights[own.team][odd], &state->sums);
}

// The teams' softmaxes of a piece become one: the output, or a partial result.
__device__ __forceinline__ void EndPiece(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, const Piece& piece,
                                         const TeamWarp& own, TeamState* state, Shared& shared) {
  const int lane = own.lane, g = lane / 4, thread = static_cast<int>(threadIdx.x) % kTeamThreads;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float l = state->l[r];
    l += __shfl_xor_sync(kAllLanes, l, 1);
    l += __shfl_xor_sync(kAllLanes, l, 2);
    if (lane % 4 == 0) shared.warp_l[own.team][own.warp][g + 8 * r] = l;
    if (lane % 4 == 0 && own.warp == 0) shared.team_m[own.team][g + 8 * r] = state->m[r];
  }
  ConsumersMeet();
  float m[2], l[2], by[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = -CUDART_INF_F, l[r] = 0;
#pragma unroll
    for (int team = 0; team < kTeams; ++team) m[r] = fmaxf(m[r], shared.team_m[team][g + 8 * r]);
#pragma unroll
    for (int team = 0; team < kTeams; ++team) {
      const float team_m = shared.team_m[team][g + 8 * r];
      const float weight = team_m == -CUDART_INF_F ? 0.0f : team_m == m[r] ? 1.0f : Exp2((team_m - m[r]) * own.factor[r]);
      if (team == own.team) by[r] = weight / static_cast<float>(planes.rotation);
#pragma unroll
      for (int w = 0; w < 4; ++w) l[r] = __fmaf_rn(shared.warp_l[team][w][g + 8 * r], weight, l[r]);
    }
  }
  auto& o = state->sums.o;
  state->sums.Finish(state->exponent, by);
  for (int team = 1; team < kTeams; ++team) {
    if (own.team == team) {
#pragma unroll
      for (int j = 0; j < kSixTiles; ++j) shared.hand[j][thread] = {o[j][0], o[j][1], o[j][2], o[j][3]};
    }
    ConsumersMeet();
    if (own.team == 0) {
#pragma unroll
      for (int j = 0; j < kSixTiles; ++j) {
        const float4 more = shared.hand[j][thread];
        o[j][0] += more.x, o[j][1] += more.y, o[j][2] += more.z, o[j][3] += more.w;
      }
    }
    if (team + 1 < kTeams) ConsumersMeet();
  }
  if (own.team != 0) return;
  if (planes.rotation > 1) TurnBack(lane, o);
  const int64_t partial = 2 * static_cast<int64_t>(blockIdx.x) + (piece.continues ? 0 : 1);
  float4* to = reinterpret_cast<float4*>(s.partial_out + partial * kMlaSums) + thread;
#pragma unroll
  for (int i = 0; i < SixFours::kOfThread; ++i) {
    const int j = i / 4 * 4, c = i % 4;  // 2 r + e
    const float4 four = {o[j][c], o[j + 1][c], o[j + 2][c], o[j + 3][c]};
    if (piece.whole) {
      SixFours::Write(p, piece.seq.q_begin, s.group, i * kTeamThreads + thread, four, 1.0f / l[c / 2]);
    } else {
      to[i * kTeamThreads] = four;
    }
  }
  if (piece.whole) return;
  if (own.warp == 0 && lane % 4 == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) s.partial_stats[partial * kMlaHeads + g + 8 * r] = {m[r] * own.factor[r], l[r]};
  }
  MeetTeam(0);
  if (threadIdx.x == 0) AddCut(s, piece, shared.cuts);
}

__device__ __forceinline__ void AttendShare(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, Walk walk, bool aligned,
                                            Shared& shared) {
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  TeamWarp own = {warp / 4, warp % 4, lane, SixPlaces(lane, warp % 4), {}, {}, {}};
  uint32_t taken = 0;  // tiles of the block before the piece
  int odd = 0;
  Piece piece;
  WaitForEarlierKernels();
  SIX_CLOCK(1);
  while (walk.Next(&piece)) {
#pragma unroll 1
    for (int r = warp; r < kCodeRows; r += kConsumers / 32) StoreSixRow(p, planes, RowOfTile(piece.seq, r, s.group, 0), r, aligned, &shared.queries);
    ConsumersMeet();
    TeamState state;
    state.sums.Clear();
    state.exponent = kLeastSixScale;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      state.m[r] = -CUDART_INF_F, state.l[r] = 0;
      own.factor[r] = shared.queries.factors[row];
      own.slack[r] = fminf(kSlack / own.factor[r], FLT_MAX);  // of no number: not one
#pragma unroll
      for (int group = 0; group < kSixGroups; ++group) own.starts[r][group] = shared.queries.starts[row][group];
    }
    const Tiles tiles(piece);
    SIX_CLOCK(2);
#pragma unroll 1
    for (int i = static_cast<int>((own.team + kTeams - taken % kTeams) % kTeams); i < tiles.count; i += kTeams, odd ^= 1) {
      const uint32_t turn = taken + static_cast<uint32_t>(i);
      WaitBarrier(SharedAddress(&shared.full[turn % kTurns]), turn / kTurns & 1);
      if (i < kTeams) SIX_CLOCK(3);
      if (SIX_MODE != 2) AttendTile(shared, own, SharedAddress(shared.slots[turn % kSlots]), tiles.first + i * kSixTokens, piece, odd, &state);
      Arrive(SharedAddress(&shared.empty[turn % kTurns]));
    }
    taken += static_cast<uint32_t>(tiles.count);
    SIX_CLOCK(4);
    EndPiece(p, planes, s, piece, own, &state, shared);
    SIX_CLOCK(5);
  }
}

__global__ __maxnreg__(kRegisters) void MlaSixStreamKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ CodePlanes planes,
                                                           const SeqSpan* spans, const __grid_constant__ AttentionSchedule s, bool aligned) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  SIX_CLOCK(0);
  LetNextKernelStart();
  if (threadIdx.x == kConsumers) {
    for (CodeCut& cut : shared.cuts) cut.last = -1;
    for (int i = 0; i < kTurns; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 1);
      InitBarrier(SharedAddress(&shared.empty[i]), kTeamThreads);
    }
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  }
  PrefetchUpcoming(p);
  const Walk walk(s, spans);
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCopierRegisters));
    if (threadIdx.x < kConsumers + 32) CopyShare(p.kv, planes, walk, shared);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
  AttendShare(p, planes, s, walk, aligned, shared);
  ConsumersMeet();
  if (threadIdx.x < kFoldThreads) {
#pragma unroll 1
    for (const CodeCut& cut : shared.cuts) {
      if (cut.last >= 0) FoldCut<SixFours>(p, s, cut, &shared.fold);
    }
  }
  SIX_CLOCK(6);
#endif
}

}  // namespace

bool MlaSixStreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule, const CodePlanes& planes) {
  return MlaStreamCovers(batch, schedule) && planes.key.code == KvCode::kInt6 && planes.key.groups == kSixGroups;
}

CudaStatus RunMlaSixStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                           const CodePlanes& planes) {
  static_assert(sizeof(Shared) <= 227 * 1024);
  auto* kernel = &MlaSixStreamKernel;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared)}, "attention MLA stream over INT6")) return failure;
  const bool aligned = params.q_token_stride % 4 == 0 && params.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(params.q) % 16 == 0;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, static_cast<unsigned>(schedule.stream_blocks), kThreads, int64_t{sizeof(Shared)}, exec.stream, params,
                                           planes, batch.spans, schedule, aligned);
  return CudaLaunched("attention MLA stream over INT6 of %d spans, %d heads", batch.num_spans, params.num_q_heads);
}

}  // namespace cachalot
