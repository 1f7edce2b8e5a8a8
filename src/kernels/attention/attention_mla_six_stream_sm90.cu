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

#ifndef SIX_CLOCK
#define SIX_CLOCK(i)
#define SIX_MODE 0
#define SIX_NOCOPY 0
#endif

namespace cachalot {
namespace {

constexpr int kTeams = 2, kSlots = 4;
constexpr int kTeamThreads = kSixGroups * 32;
constexpr int kScorers = kTeams * kTeamThreads, kConsumers = kScorers + kTeamThreads;  // threads
constexpr int kConsumerWarps = kConsumers / 32;
constexpr int kThreads = kConsumers + 128;  // of the last warpgroup one warp copies
// Of a thread: at the start, and then by what the warps do.
constexpr int kRegisters = 128, kConsumerRegisters = 160, kCopierRegisters = 32;
static_assert(kConsumers * kConsumerRegisters + 128 * kCopierRegisters <= kThreads * kRegisters);
constexpr int kBases = 4;
constexpr float kSlack = 8;  // by which a score may exceed what is taken for the largest, in units of log2
constexpr float kNone = FLT_MAX;
static_assert(kConsumers >= kFoldThreads && kScorers / 32 >= kCodeRows / 2);
static_assert(kSlots % kTeams == 0);  // a slot is always the same team's

// What the weights of a tile are relative to.
struct TileBase {
  float start[kCodeRows];  // minus the largest score, in units of log2; kNone: nothing was visible yet
  uint32_t exponent;       // of scales, in BF16's place
  int changed;             // since the tile before
};

// All of the block's shared memory.
struct Shared {
  SharedSixQueries queries;
  unsigned char slots[kSlots][kSixTileBytes];
  union {
    unsigned char bytes[kTeams][kSixTokens * kSixBytesRow];
    SixRows rows;  // between pieces: queries on their way in, sums on their way out
    SixFoldMemory fold;
  };
  SixWeights weights[kTeams][4];
  TileBase bases[kBases];
  float largest[kTeams][4][kCodeRows];  // of a team's warps
  uint32_t exponents[kTeams][4];
  float team_start[kTeams][kCodeRows], warp_l[kTeams][4][kCodeRows], sums_l[kCodeRows];
  uint64_t full[kSlots], empty[kSlots], based[kBases], scored[kTeams], added[kTeams];
  CodeCut cuts[2];
};

__device__ __forceinline__ void ConsumersMeet() { asm volatile("bar.sync 4, %0;\n" ::"n"(kConsumers) : "memory"); }
__device__ __forceinline__ void ScorersMeet() { asm volatile("bar.sync 1, %0;\n" ::"n"(kScorers) : "memory"); }
__device__ __forceinline__ void AddersMeet() { asm volatile("bar.sync 2, %0;\n" ::"n"(kTeamThreads) : "memory"); }
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
        if (turn >= kSlots) WaitBarrier(SharedAddress(&shared.empty[turn % kSlots]), (turn / kSlots & 1) ^ 1);
        const uint32_t barrier = SharedAddress(&shared.full[turn % kSlots]);
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

// The block's tiles, one after the other.
struct Turn {
  uint32_t number;
  __device__ __forceinline__ uint32_t slot() const { return number % kSlots; }
  __device__ __forceinline__ uint32_t team() const { return number % kTeams; }
  __device__ __forceinline__ uint32_t base() const { return number % kBases; }
};

// A scoring thread's softmax so far, of heads 2 quad, the next one and both + 8: h.
struct ScoreState {
  float start[4], l[4];  // what l is relative to (TileBase); of this thread's tokens
};

struct Scorer {
  int team, warp, lane;
  SixPlaces at;
  float factor[4];
};
__device__ __forceinline__ int HeadOf(int lane, int h) { return h / 2 * 8 + lane % 4 * 2 + h % 2; }

// Another base for the team's tile, where a score or a scale exceeds the one before. `most`: this lane's largest exponent.
__device__ __forceinline__ void AgreeAnew(Shared& shared, const Scorer& own, const float (&s)[8], uint32_t most, float (&start)[4], uint32_t* exponent) {
  const int lane = own.lane;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float largest = fmaxf(s[h / 2 * 4 + h % 2], s[h / 2 * 4 + h % 2 + 2]);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
    if (lane < 4) shared.largest[own.team][own.warp][HeadOf(lane, h)] = largest;
  }
  most = __reduce_max_sync(kAllLanes, most);
  if (lane == 0) shared.exponents[own.team][own.warp] = most;
  MeetTeam(own.team);
#pragma unroll
  for (int w = 0; w < 4; ++w) *exponent = max(*exponent, shared.exponents[own.team][w]);
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float largest = -CUDART_INF_F;
#pragma unroll
    for (int w = 0; w < 4; ++w) largest = fmaxf(largest, shared.largest[own.team][w][HeadOf(lane, h)]);
    if (largest != -CUDART_INF_F) start[h] = fminf(start[h], -largest * own.factor[h]);
  }
}

