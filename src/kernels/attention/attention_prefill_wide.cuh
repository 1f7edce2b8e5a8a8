// Geometry of the prefill kernel on wgmma (attention_prefill_sm90.cu), what its warps tell each other, and its copying warp.
#pragma once

#include "device/cuda/bulk_copy.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/attention/attention_wide.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {

inline constexpr int kWideTokens = 128;  // of a stage
inline constexpr int kWideGroups = 2;    // warpgroups that compute, 64 rows each
inline constexpr int kWideWarps = 4 * kWideGroups;
inline constexpr int kBoxTokens = 16;    // that always lie in one block of the cache
inline constexpr int kBoxBytes = kBoxTokens * kPanelBytes;
inline constexpr int kWideItems = 2;

// As WaitForPhase, but the kernel fails by writing where nothing is: beside a trap the compiler gives no warp the registers that
// setmaxnreg asks for.
__device__ __forceinline__ void AwaitPhase(uint32_t barrier, uint32_t parity) {
  constexpr int64_t kMostClocks = int64_t{1} << 34;
  int64_t since = 0;
  while (true) {
    uint32_t over;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (over) return;
    const int64_t now = clock64();
    if (since == 0) since = now;
    if (now - since > kMostClocks) asm volatile("{\n.reg .u64 null;\nmov.u64 null, 0;\nst.global.u32 [null], 0;\n}\n" ::: "memory");
  }
}

// What the copying warp has fetched: a tile of one KV head, and where its tokens begin.
struct WideItem {
  SeqSpan span;
  int32_t tile;
  int32_t kv_head;
  int32_t begin;
  int32_t num_rounds;  // 0: there is no more
};

struct WideMaps {
  CUtensorMap k, v;
};

template <int kKeyDim, int kValueDim>
struct WideGeometry {
  static constexpr int kKeyPanels = kKeyDim / kPanelValues, kValuePanels = kValueDim / kPanelValues;
  static constexpr int kPanelTileBytes = kWideTokens * kPanelBytes;
  static constexpr int kQueryPanelBytes = 64 * kPanelBytes;
  static constexpr int kQueryBytes = kKeyPanels * kQueryPanelBytes;  // of a warpgroup
  static constexpr int kKeyBytes = kKeyPanels * kPanelTileBytes, kValueBytes = kValuePanels * kPanelTileBytes;
  static constexpr int kStages = kKeyDim > 128 ? 2 : 3;
  static constexpr int kKeys = kWideGroups * kQueryBytes;
  static constexpr int kValues = kKeys + kStages * kKeyBytes;
  static constexpr int kItems = kValues + kStages * kValueBytes;
  static constexpr int kBarriers = kItems + kWideItems * static_cast<int>(sizeof(WideItem));
  static constexpr int kSharedBytes = kBarriers + (2 * kWideItems + 4 * kStages) * 8;
  static_assert(kSharedBytes <= 227 << 10 && kItems % 1024 == 0 && sizeof(WideItem) == 32);
};

// The ring's barriers, and a place in it: every phase of a barrier that is filled ends once in each turn.
template <typename G>
struct WideRing {
  uint32_t memory;

  __device__ __forceinline__ uint32_t Keys(int stage) const { return memory + G::kKeys + stage * G::kKeyBytes; }
  __device__ __forceinline__ uint32_t Values(int stage) const { return memory + G::kValues + stage * G::kValueBytes; }
  __device__ __forceinline__ uint32_t Barrier(int i) const { return memory + G::kBarriers + i * 8; }
  __device__ __forceinline__ uint32_t ItemFull(int i) const { return Barrier(i); }
  __device__ __forceinline__ uint32_t ItemEmpty(int i) const { return Barrier(kWideItems + i); }
  __device__ __forceinline__ uint32_t KeysFull(int stage) const { return Barrier(2 * kWideItems + stage); }
  __device__ __forceinline__ uint32_t KeysEmpty(int stage) const { return Barrier(2 * kWideItems + G::kStages + stage); }
  __device__ __forceinline__ uint32_t ValuesFull(int stage) const { return Barrier(2 * kWideItems + 2 * G::kStages + stage); }
  __device__ __forceinline__ uint32_t ValuesEmpty(int stage) const { return Barrier(2 * kWideItems + 3 * G::kStages + stage); }

  __device__ __forceinline__ void Init() const {
    for (int i = 0; i < kWideItems; ++i) InitBarrier(ItemFull(i), 1), InitBarrier(ItemEmpty(i), kWideWarps);
    for (int i = 0; i < G::kStages; ++i) {
      InitBarrier(KeysFull(i), 1), InitBarrier(KeysEmpty(i), kWideWarps);
      InitBarrier(ValuesFull(i), 1), InitBarrier(ValuesEmpty(i), kWideWarps);
    }
    FenceInitBarrier();
  }
};

template <int kCount>
struct RingPlace {
  int at = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++at == kCount) at = 0, parity ^= 1;
  }
};

// The warp that copies: deals items out and fills the ring, 16 tokens of a panel at a time. Tokens that the tile does not see are
// zeros among the values, whatever the cache holds there.
template <typename T, int kKeyDim, int kValueDim>
struct WideCopier {
  using G = WideGeometry<kKeyDim, kValueDim>;
  static constexpr int kBoxes = kWideTokens / kBoxTokens;
  static_assert(kBoxes * G::kKeyPanels <= 32 && kBoxes * G::kValuePanels <= 32);

  const WideMaps& maps;
  const PagedKv& kv;
  const WideRing<G>& ring;

