// Absorbed MLA decode (up to 16 heads, one token a sequence) over a latent cache in INT8, INT4 or E4M3, as one stream of codes a block; work is laid
// out and folded as in attention_mla_stream_sm90.cu. INT6: attention_mla_six_stream_sm90.cu.
//
// A run of 16 tokens passes three kinds of warps, each behind a barrier of its slot. Four warps copy codes, a run each in turn. Eight warps score,
// a run each in turn and alone: codes to bytes, products with the queries, weights; INT4's bytes are left where their codes were.
// Four warps have 128 columns each of the weighted sums and take all runs in order. So no warp waits for others at the same work, and what one
// waits for has mostly been there for long: of 16 slots eight are scored at most.
//
// All scores of a block are taken relative to the same number, a head's largest so far, or less by kSlack at most; values' scales go into weights
// relative to a power of two, the largest so far. The warp of a run decides on both, behind that of the run before.
//
// Bound: memory. k6v8: 528 bytes a token; at 18.6 bytes a clock of an SM a run takes 454 clocks. Instructions of a run: about 700 to score
// (190 codes to bytes, 52 products, 128 scales), 400 to add (128 bytes to F16, 72 products), 75 to copy: 1,175, 290 clocks of each scheduler.
// What a run takes is longer: an adding warp alone needs about 680 clocks from one run to the next, one instruction waiting for the other.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/attention/attention_barrier.cuh"
#include "kernels/attention/attention_latent_run.cuh"
#include "kernels/attention/attention_latent_values.cuh"
#include "kernels/attention/attention_mla_code_fold.cuh"
#include "kernels/attention/attention_prefetch.cuh"