// A tile at t0; `first`: of its piece.
__device__ __forceinline__ void ScoreTile(Shared& shared, const Scorer& own, uint32_t queries, Turn turn, int t0, bool first, const Piece& piece,
                                          ScoreState* state) {
  const int lane = own.lane, g = lane / 4, quad = lane % 4;
  float s[8];
  uint32_t scales[2][2];
  const uint32_t parity = turn.number / kTeams & 1;  // of the team's barriers
  SixScores(SharedAddress(shared.slots[turn.slot()]), own.at, lane, queries, SharedAddress(shared.bytes[own.team]),
            [&] { WaitBarrier(SharedAddress(&shared.added[own.team]), parity ^ 1); }, s, scales);
  Arrive(SharedAddress(&shared.empty[turn.slot()]));
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

  float start[4] = {kNone, kNone, kNone, kNone};
  uint32_t exponent = kLeastSixScale;
  if (!first) {
    const Turn last = {turn.number - 1};
    WaitBarrier(SharedAddress(&shared.based[last.base()]), last.number / kBases & 1);
    const TileBase& base = shared.bases[last.base()];
#pragma unroll
    for (int h = 0; h < 4; ++h) start[h] = base.start[HeadOf(lane, h)];
    exponent = base.exponent;
  }
  float p[8];
  bool exceeds = most > exponent;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    p[i] = __fmaf_rn(s[i], own.factor[i / 4 * 2 + i % 2], start[i / 4 * 2 + i % 2]);
    exceeds |= p[i] > kSlack;
  }
  const bool changed = MeetTeam(own.team, exceeds);
  if (changed) {
    AgreeAnew(shared, own, s, most, start, &exponent);
#pragma unroll
    for (int i = 0; i < 8; ++i) p[i] = __fmaf_rn(s[i], own.factor[i / 4 * 2 + i % 2], start[i / 4 * 2 + i % 2]);
  }
  if (own.warp == 0) {
    TileBase& base = shared.bases[turn.base()];
    if (lane < 4) {
#pragma unroll
      for (int h = 0; h < 4; ++h) base.start[HeadOf(lane, h)] = start[h];
    }
    if (lane == 0) base.exponent = exponent, base.changed = changed;
    Arrive(SharedAddress(&shared.based[turn.base()]));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) p[i] = Exp2(p[i]);
  uint32_t rounded[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rounded[i] = Pack2(p[i % 2 * 4 + i / 2 * 2], p[i % 2 * 4 + i / 2 * 2 + 1], __half{});
  SixWeights& weights = shared.weights[own.team][own.warp];
  StoreMatrix4Transposed(SharedAddress(weights.weights) + static_cast<uint32_t>(lane * 16), rounded);
  const float inverse = __uint_as_float((254u << 23) - (exponent << 16)) * kSixBoost;
  const uint32_t to = SharedAddress(&weights.factors[quad][g / 2]) + static_cast<uint32_t>(g % 2 * 2);
#pragma unroll
  for (int r = 0; r < 2; ++r) StoreHalfWord(to + static_cast<uint32_t>(4 * r), __float2half_rn(__uint_as_float(scale[r]) * inverse));
  Arrive(SharedAddress(&shared.scored[own.team]));
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    if (start[h] != state->start[h]) {
      state->l[h] = state->start[h] == kNone ? 0.0f : state->l[h] * Exp2(start[h] - state->start[h]);
      state->start[h] = start[h];
    }
    state->l[h] += p[h / 2 * 4 + h % 2] + p[h / 2 * 4 + h % 2 + 2];
  }
}

// Sums of values, which a piece's last tile leaves relative to its base.
__device__ __forceinline__ void AddTile(Shared& shared, const SixPlaces& at, int lane, int part, Turn turn, bool first, SixSums* sums) {
  WaitBarrier(SharedAddress(&shared.scored[turn.team()]), turn.number / kTeams & 1);
  const TileBase& base = shared.bases[turn.base()];
  if (!first && base.changed != 0) {
    const TileBase& last = shared.bases[Turn{turn.number - 1}.base()];
    const float unit = __uint_as_float(static_cast<uint32_t>(max(127 - (static_cast<int>(base.exponent - last.exponent) >> 7), 0)) << 23);
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float now = base.start[lane / 4 + 8 * r], then = last.start[lane / 4 + 8 * r];
      by[r] = then == kNone ? 0.0f : (now == then ? 1.0f : Exp2(now - then)) * unit;
    }
    sums->Scale(by);
  }
  AddSixTile(SharedAddress(shared.bytes[turn.team()]), at, lane, part, shared.weights[turn.team()], sums);
  Arrive(SharedAddress(&shared.added[turn.team()]));
}