  // Box `box` of a stage at t0: its block, -1 where no token of it is seen.
  __device__ __forceinline__ int BlockOfBox(const WideItem& item, int t0, int box, int low, int high) const {
    const int t = t0 + box * kBoxTokens;
    if (t >= high || t + kBoxTokens <= low) return -1;
    return kv.block_tables[item.span.slot * kv.table_stride + t / kv.block_tokens];
  }

  __device__ __forceinline__ void CopyKeys(const WideItem& item, int t0, int low, int high, const RingPlace<G::kStages>& place) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, box = lane % kBoxes, panel = lane / kBoxes;
    const int block = BlockOfBox(item, t0, box, low, high);
    AwaitPhase(ring.KeysEmpty(place.at), place.parity ^ 1);
    if (lane == 0) ArriveExpecting(ring.KeysFull(place.at), G::kKeyBytes);
    __syncwarp();
    if (panel < G::kKeyPanels) {
      CopyBox(ring.Keys(place.at) + panel * G::kPanelTileBytes + box * kBoxBytes, maps.k, panel * kPanelValues,
              (t0 + box * kBoxTokens) % kv.block_tokens, item.kv_head, block, ring.KeysFull(place.at), kEvictLast);
    }
  }

  __device__ __forceinline__ void CopyValues(const WideItem& item, int t0, int low, int high, const RingPlace<G::kStages>& place) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, box = lane % kBoxes, panel = lane / kBoxes;
    const int block = BlockOfBox(item, t0, box, low, high);
    const int tail = high % kBoxTokens == 0 || high >= t0 + kWideTokens ? -1 : (high - t0) / kBoxTokens;  // the box that ends early
    const uint32_t to = ring.Values(place.at);
    AwaitPhase(ring.ValuesEmpty(place.at), place.parity ^ 1);
    if (tail >= 0) {
      constexpr int kPieces = kValueDim / 8;
      const int t = t0 + tail * kBoxTokens;
      const T* from = reinterpret_cast<const T*>(kv.data + BlockOfBox(item, t0, tail, low, high) * kv.block_bytes) + kv.v_offset +
                      item.kv_head * kv.v_head_stride + t % kv.block_tokens * kValueDim;
#pragma unroll 1
      for (int i = lane; i < kBoxTokens * kPieces; i += 32) {
        const int row = i / kPieces, piece = i % kPieces;
        const bool valid = t + row < high;
        CopyAsync16(to + piece / 8 * G::kPanelTileBytes + Swizzled<kPanelBytes>(tail * kBoxTokens + row, piece % 8),
                    valid ? from + row * kValueDim + piece * 8 : from, valid);
      }
      CommitAsync();
      WaitAsync<0>();
      FenceForWgmma();
      __syncwarp();
    }
    if (lane == 0) ArriveExpecting(ring.ValuesFull(place.at), G::kValueBytes - (tail >= 0 ? G::kValuePanels * kBoxBytes : 0));
    __syncwarp();
    if (panel < G::kValuePanels && box != tail) {
      CopyBox(to + panel * G::kPanelTileBytes + box * kBoxBytes, maps.v, panel * kPanelValues, (t0 + box * kBoxTokens) % kv.block_tokens,
              item.kv_head, block, ring.ValuesFull(place.at), kEvictLast);
    }
  }

  // Its queries come to L2 while the item before is computed.
  __device__ __forceinline__ void FetchQueries(const AttentionParams& p, const AttentionSchedule& s, const WideItem& item) const {
    constexpr int kLine = 32;  // floats
    constexpr int kLines = kKeyDim / kLine;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < kWideTileRows * kLines; i += 32) {
      const TileRow row = RowOfTile(item.span, item.tile * kWideTileRows + i / kLines, s.group, item.kv_head);
      if (row.position < 0) break;
      const float* q = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride + i % kLines * kLine;
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(q));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void Run(const AttentionParams& p, const SeqSpan* spans, const AttentionSchedule& s, const WideSchedule& w, unsigned char* memory) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    auto* items = reinterpret_cast<WideItem*>(memory + G::kItems);
    const int total = w.counts->num_wide * s.num_kv_heads;
    RingPlace<kWideItems> slot;
    RingPlace<G::kStages> keys, values;
    for (bool first = true;; first = false) {
      uint32_t work = 0;
      // Each block takes one number too many, the last of which brings the counter back to 0.
      if (lane == 0) work = atomicInc(&w.counts->next_wide, static_cast<uint32_t>(total) + gridDim.x - 1);
      work = __shfl_sync(kAllLanes, work, 0);
      WideItem item = {};
      int low = 0, high = 0;
      if (work < static_cast<uint32_t>(total)) {
        const PrefillItem tile = w.wide[work / s.num_kv_heads];
        item.span = spans[tile.span];
        item.tile = tile.tile;
        item.kv_head = static_cast<int>(work % s.num_kv_heads);
        const TileRange range = RangeOfTile(item.span, tile.tile, kWideTileRows, s.group, s.window);
        low = range.begin, high = range.end;
        item.begin = low / kWideTokens * kWideTokens;
        item.num_rounds = (high - item.begin + kWideTokens - 1) / kWideTokens;
      }
      AwaitPhase(ring.ItemEmpty(slot.at), slot.parity ^ 1);
      if (lane == 0) {
        items[slot.at] = item;
        Arrive(ring.ItemFull(slot.at));
      }
      slot.Next();
      if (item.num_rounds == 0) return;
#pragma unroll 1
      for (int round = 0; round < item.num_rounds; ++round) {
        const int t0 = item.begin + round * kWideTokens;
        CopyKeys(item, t0, low, high, keys);
        keys.Next();
        CopyValues(item, t0, low, high, values);
        values.Next();
        if (round == 0 && !first) FetchQueries(p, s, item);
      }
    }
  }
};

}  // namespace cachalot