namespace cachalot {
namespace {

constexpr int kScorers = 8, kAdders = kLatentParts, kCopiers = 4;  // warps
constexpr int kScorerThreads = kScorers * 32, kAdderThreads = kAdders * 32, kCopierThreads = kCopiers * 32;
constexpr int kConsumerThreads = kScorerThreads + kAdderThreads;
constexpr int kThreads = kConsumerThreads + kCopierThreads;
static_assert(kScorerThreads == kFoldThreads && kAdderThreads == kLatentSummers);
// Of a thread: at the start, and then by what the warps do.
constexpr int kRegisters = 128, kScorerRegisters = 160, kAdderRegisters = 128, kCopierRegisters = 56;
static_assert(kScorerThreads * kScorerRegisters + kAdderThreads * kAdderRegisters + kCopierThreads * kCopierRegisters <= kThreads * kRegisters);
constexpr int kSlots = 16;
constexpr float kSlack = 8;  // by which a score may exceed what is taken for the largest, in units of log2
static_assert(kRunTokens == kRun);

// What the weights of a run are relative to.
struct RunBase {
  float m[kCodeRows];  // scores before their row's factor
  uint32_t exponent;   // of scales, in BF16's place
  int changed;         // since the run before
};

// All of the block's shared memory.
template <KvCode kCode>
struct Shared {
  union {
    unsigned char slots[kSlots][LatentSlot<kCode>::kBytes];
    CodeFoldMemory fold;
  };
  SharedLatentQueries<kCode> queries;
  RunBase bases[kSlots];
  float warp_m[kScorers][kCodeRows], warp_l[kScorers][kCodeRows];
  uint64_t copied[kSlots], based[kSlots], scored[kSlots], added[kSlots];  // barriers: of slots,
  uint64_t all_scored, written;                                          // and of a piece
  CodeCut cuts[2];
};

__device__ __forceinline__ void ScorersMeet() { FoldersMeet(); }

// The block's runs, one after the other through its slots.
struct Turn {
  uint32_t number;
  __device__ __forceinline__ uint32_t slot() const { return number % kSlots; }
  __device__ __forceinline__ uint32_t parity() const { return number / kSlots & 1; }
};

// The lane's number, which is not asked for again where it is used.
__device__ __forceinline__ int LaneOnce() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;\n" : "=r"(lane));
  return lane;
}

template <KvCode kCode>
__device__ __forceinline__ void CopyShare(const PagedKv& kv, const CodePlanes& planes, Walk walk, Shared<kCode>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kCopierThreads / 32;
  bool waited = false;
  uint32_t taken = 0;  // runs of the block before the piece
  Piece piece;
  while (walk.Next(&piece)) {
    const int32_t* table = kv.block_tables + piece.seq.slot * kv.table_stride;
    const int old_end = piece.seq.kv_len - piece.seq.q_len;
    // Where this lane's run of 32 lies.
    const auto look_up = [&](int base, int* row) {
      const int t = (piece.first_run + min(base + lane, piece.runs - 1)) * kRun;
      *row = t % kv.block_tokens;
      return __ldg(table + t / kv.block_tokens);
    };
    int next_row, next_block = look_up(0, &next_row);
    for (int base = 0; base < piece.runs; base += 32) {
      const int row = next_row, block = next_block;
      next_block = look_up(base + 32, &next_row);
#pragma unroll 1
      for (int i = static_cast<int>((warp - taken - static_cast<uint32_t>(base)) % kCopiers); i < min(32, piece.runs - base); i += kCopiers) {
        const Turn turn = {taken + static_cast<uint32_t>(base + i)};
        const int t0 = (piece.first_run + base + i) * kRun;
        const int64_t from = __shfl_sync(kAllLanes, block, i);
        const RunPlace at = {kv.data + from * kv.block_bytes, __shfl_sync(kAllLanes, row, i), t0};
        if (!waited && t0 + kRun > old_end) {
          WaitForEarlierKernels();
          waited = true;
        }
        if (turn.number >= kSlots) WaitBarrier(SharedAddress(&shared.added[turn.slot()]), Turn{turn.number - kSlots}.parity());
        const uint32_t slot = SharedAddress(shared.slots[turn.slot()]);
        if (t0 >= piece.begin && t0 + kRun <= piece.end) {
          CopyLatents<kCode, true>(planes, at, piece.begin, piece.end, slot);
        } else {
          CopyLatents<kCode, false>(planes, at, piece.begin, piece.end, slot);
        }
        ArriveWhenCopied(SharedAddress(&shared.copied[turn.slot()]));
      }
    }
    taken += static_cast<uint32_t>(piece.runs);
  }
}

// A scorer's softmax so far: relative to m, without the rows' factors.
struct ScoreState {
  float m[2];
  float l[2];  // this thread's part
};

// One run: its scores become weights in the slot.
template <KvCode kCode>
__device__ __forceinline__ void ScoreRun(Shared<kCode>& shared, const LatentQueries<kCode>& q, const ScoringPlaces<kCode>& at, int lane, Turn turn,
                                         bool first, int t0, const Piece& piece, const float (&slack)[2], ScoreState* state) {
  const int quad = lane % 4, g = lane / 4;
  const uint32_t slot = SharedAddress(shared.slots[turn.slot()]);
  WaitBarrier(SharedAddress(&shared.copied[turn.slot()]), turn.parity());
  LatentFactors<kCode> factors;
  const uint32_t most = factors.Load(slot + at.group_scales, t0 + 4 * quad, piece.begin, piece.end);
  float s[2][4];
  LatentScores<kCode>(slot, at, lane, q, shared.queries, s);
  if (t0 < piece.begin || t0 + kRun > piece.end) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int t = t0 + 4 * quad + i / 4 * 2 + i % 2;
      if (t < piece.begin || t >= piece.end) s[i / 4][i % 4] = -CUDART_INF_F;
    }
  }

  float m[2] = {-CUDART_INF_F, -CUDART_INF_F};
  uint32_t exponent = kLeastScale;
  if (!first) {
    const Turn last = {turn.number - 1};
    WaitBarrier(SharedAddress(&shared.based[last.slot()]), last.parity());
    const RunBase& base = shared.bases[last.slot()];
    m[0] = base.m[g], m[1] = base.m[g + 8];
    exponent = base.exponent;
  }
  bool exceeds = most > exponent;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float limit = m[r] + slack[r];
    exceeds |= s[0][2 * r] > limit || s[0][2 * r + 1] > limit || s[1][2 * r] > limit || s[1][2 * r + 1] > limit;
  }
  const bool changed = __any_sync(kAllLanes, exceeds);
  if (changed) {
    exponent = max(exponent, most);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      m[r] = fmaxf(m[r], largest);
    }
  }
  RunBase& base = shared.bases[turn.slot()];
  if (quad == 0) base.m[g] = m[0], base.m[g + 8] = m[1];
  if (lane == 0) base.exponent = exponent, base.changed = changed;
  Arrive(SharedAddress(&shared.based[turn.slot()]));

  factors.Store(slot + at.factors, lane, exponent);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float by = q.factor[r], start = m[r] == -CUDART_INF_F ? 0.0f : -m[r] * by;
    if (m[r] != state->m[r]) {
      state->l[r] *= Exp2(__fmaf_rn(state->m[r], by, start));
      state->m[r] = m[r];
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int c = 2 * r; c < 2 * r + 2; ++c) {
        s[tile][c] = Exp2(__fmaf_rn(s[tile][c], by, start));
        state->l[r] += s[tile][c];
      }
    }
  }
  StoreSharedFour(slot + at.weights, Pack2(s[0][0], s[0][1], __half{}), Pack2(s[0][2], s[0][3], __half{}),
                  Pack2(s[1][0], s[1][1], __half{}), Pack2(s[1][2], s[1][3], __half{}));
  Arrive(SharedAddress(&shared.scored[turn.slot()]));
}