// By all: what lies in the rows is turned back, and becomes the output or a partial result.
__device__ __forceinline__ void EndPiece(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, const Piece& piece, Turn last,
                                         Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  ConsumersMeet();  // sums are in the rows, parts of l where they belong
  SIX_CLOCK(8);
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
    if (!piece.whole) s.partial_stats[partial * kMlaHeads + lane] = {start == kNone ? -CUDART_INF_F : -start, l};
  }
  if (piece.whole) ConsumersMeet();  // for l
  float4* to = reinterpret_cast<float4*>(s.partial_out + partial * kMlaSums);
#pragma unroll 3
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
  SIX_CLOCK(9);
  if (!piece.whole && threadIdx.x == 0) AddCut(s, piece, shared.cuts);
}

__device__ __forceinline__ void ScoreShare(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, Walk walk, bool aligned,
                                           Shared& shared) {
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  Scorer own = {warp / 4, warp % 4, lane, SixPlaces(lane, warp % 4), {}};
  const uint32_t queries = SharedAddress(&shared.queries);
  uint32_t taken = 0;  // tiles of the block before the piece
  Piece piece;
  WaitForEarlierKernels();
  SIX_CLOCK(1);
  while (walk.Next(&piece)) {
    StoreSixRows(p, planes, piece.seq.q_begin, s.group, warp, aligned, &shared.rows, &shared.queries);
    FenceForWgmma();
    ScorersMeet();
    ScoreState state;
#pragma unroll
    for (int h = 0; h < 4; ++h) state.start[h] = kNone, state.l[h] = 0, own.factor[h] = shared.queries.factors[HeadOf(lane, h)];
    const Tiles tiles(piece);
    SIX_CLOCK(2);
#pragma unroll 1
    for (int i = static_cast<int>((own.team + kTeams - taken % kTeams) % kTeams); i < tiles.count; i += kTeams) {
      const Turn turn = {taken + static_cast<uint32_t>(i)};
      WaitBarrier(SharedAddress(&shared.full[turn.slot()]), turn.number / kSlots & 1);
      if (i < kTeams) SIX_CLOCK(3);
      ScoreTile(shared, own, queries, turn, tiles.first + i * kSixTokens, i == 0, piece, &state);
    }
    taken += static_cast<uint32_t>(tiles.count);
    SIX_CLOCK(4);
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      float l = state.l[h];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) l += __shfl_xor_sync(kAllLanes, l, lanes);
      if (lane < 4) shared.warp_l[own.team][own.warp][HeadOf(lane, h)] = l;
      if (lane < 4 && own.warp == 0) shared.team_start[own.team][HeadOf(lane, h)] = state.start[h];
    }
    EndPiece(p, planes, s, piece, {taken - 1}, shared);
    SIX_CLOCK(5);
  }
}

__device__ __forceinline__ void AddShare(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, Walk walk, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, part = static_cast<int>(threadIdx.x) % kTeamThreads / 32;
  const SixPlaces at(lane, part);
  Turn turn = {0};
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    SixSums sums;
    sums.Clear();
    const Tiles tiles(piece);
#pragma unroll 1
    for (int i = 0; i < tiles.count; ++i, ++turn.number) AddTile(shared, at, lane, part, turn, i == 0, &sums);
    const Turn last = {turn.number - 1};
    sums.Finish(shared.bases[last.base()].exponent, 1.0f / static_cast<float>(planes.rotation));
    AddersMeet();  // all bytes have been read
#pragma unroll
    for (int j = 0; j < kSixTiles; j += 4) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = part * kSixColumns + SixColumnOf(lane % 4 * 2 + c % 2, j);
        shared.rows.fours[SixRows::At(lane / 4 + c / 2 * 8, column / 4)] = {sums.o[j][c], sums.o[j + 1][c], sums.o[j + 2][c], sums.o[j + 3][c]};
      }
    }
    EndPiece(p, planes, s, piece, last, shared);
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
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 1);
      InitBarrier(SharedAddress(&shared.empty[i]), kTeamThreads);
    }
    for (int i = 0; i < kTeams; ++i) {
      InitBarrier(SharedAddress(&shared.scored[i]), kTeamThreads);
      InitBarrier(SharedAddress(&shared.added[i]), kTeamThreads);
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
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));
  if (threadIdx.x >= kScorers) {
    AddShare(p, planes, s, walk, shared);
    return;
  }
  ScoreShare(p, planes, s, walk, aligned, shared);
  ScorersMeet();
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
