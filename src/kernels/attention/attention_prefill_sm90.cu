// Prefill attention on wgmma and bulk copies (sm_90a): 128 rows (token, head of a group) of a block, two warpgroups of 64 rows, 128
// tokens at a time; one warp copies (FlashAttention-3, Shah et al. 2024). For tiles that see more than kPreciseTokens; the kernel on
// mma.sync has the others, whose rests it keeps.
//
// Bound: tensor cores, 2 (k_dim + v_dim) flops for each visible pair of row and token; the exponentials take half as long as the
// products of heads of 128. So a warpgroup's softmax runs beside the other's products (they take turns to issue), and beside its own
// weights times values of the round before. Blocks stay and take one tile after the other, longest first.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/tensor_map.h"
#include "kernels/attention/attention_prefill_wide.cuh"
#include "kernels/attention/attention_tile.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = (1 + kWideGroups) * 128;
constexpr int kGroupRows = 64;

// Named barriers: 1 and 2, whose turn it is to issue; 3 and 4, a warpgroup among itself.
__device__ __forceinline__ void WaitForTurn(int group) { asm volatile("bar.sync %0, 256;\n" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void GiveTurn(int group) { asm volatile("bar.arrive %0, 256;\n" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void MeetGroup(int group) { asm volatile("bar.sync %0, 128;\n" ::"r"(3 + group) : "memory"); }

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// The queries of a warpgroup's rows from first_row of the span on, scaled for softmax in base 2.
template <typename T, int kKeyDim, int kWidth>
__device__ __forceinline__ void StoreWideQueries(const AttentionParams& p, const WideItem& item, int first_row, int group, uint32_t to) {
  constexpr int kUnits = kKeyDim / kWidth, kOfThread = kGroupRows * kUnits / 128;
  constexpr int kBatch = kOfThread > 16 ? kOfThread / 2 : kOfThread;  // loads under way at a time
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const float scale = p.scale * kLog2E;
#pragma unroll 1
  for (int first = thread; first < kGroupRows * kUnits; first += kBatch * 128) {
    float q[kBatch][kWidth];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * 128;
#pragma unroll
      for (float& value : q[i]) value = 0;
      const TileRow row = RowOfTile(item.span, first_row + at / kUnits, group, item.kv_head);
      if (row.position < 0) continue;
      const float* from = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride + at % kUnits * kWidth;
      if constexpr (kWidth == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        q[i][0] = four.x, q[i][1] = four.y, q[i][2] = four.z, q[i][3] = four.w;
      } else {
        q[i][0] = from[0], q[i][1] = from[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * 128, row = at / kUnits, column = at % kUnits * kWidth;
      const uint32_t panel = to + column / kPanelValues * (kGroupRows * kPanelBytes);
      const uint32_t piece = panel + Swizzled<kPanelBytes>(row, column % kPanelValues / 8) + column % 8 * 2;
#pragma unroll
      for (int c = 0; c < kWidth; c += 2) StoreShared32(piece + c * 2, Pack2(q[i][c] * scale, q[i][c + 1] * scale, T{}));
    }
  }
  static_assert(kOfThread % kBatch == 0);
}

// Of a warpgroup's thread: two rows, their largest scores and this thread's part of the sums.
struct WideRows {
  int begin[2], last[2];  // that they see
  int all_from, all_to;   // tokens [all_from, all_to] are seen by every row of the warpgroup
  float m[2], l[2];
};

// Scores of the tokens from t0 on become weights. What the sums so far are to be multiplied by.
__device__ __forceinline__ void WideSoftmax(float (&score)[kWideTokens / 2], int t0, WideRows* rows, float (&factor)[2]) {
  if (t0 < rows->all_from || t0 + kWideTokens - 1 > rows->all_to) {
    const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kWideTokens / 2; ++i) {
      const int t = t0 + i / 4 * 8 + quad * 2 + i % 2, r = i / 2 % 2;
      if (t < rows->begin[r] || t > rows->last[r]) score[i] = -CUDART_INF_F;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = rows->m[r];
#pragma unroll
    for (int j = 0; j < kWideTokens / 8; ++j) largest = fmaxf(largest, fmaxf(score[4 * j + 2 * r], score[4 * j + 2 * r + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    const float base = largest == -CUDART_INF_F ? 0.0f : largest;
    factor[r] = Exp2(rows->m[r] - base);
    rows->m[r] = largest;
    float sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < kWideTokens / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        score[4 * j + 2 * r + c] = Exp2(score[4 * j + 2 * r + c] - base);
        sum[c] += score[4 * j + 2 * r + c];
      }
    }
    rows->l[r] = __fmaf_rn(rows->l[r], factor[r], sum[0] + sum[1]);
  }
}

template <typename T>
__device__ __forceinline__ void PackWeights(const float (&score)[kWideTokens / 2], uint32_t (&w)[kWideTokens / 16][4], T) {
#pragma unroll
  for (int kk = 0; kk < kWideTokens / 16; ++kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[kk][i] = Pack2(score[kk * 8 + i * 2], score[kk * 8 + i * 2 + 1], T{});
  }
}

template <typename T, int kKeyDim, int kValueDim>
__global__ __launch_bounds__(kThreads, 1) void WidePrefillKernel(const __grid_constant__ WideMaps maps,
                                                                 const __grid_constant__ AttentionParams p, const SeqSpan* spans,
                                                                 const __grid_constant__ AttentionSchedule s, const __grid_constant__ WideSchedule w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using G = WideGeometry<kKeyDim, kValueDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const WideRing<G> ring{SharedAddress(memory)};
  if (tid == 0) ring.Init();
  __syncthreads();
  if (tid < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;\n");
    if (tid < 32) {
      if (lane == 0) PrefetchMap(maps.k), PrefetchMap(maps.v);
      WideCopier<T, kKeyDim, kValueDim>{maps, p.kv, ring}.Run(p, spans, s, w, memory);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;\n");
    const int group = tid / 128 - 1, row0 = group * kGroupRows + tid % 128 / 32 * 16 + lane / 4;  // and row0 + 8, of the tile
    const uint32_t queries = ring.memory + group * G::kQueryBytes;
    const bool q_aligned = p.q_token_stride % 4 == 0 && p.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
    const bool out_pairs = p.out_token_stride % 2 == 0 && p.out_head_stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.out) % 8 == 0;
    const auto release = [&](uint32_t barrier) {
      if (lane == 0) Arrive(barrier);
    };
    RingPlace<kWideItems> slot;
    RingPlace<G::kStages> keys, values;
    if (group == 1) GiveTurn(0);
#pragma unroll 1
    while (true) {
      AwaitPhase(ring.ItemFull(slot.at), slot.parity);
      const WideItem item = *reinterpret_cast<const WideItem*>(memory + G::kItems + slot.at * static_cast<int>(sizeof(WideItem)));
      __syncwarp();
      release(ring.ItemEmpty(slot.at));
      slot.Next();
      if (item.num_rounds == 0) break;

      const int first_row = item.tile * kWideTileRows + group * kGroupRows, base = item.span.kv_len - item.span.q_len;
      MeetGroup(group);  // the last item's queries have been read
      if (q_aligned) {
        StoreWideQueries<T, kKeyDim, 4>(p, item, first_row, s.group, queries);
      } else {
        StoreWideQueries<T, kKeyDim, 2>(p, item, first_row, s.group, queries);
      }
      FenceForWgmma();
      MeetGroup(group);

      WideRows rows;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.last[r] = RowOfTile(item.span, item.tile * kWideTileRows + row0 + 8 * r, s.group, item.kv_head).position;
        rows.begin[r] = VisibleBegin(rows.last[r], s.window);
        rows.m[r] = -CUDART_INF_F, rows.l[r] = 0;
      }
      rows.all_to = base + first_row / s.group;
      rows.all_from = VisibleBegin(base + (first_row + kGroupRows - 1) / s.group, s.window);

      float score[kWideTokens / 2], o[kValueDim / 2];
      uint32_t weights[kWideTokens / 16][4];
#pragma unroll
      for (float& value : o) value = 0;
      const auto multiply_keys = [&] {
        const uint32_t at = ring.Keys(keys.at);
#pragma unroll
        for (int kk = 0; kk < kKeyDim / 16; ++kk) {
          Wgmma<T, kWideTokens, false>::Mma(score, ColumnsDescriptor(queries + kk / 4 * G::kQueryPanelBytes + kk % 4 * 32),
                                            ColumnsDescriptor(at + kk / 4 * G::kPanelTileBytes + kk % 4 * 32), kk > 0);
        }
      };
      const auto multiply_values = [&] {
        const uint32_t at = ring.Values(values.at);
#pragma unroll
        for (int kk = 0; kk < kWideTokens / 16; ++kk) {
          Wgmma<T, kValueDim, true>::MmaRegisters(o, weights[kk], RowsDescriptor(at + kk * 16 * kPanelBytes, G::kPanelTileBytes), true);
        }
      };
      // The weights stay where they are until they have been read.
      const auto wait_for_sums = [&] {
        WgmmaWait<0>(o);
#pragma unroll
        for (auto& four : weights) {
#pragma unroll
          for (uint32_t& pair : four) asm volatile("" : "+r"(pair)::"memory");
        }
        release(ring.ValuesEmpty(values.at));
        values.Next();
      };

      float factor[2];
      AwaitPhase(ring.KeysFull(keys.at), keys.parity);
      __syncwarp();
      WgmmaBegin();
      multiply_keys();
      WgmmaCommit();
      WgmmaWait<0>(score);
      release(ring.KeysEmpty(keys.at));
      keys.Next();
      WideSoftmax(score, item.begin, &rows, factor);
      PackWeights(score, weights, T{});
#pragma unroll 1
      for (int round = 1; round < item.num_rounds; ++round) {
        AwaitPhase(ring.KeysFull(keys.at), keys.parity);
        __syncwarp();
        WaitForTurn(group);
        WgmmaBegin();
        multiply_keys();
        WgmmaCommit();
        AwaitPhase(ring.ValuesFull(values.at), values.parity);
        __syncwarp();
        WgmmaBegin();
        multiply_values();
        WgmmaCommit();
        GiveTurn(group ^ 1);
        WgmmaWait<1>(score);
        release(ring.KeysEmpty(keys.at));
        keys.Next();
        WideSoftmax(score, item.begin + round * kWideTokens, &rows, factor);
        // Never so; but it keeps the compiler from waiting before it has worked out the weights.
        if (rows.l[0] < 0 || rows.l[1] < 0) StoreShared32(ring.memory + G::kItems, 0);
        wait_for_sums();
        if (__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < kValueDim / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
        PackWeights(score, weights, T{});
      }
      AwaitPhase(ring.ValuesFull(values.at), values.parity);
      __syncwarp();
      WgmmaBegin();
      multiply_values();
      WgmmaCommit();
      wait_for_sums();

#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.l[r] += __shfl_xor_sync(kAllLanes, rows.l[r], 1);
        rows.l[r] += __shfl_xor_sync(kAllLanes, rows.l[r], 2);
        const TileRow row = RowOfTile(item.span, item.tile * kWideTileRows + row0 + 8 * r, s.group, item.kv_head);
        if (row.position < 0) continue;
        const float inverse = __fdividef(1.0f, rows.l[r]);
        float* to = p.out + row.row * p.out_token_stride + row.head * p.out_head_stride + lane % 4 * 2;
        uint16_t* half = HalfPairAt<kValueDim>(p, row, lane % 4);
#pragma unroll
        for (int j = 0; j < kValueDim / 8; ++j) {
          const float2 pair = {o[4 * j + 2 * r] * inverse, o[4 * j + 2 * r + 1] * inverse};
          if (out_pairs) {
            *reinterpret_cast<float2*>(to + j * 8) = pair;
          } else {
            to[j * 8] = pair.x, to[j * 8 + 1] = pair.y;
          }
          if (half != nullptr) *reinterpret_cast<uint32_t*>(half + j * 8) = ClampedHalf2(pair.x, pair.y);
        }
      }
    }
  }
#endif
}

template <typename T, int kKeyDim, int kValueDim>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const WideSchedule& wide,
                  const AttentionParams& params) {
  using G = WideGeometry<kKeyDim, kValueDim>;
  constexpr int64_t kMostBlocks = int64_t{1} << 30;  // the cache has fewer; block -1 is outside of it, and zeros
  const PagedKv& kv = params.kv;
  WideMaps maps;
  BoxesOf boxes = {.data = kv.data, .rank = 4, .sizes = {kKeyDim, kv.block_tokens, kv.num_kv_heads, kMostBlocks},
                   .strides = {2, kKeyDim * 2, kv.k_head_stride * 2, kv.block_bytes}, .box = {kPanelValues, kBoxTokens, 1, 1}};
  if (CudaStatus failure = MakeTensorMap(boxes, &maps.k)) return failure;
  boxes.data = kv.data + kv.v_offset * 2;
  boxes.sizes[0] = kValueDim;
  boxes.strides[1] = kValueDim * 2, boxes.strides[2] = kv.v_head_stride * 2;
  if (CudaStatus failure = MakeTensorMap(boxes, &maps.v)) return failure;
  auto* kernel = &WidePrefillKernel<T, kKeyDim, kValueDim>;
  if (CudaStatus failure = AllowSharedBytes(kernel, G::kSharedBytes, "attention prefill")) return failure;
  const int64_t most = int64_t{wide.max_wide} * kv.num_kv_heads;
  const auto grid = static_cast<unsigned>(most < exec.num_sms ? most : exec.num_sms);
  kernel<<<grid, kThreads, G::kSharedBytes, static_cast<cudaStream_t>(exec.stream)>>>(maps, params, batch.spans, schedule, wide);
  return CudaLaunched("attention prefill (wgmma) of %d rows, %d/%d heads of %d/%d", batch.num_rows, params.num_q_heads, kv.num_kv_heads,
                      kKeyDim, kValueDim);
}

template <typename T>
CudaStatus LaunchDim(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const WideSchedule& wide,
                  const AttentionParams& params) {
  switch (params.kv.k_dim) {
    case 64:
      return Launch<T, 64, 64>(exec, batch, schedule, wide, params);
    case 128:
      return Launch<T, 128, 128>(exec, batch, schedule, wide, params);
    default:
      return Launch<T, 192, 128>(exec, batch, schedule, wide, params);
  }
}

}  // namespace

bool WidePrefillCovers(const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  return CurrentCard().RunsHopperCode() && kv.k_head_stride > 0 && kv.v_head_stride > 0 && kv.block_bytes > 0;
}

CudaStatus RunWidePrefill(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const WideSchedule& wide,
                  const AttentionParams& params) {
  return params.kv.dtype == DType::kF16 ? LaunchDim<__half>(exec, batch, schedule, wide, params)
                                        : LaunchDim<__nv_bfloat16>(exec, batch, schedule, wide, params);
}

}  // namespace cachalot