template <KvCode kCode>
__device__ __forceinline__ void ScoreShare(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, Walk walk, bool aligned,
                                           Shared<kCode>& shared) {
  const int lane = LaneOnce(), warp = static_cast<int>(threadIdx.x) / 32;
  const ScoringPlaces<kCode> at(lane);
  uint32_t taken = 0, pieces = 0;
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
#pragma unroll 1
    for (int r = warp; r < kCodeRows; r += kScorers) {
      StoreLatentRow<kCode>(p, planes, RowOfTile(piece.seq, r, s.group, 0), r, aligned, &shared.queries);
    }
    ScorersMeet();
    LatentQueries<kCode> q;
    LoadLatentQueries<kCode>(shared.queries, &q);
    ScoreState state = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}};
    float slack[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) slack[r] = fminf(kSlack / q.factor[r], FLT_MAX);  // of no number: not one
#pragma unroll 1
    for (int i = static_cast<int>((warp - taken) % kScorers); i < piece.runs; i += kScorers) {
      ScoreRun<kCode>(shared, q, at, lane, {taken + static_cast<uint32_t>(i)}, i == 0, (piece.first_run + i) * kRun, piece, slack, &state);
    }
    taken += static_cast<uint32_t>(piece.runs);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.l[r] += __shfl_xor_sync(kAllLanes, state.l[r], 1);
      state.l[r] += __shfl_xor_sync(kAllLanes, state.l[r], 2);
      if (lane % 4 == 0) {
        shared.warp_m[warp][lane / 4 + 8 * r] = state.m[r];
        shared.warp_l[warp][lane / 4 + 8 * r] = state.l[r];
      }
    }
    Arrive(SharedAddress(&shared.all_scored));
    WaitBarrier(SharedAddress(&shared.written), pieces++ & 1);
    if (!piece.whole && threadIdx.x == 0) AddCut(s, piece, shared.cuts);
  }
}

template <KvCode kCode>
__device__ __forceinline__ void EndPiece(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, const Piece& piece,
                                         const float (&factor)[2], const RunBase& base, LatentSums<kCode>* sums, Shared<kCode>& shared) {
  using Fours = CodeFours<kCode>;
  const int thread = static_cast<int>(threadIdx.x) % kAdderThreads, lane = thread % 32;
  sums->Finish(base.exponent, 1.0f / static_cast<float>(planes.rotation));
  if (planes.rotation > 1) TurnBack(lane, sums->o);
  float m[2], l[2], inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    const float largest = base.m[row];
    m[r] = largest * factor[r];
    l[r] = 0;
#pragma unroll
    for (int w = 0; w < kScorers; ++w) {
      const float warp_m = shared.warp_m[w][row];
      const float weight = warp_m == -CUDART_INF_F ? 0.0f : warp_m == largest ? 1.0f : Exp2((warp_m - largest) * factor[r]);
      l[r] = __fmaf_rn(shared.warp_l[w][row], weight, l[r]);
    }
    inverse[r] = 1.0f / l[r];
  }
  const int64_t partial = 2 * static_cast<int64_t>(blockIdx.x) + (piece.continues ? 0 : 1);
  float4* to = reinterpret_cast<float4*>(s.partial_out + partial * kMlaSums) + thread;
  const auto four = [&](int i) {
    const int j = i / 4 * 4, c = i % 4;  // 2 r + e
    return float4{sums->o[j][c], sums->o[j + 1][c], sums->o[j + 2][c], sums->o[j + 3][c]};
  };
  if (piece.whole) {
#pragma unroll
    for (int i = 0; i < Fours::kOfThread; ++i) {
      Fours::Write(p, piece.seq.q_begin, s.group, i * kAdderThreads + thread, four(i), inverse[i % 4 / 2]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < Fours::kOfThread; ++i) to[i * kAdderThreads] = four(i);
  if (thread / 32 != 0 || lane % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) s.partial_stats[partial * kMlaHeads + lane / 4 + 8 * r] = {m[r], l[r]};
}

template <KvCode kCode>
__device__ __forceinline__ void AddShare(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, Walk walk,
                                         Shared<kCode>& shared) {
  const int lane = LaneOnce(), part = static_cast<int>(threadIdx.x) % kAdderThreads / 32;
  const AddingPlaces<kCode> at(lane, part);
  Turn turn = {0};
  uint32_t pieces = 0;
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    LatentSums<kCode> sums;
    sums.Clear();
    float m[2] = {-CUDART_INF_F, -CUDART_INF_F};
    uint32_t exponent = kLeastScale;
    const RunBase* base = nullptr;
#pragma unroll 1
    for (int i = 0; i < piece.runs; ++i, ++turn.number) {
      WaitBarrier(SharedAddress(&shared.scored[turn.slot()]), turn.parity());
      base = &shared.bases[turn.slot()];
      if (base->changed != 0) {
        const uint32_t most = base->exponent;
        const float unit = __uint_as_float(static_cast<uint32_t>(max(127 - (static_cast<int>(most - exponent) >> 7), 0)) << 23);
        float by[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = lane / 4 + 8 * r;
          const float now = base->m[row];
          by[r] = (now == m[r] ? 1.0f : Exp2((m[r] - now) * shared.queries.factors[row])) * unit;
          m[r] = now;
        }
        exponent = most;
        sums.Scale(by);
      }
      LatentBytes<kCode> bytes;
      bytes.Load(SharedAddress(shared.slots[turn.slot()]), at);
      Arrive(SharedAddress(&shared.added[turn.slot()]));
      AddLatents<kCode>(bytes, lane, &sums);
    }
    const float factor[2] = {shared.queries.factors[lane / 4], shared.queries.factors[lane / 4 + 8]};
    WaitBarrier(SharedAddress(&shared.all_scored), pieces++ & 1);
    EndPiece<kCode>(p, planes, s, piece, factor, *base, &sums, shared);
    Arrive(SharedAddress(&shared.written));
  }
}

