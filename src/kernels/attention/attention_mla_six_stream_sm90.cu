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
#include "kernels/attention/attention_mla_operands.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_run.cuh"
#include "kernels/attention/attention_six_fold.cuh"
#include "kernels/attention/attention_six_tile.cuh"

#ifndef SIX_TEAMS
#define SIX_CLOCK(i)
#define SIX_MODE 0
#define SIX_NOCOPY 0
#define SIX_TEAMS 2
#define SIX_SLOTS 4
#endif

namespace cachalot {
namespace {

constexpr int kTeams = SIX_TEAMS, kSlots = SIX_SLOTS;
constexpr int kTeamThreads = kSixGroups * 32;
constexpr int kConsumers = kTeams * kTeamThreads;
constexpr int kThreads = kConsumers + 128;  // of the last warpgroup one warp copies
// Of a thread: at the start, and then by what the warps do.
constexpr int kRegisters = kTeams == 2 ? 168 : 128, kConsumerRegisters = kTeams == 2 ? 224 : 160, kCopierRegisters = kTeams == 2 ? 56 : 32;
static_assert(kConsumers * kConsumerRegisters + 128 * kCopierRegisters <= kThreads * kRegisters);
constexpr int kTurns = kTeams * kSlots;  // after which a slot is the same team's again: barriers of their own
constexpr float kSlack = 8;              // by which a score may exceed what is taken for the largest, in units of log2
static_assert(kConsumers >= kFoldThreads && kConsumers / 32 >= kCodeRows / 2);

// All of the block's shared memory.
struct Shared {
  SharedSixQueries queries;
  unsigned char slots[kSlots][kSixTileBytes];
  SixWeights weights[kTeams][4];
  union {
    unsigned char bytes[kTeams][kSixTokens * kSixBytesRow];
    SixRows rows;  // between pieces: queries on their way in, sums on their way out
    SixFoldMemory fold;
  };
  float largest[kTeams][4][kCodeRows];  // of a team's warps
  uint32_t exponents[kTeams][4];
  float team_m[kTeams][kCodeRows], warp_l[kTeams][4][kCodeRows], sums_l[kCodeRows];
  uint64_t full[kTurns], empty[kTurns], drained[kTeams];  // drained: of a team's bytes
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
        if (lane == 0) ArriveExpecting(barrier, SIX_NOCOPY ? 0u : static_cast<uint32_t>(end - begin) * kSixRunBytes);
        __syncwarp();
        const int run = lane - i * kSixRuns;
        if (!SIX_NOCOPY && run >= 0 && run < kSixRuns && t0 / kRun + run >= begin && t0 / kRun + run < end) {
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

// A team's softmax so far. Scores are before their heads' factors; heads 2 quad, the next one and both + 8: h.
struct TeamState {
  SixSums sums;
  float m[4];         // what is taken for the largest; -infinity: nothing was visible yet
  float start[4];     // minus that in units of log2, or 0
  float limit[4];     // which none may exceed
  float l[4];         // of this thread's tokens
  float row_m[2];     // of heads g and g + 8
  uint32_t exponent;  // of scales, in BF16's place
};

struct TeamWarp {
  int team, warp, lane;
  SixPlaces at;
  float factor[4], slack[4];
  float row_factor[2];
};

// Another largest score, or scale, for all of the team; `most`: this lane's largest exponent.
__device__ __forceinline__ void AgreeAnew(Shared& shared, const TeamWarp& own, const float (&s)[8], uint32_t most, TeamState* state) {
  const int lane = own.lane, g = lane / 4, quad = lane % 4;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float largest = fmaxf(s[h / 2 * 4 + h % 2], s[h / 2 * 4 + h % 2 + 2]);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
    if (g == 0) shared.largest[own.team][own.warp][h / 2 * 8 + quad * 2 + h % 2] = largest;
  }
  most = __reduce_max_sync(kAllLanes, most);
  if (lane == 0) shared.exponents[own.team][own.warp] = most;
  MeetTeam(own.team);
  uint32_t exponent = state->exponent;
#pragma unroll
  for (int w = 0; w < 4; ++w) exponent = max(exponent, shared.exponents[own.team][w]);
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float m = state->m[h];
#pragma unroll
    for (int w = 0; w < 4; ++w) m = fmaxf(m, shared.largest[own.team][w][h / 2 * 8 + quad * 2 + h % 2]);
    if (m != state->m[h]) state->l[h] *= Exp2((state->m[h] - m) * own.factor[h]);
    state->m[h] = m;
    state->start[h] = m == -CUDART_INF_F ? 0.0f : -m * own.factor[h];
    state->limit[h] = m + own.slack[h];
  }
  const float unit = __uint_as_float(static_cast<uint32_t>(max(127 - (static_cast<int>(exponent - state->exponent) >> 7), 0)) << 23);
  float by[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m = state->row_m[r];
#pragma unroll
    for (int w = 0; w < 4; ++w) m = fmaxf(m, shared.largest[own.team][w][g + 8 * r]);
    by[r] = (m == state->row_m[r] ? 1.0f : Exp2((state->row_m[r] - m) * own.row_factor[r])) * unit;
    state->row_m[r] = m;
  }
  state->exponent = exponent;
  state->sums.Scale(by);
}

// A tile at t0 in `slot`; `odd`: every other one of the team.
__device__ __forceinline__ void AttendTile(Shared& shared, const TeamWarp& own, uint32_t queries, uint32_t slot, uint32_t empty, int t0, const Piece& piece,
                                           int odd, TeamState* state) {
  const int lane = own.lane, g = lane / 4, quad = lane % 4;
  float s[8];
  uint32_t scales[2][2];
  const uint32_t bytes = SharedAddress(shared.bytes[own.team]), drained = SharedAddress(&shared.drained[own.team]);
  SixScores(slot, own.at, lane, queries, bytes, [&] { WaitBarrier(drained, odd ^ 1); }, s, scales);
  Arrive(empty);
  uint32_t scale[2];  // of group `quad`, as an upper half
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t word = quad < 2 ? scales[r][0] : scales[r][1];
    scale[r] = quad % 2 == 0 ? word << 16 : word & 0xffff0000u;
  }
  if (t0 < piece.begin || t0 + kSixTokens > piece.end) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = t0 + SixRunOf(g) * kRun + SixTokenOf(own.warp, r, g);
      if (t >= piece.begin && t < piece.end) continue;
      scale[r] = 0;
#pragma unroll
      for (int j = 0; j < 8; j += 4) s[j + 2 * r] = s[j + 2 * r + 1] = -CUDART_INF_F;
    }
  }
  const uint32_t most = max(scale[0], scale[1]) >> 16 & 0x7f80u;
  bool exceeds = most > state->exponent;
