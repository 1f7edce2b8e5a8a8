// A block of attention_mla_six_stream_sm90.cu: its shared memory, and a tile on its way from warps that score
// to warps that add.
#pragma once

#include "kernels/attention/attention_barrier.cuh"
#include "kernels/attention/attention_mla_operands.cuh"
#include "kernels/attention/attention_run.cuh"
#include "kernels/attention/attention_six_fold.cuh"
#include "kernels/attention/attention_six_tile.cuh"

namespace cachalot::six {

inline constexpr int kTeams = 2, kSlots = 4;
inline constexpr int kTeamThreads = kSixGroups * 32;
inline constexpr int kScorers = kTeams * kTeamThreads, kAdders = kTeamThreads,
                     kConsumers = kScorers + kAdders;  // threads
inline constexpr int kConsumerWarps = kConsumers / 32;
inline constexpr int kThreads = kConsumers + 128;  // of the last warpgroup one warp copies
// Of a thread: at the start, and then by what the warps do.
inline constexpr int kRegisters = 128, kScorerRegisters = 160, kAdderRegisters = 160, kCopierRegisters = 32;
static_assert(kScorers * kScorerRegisters + kAdders * kAdderRegisters + 128 * kCopierRegisters <=
              kThreads * kRegisters);
inline constexpr int kBases = 4;
inline constexpr float kSlack =
    8;  // by which a score may exceed what is taken for the largest, in units of log2
inline constexpr float kNone = FLT_MAX;
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

__device__ __forceinline__ void ConsumersMeet() {
  asm volatile("bar.sync 4, %0;\n" ::"n"(kConsumers) : "memory");
}
__device__ __forceinline__ void ScorersMeet() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kScorers) : "memory");
}
__device__ __forceinline__ void AddersMeet() {
  asm volatile("bar.sync 2, %0;\n" ::"n"(kAdders) : "memory");
}
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

// Tiles of a piece: the first begins at a multiple of kSixTokens, and may lie in front of what is visible.
struct Tiles {
  int first, count;
  __device__ __forceinline__ explicit Tiles(const Piece& piece)
      : first(piece.begin / kSixTokens * kSixTokens),
        count((piece.end - first + kSixTokens - 1) / kSixTokens) {}
};

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
__device__ __forceinline__ int HeadOf(int lane, int h) {
  return h / 2 * 8 + lane % 4 * 2 + h % 2;
}

// Another base for the team's tile, where a score or a scale exceeds the one before. `most`: this lane's
// largest exponent.
__device__ __forceinline__ void AgreeAnew(Shared& shared, const Scorer& own, const float (&s)[8],
                                          uint32_t most, float (&start)[4], uint32_t* exponent) {
  const int lane = own.lane;
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    float largest = fmaxf(s[h / 2 * 4 + h % 2], s[h / 2 * 4 + h % 2 + 2]);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
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
__device__ __forceinline__ void ScoreTile(Shared& shared, const Scorer& own, uint32_t queries, Turn turn,
                                          int t0, bool first, const Piece& piece, ScoreState* state) {
  const int lane = own.lane, g = lane / 4, quad = lane % 4;
  float s[8];
  uint32_t scales[2][2];
  const uint32_t parity = turn.number / kTeams & 1;  // of the team's barriers
  SixScores(
      SharedAddress(shared.slots[turn.slot()]), own.at, lane, queries, SharedAddress(shared.bytes[own.team]),
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
    for (int i = 0; i < 8; ++i)
      p[i] = __fmaf_rn(s[i], own.factor[i / 4 * 2 + i % 2], start[i / 4 * 2 + i % 2]);
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
  for (int i = 0; i < 4; ++i)
    rounded[i] = Pack2(p[i % 2 * 4 + i / 2 * 2], p[i % 2 * 4 + i / 2 * 2 + 1], __half{});
  SixWeights& weights = shared.weights[own.team][own.warp];
  StoreMatrix4Transposed(SharedAddress(weights.weights) + static_cast<uint32_t>(lane * 16), rounded);
  const float inverse = __uint_as_float((254u << 23) - (exponent << 16)) * kSixBoost;
  const uint32_t to = SharedAddress(&weights.factors[quad][g / 2]) + static_cast<uint32_t>(g % 2 * 2);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    StoreHalfWord(to + static_cast<uint32_t>(4 * r), __float2half_rn(__uint_as_float(scale[r]) * inverse));
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
__device__ __forceinline__ void AddTile(Shared& shared, const SixSources& at, int lane, int group, Turn turn,
                                        bool first, SixSums* sums) {
  WaitBarrier(SharedAddress(&shared.scored[turn.team()]), turn.number / kTeams & 1);
  const TileBase& base = shared.bases[turn.base()];
  if (!first && base.changed != 0) {
    const TileBase& last = shared.bases[Turn{turn.number - 1}.base()];
    const float unit = __uint_as_float(
        static_cast<uint32_t>(max(127 - (static_cast<int>(base.exponent - last.exponent) >> 7), 0)) << 23);
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float now = base.start[lane / 4 + 8 * r], then = last.start[lane / 4 + 8 * r];
      by[r] = then == kNone ? 0.0f : (now == then ? 1.0f : Exp2(now - then)) * unit;
    }
    sums->Scale(by);
  }
  AddSixTile(SharedAddress(shared.bytes[turn.team()]), at, lane, group, shared.weights[turn.team()], sums);
  Arrive(SharedAddress(&shared.added[turn.team()]));
}

}  // namespace cachalot::six