template <KvCode kCode>
__global__ __maxnreg__(kRegisters) void MlaCodeStreamKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ CodePlanes planes,
                                                            const SeqSpan* spans, const __grid_constant__ AttentionSchedule s, bool aligned) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kCode>*>(memory);
  LetNextKernelStart();
  if (threadIdx.x == kConsumerThreads) {
    for (CodeCut& cut : shared.cuts) cut.last = -1;
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(SharedAddress(&shared.copied[i]), 32);
      InitBarrier(SharedAddress(&shared.based[i]), 32);
      InitBarrier(SharedAddress(&shared.scored[i]), 32);
      InitBarrier(SharedAddress(&shared.added[i]), kAdderThreads);
    }
    InitBarrier(SharedAddress(&shared.all_scored), kScorerThreads);
    InitBarrier(SharedAddress(&shared.written), kAdderThreads);
  }
  PrefetchUpcoming(p);
  const Walk walk(s, spans);
  __syncthreads();
  if (threadIdx.x >= kConsumerThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCopierRegisters));
    CopyShare<kCode>(p.kv, planes, walk, shared);
  } else if (threadIdx.x >= kScorerThreads) {
    AddShare<kCode>(p, planes, s, walk, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kScorerRegisters));
    ScoreShare<kCode>(p, planes, s, walk, aligned, shared);
    ScorersMeet();
#pragma unroll 1
    for (const CodeCut& cut : shared.cuts) {
      if (cut.last >= 0) FoldCut<CodeFours<kCode>>(p, s, cut, &shared.fold);
    }
  }
#endif
}

template <KvCode kCode>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                  const CodePlanes& planes) {
  static_assert(sizeof(Shared<kCode>) <= 227 * 1024);
  auto* kernel = &MlaCodeStreamKernel<kCode>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared<kCode>)}, "attention MLA stream over codes")) return failure;
  const bool aligned = params.q_token_stride % 4 == 0 && params.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(params.q) % 16 == 0;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, static_cast<unsigned>(schedule.stream_blocks), kThreads, int64_t{sizeof(Shared<kCode>)}, exec.stream,
                                           params, planes, batch.spans, schedule, aligned);
  return CudaLaunched("attention MLA stream over codes of %d spans, %d heads", batch.num_spans, params.num_q_heads);
}

// Scales of as many columns as this kernel's warps expect.
constexpr int GroupsOf(KvCode code) { return code == KvCode::kInt4 ? 16 : 4; }

}  // namespace

bool MlaCodeStreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule, const CodePlanes& planes) {
  return MlaStreamCovers(batch, schedule) && planes.key.code != KvCode::kInt6 && planes.key.groups == GroupsOf(planes.key.code);
}

CudaStatus RunMlaCodeStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                            const CodePlanes& planes) {
  switch (planes.key.code) {
    case KvCode::kInt8:
      return Launch<KvCode::kInt8>(exec, batch, schedule, params, planes);
    case KvCode::kInt4:
      return Launch<KvCode::kInt4>(exec, batch, schedule, params, planes);
    default:
      return Launch<KvCode::kE4M3>(exec, batch, schedule, params, planes);
  }
}

}  // namespace cachalot