#pragma unroll
  for (int i = 0; i < 8; ++i) exceeds |= s[i] > state->limit[i / 4 * 2 + i % 2];

  SixWeights& weights = shared.weights[own.team][own.warp];
  float sum[4];
  while (true) {
    float p[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i / 4 * 2 + i % 2;
      p[i] = Exp2(__fmaf_rn(s[i], own.factor[h], state->start[h]));
    }
    uint32_t rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[i] = p[i / 2 * 4 + i % 2] + p[i / 2 * 4 + i % 2 + 2];
      rounded[i] = Pack2(p[i % 2 * 4 + i / 2 * 2], p[i % 2 * 4 + i / 2 * 2 + 1], __half{});
    }
    StoreMatrix4Transposed(SharedAddress(weights.weights) + static_cast<uint32_t>(lane * 16), rounded);
    const float inverse = __uint_as_float((254u << 23) - (state->exponent << 16)) * kSixBoost;
    const uint32_t to = SharedAddress(&weights.factors[quad][g / 2]) + static_cast<uint32_t>(g % 2 * 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) StoreHalfWord(to + static_cast<uint32_t>(4 * r), __float2half_rn(__uint_as_float(scale[r]) * inverse));
    if (!MeetTeam(own.team, exceeds)) break;
    exceeds = false;
    AgreeAnew(shared, own, s, most, state);
  }
#pragma unroll
  for (int h = 0; h < 4; ++h) state->l[h] += sum[h];
  if (SIX_MODE != 3) AddSixTile(bytes, own.at, lane, own.warp, shared.weights[own.team], &state->sums);
  Arrive(drained);
}

// The teams' softmaxes of a piece become one: the output, or a partial result.
__device__ __forceinline__ void EndPiece(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, const Piece& piece,
                                         const TeamWarp& own, TeamState* state, Shared& shared) {
  const int lane = own.lane, g = lane / 4;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float l = state->l[h];
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) l += __shfl_xor_sync(kAllLanes, l, lanes);
    const int head = h / 2 * 8 + lane % 4 * 2 + h % 2;
    if (g == 0) shared.warp_l[own.team][own.warp][head] = l;
    if (g == 0 && own.warp == 0) shared.team_m[own.team][head] = state->m[h];
  }
  ConsumersMeet();
  SIX_CLOCK(7);
  float m[2], l[2], by[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = -CUDART_INF_F, l[r] = 0;
#pragma unroll
    for (int team = 0; team < kTeams; ++team) m[r] = fmaxf(m[r], shared.team_m[team][g + 8 * r]);
#pragma unroll
    for (int team = 0; team < kTeams; ++team) {
      const float team_m = shared.team_m[team][g + 8 * r];
      const float weight = team_m == -CUDART_INF_F ? 0.0f : team_m == m[r] ? 1.0f : Exp2((team_m - m[r]) * own.row_factor[r]);
      if (team == own.team) by[r] = weight / static_cast<float>(planes.rotation);
#pragma unroll
      for (int w = 0; w < 4; ++w) l[r] = __fmaf_rn(shared.warp_l[team][w][g + 8 * r], weight, l[r]);
    }
  }
  auto& o = state->sums.o;
  state->sums.Finish(state->exponent, by);
  const int64_t partial = 2 * static_cast<int64_t>(blockIdx.x) + (piece.continues ? 0 : 1);
  if (own.team == 0 && own.warp == 0 && lane % 4 == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shared.sums_l[g + 8 * r] = l[r];
      if (!piece.whole) s.partial_stats[partial * kMlaHeads + g + 8 * r] = {m[r] * own.row_factor[r], l[r]};
    }
  }
#pragma unroll 1
  for (int team = 0; team < kTeams; ++team) {
    if (own.team == team) {
#pragma unroll
      for (int j = 0; j < kSixTiles; j += 4) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int column = own.warp * kSixColumns + SixColumnOf(lane % 4 * 2 + c % 2, j);
          float4& four = shared.rows.fours[SixRows::At(g + c / 2 * 8, column / 4)];
          float4 sum = {0, 0, 0, 0};
          if (team > 0) sum = four;
          four = {sum.x + o[j][c], sum.y + o[j + 1][c], sum.z + o[j + 2][c], sum.w + o[j + 3][c]};
        }
      }
    }
    ConsumersMeet();
  }
  SIX_CLOCK(8);
  const int warp = own.team * 4 + own.warp;
  float4* to = reinterpret_cast<float4*>(s.partial_out + partial * kMlaSums);
#pragma unroll 4
  for (int i = warp; i < kCodeRows * kSixGroups; i += kConsumers / 32) {
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
  SIX_CLOCK(9);
  if (!piece.whole && threadIdx.x == 0) AddCut(s, piece, shared.cuts);
}

__device__ __forceinline__ void AttendShare(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, Walk walk, bool aligned,
                                            Shared& shared) {
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  TeamWarp own = {warp / 4, warp % 4, lane, SixPlaces(lane, warp % 4), {}, {}, {}};
  const uint32_t queries = SharedAddress(&shared.queries);
  uint32_t taken = 0;  // tiles of the block before the piece
  // Of the team's next tile.
  uint32_t turn = static_cast<uint32_t>(own.team), slot = turn, parity = 0;
  int odd = 0;
  Piece piece;
  WaitForEarlierKernels();
  SIX_CLOCK(1);
  while (walk.Next(&piece)) {
    if (warp < kCodeRows / 2) StoreSixRows(p, planes, piece.seq.q_begin, s.group, warp, aligned, &shared.rows, &shared.queries);
    FenceForWgmma();
    ConsumersMeet();
    TeamState state;
    state.sums.Clear();
    state.exponent = kLeastSixScale;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      state.m[h] = state.limit[h] = -CUDART_INF_F, state.l[h] = state.start[h] = 0;
      own.factor[h] = shared.queries.factors[h / 2 * 8 + lane % 4 * 2 + h % 2];
      own.slack[h] = fminf(__fdividef(kSlack, own.factor[h]), FLT_MAX);  // of no number: not one
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) state.row_m[r] = -CUDART_INF_F, own.row_factor[r] = shared.queries.factors[lane / 4 + 8 * r];
    const Tiles tiles(piece);
    SIX_CLOCK(2);
#pragma unroll 1
    for (int i = static_cast<int>((own.team + kTeams - taken % kTeams) % kTeams); i < tiles.count; i += kTeams, odd ^= 1) {
      WaitBarrier(SharedAddress(&shared.full[turn]), parity);
      if (i < kTeams) SIX_CLOCK(3);
      AttendTile(shared, own, queries, SharedAddress(shared.slots[slot]), SharedAddress(&shared.empty[turn]), tiles.first + i * kSixTokens, piece, odd, &state);
      turn += kTeams, slot += kTeams;
      if (slot >= kSlots) slot -= kSlots;
      if (turn >= kTurns) turn -= kTurns, parity ^= 1;
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
    for (int team = 0; team < kTeams; ++team) InitBarrier(SharedAddress(&shared.drained[team]), kTeamThreads);
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
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
  AttendShare(p, planes, s, walk, aligned, shared);
  ConsumersMeet();
  if (threadIdx.x < kFoldThreads) {
#pragma unroll 1
    for (const CodeCut& cut : shared.cuts) {
      if (cut.last >= 0) FoldSixCut(p, s, cut, &shared.fold);
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
