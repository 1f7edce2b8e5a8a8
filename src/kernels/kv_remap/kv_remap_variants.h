// The variants of KvRemap, and the way through a call's rows that they share: internal to the op's folder.
#pragma once

#include <bit>
#include <cstring>

#include "kernels/kv_remap/kv_remap.h"
#include "tensor/float_convert.h"

namespace cachalot {

void KvRemapRef(const ExecContext& ctx, const KvRemapParams& params);
void KvRemapAvx2(const ExecContext& ctx, const KvRemapParams& params);

inline constexpr float kRemapLargestF16 = 65504.0f;
inline constexpr float kRemapLargestBF16 = 0x1.fep127f;

struct KvRemapScaleValue {
  float scale = 1;
  float zero = 0;
};

// Group g's scale of a row.
inline KvRemapScaleValue RemapScale(const KvRemapTensor& t, const std::byte* scales, int32_t g) {
  uint16_t half;
  uint32_t word;
  switch (t.scale_type) {
    case KvRemapScale::kOne:
      break;
    case KvRemapScale::kF16:
      std::memcpy(&half, scales + int64_t{g} * 2, 2);
      return {F16ToF32(half), t.zero};
    case KvRemapScale::kBF16:
      std::memcpy(&half, scales + int64_t{g} * 2, 2);
      return {BF16ToF32(half), t.zero};
    case KvRemapScale::kF32:
      std::memcpy(&word, scales + int64_t{g} * 4, 4);
      return {std::bit_cast<float>(word), t.zero};
    case KvRemapScale::kF32Zero:
      std::memcpy(&word, scales + int64_t{g} * 4, 4);
      return {std::bit_cast<float>(word & ~15u), static_cast<float>(word & 15u)};
  }
  return {t.scale, t.zero};
}

// One row: where it comes from and where it goes.
struct KvRemapRow {
  const std::byte* main;
  const std::byte* high;
  const std::byte* scales;
  const float* mean;  // or null
  uint16_t* out;
};

inline const std::byte* PlaneRow(const KvRemapPlane& plane, int64_t outer, int64_t head, int64_t token) {
  return plane.data == nullptr ? nullptr : plane.data + outer * plane.outer + head * plane.head + token * plane.token;
}

inline int64_t RemapLength(const KvRemapTable& table, int32_t b) {
  if (table.indptr == nullptr) return table.page_tokens;
  const int64_t pages = int64_t{table.indptr[b + 1]} - table.indptr[b];
  return pages == 0 ? 0 : (pages - 1) * table.page_tokens + table.last_page[b];
}

// fn(tensor, row) for every row; the tables are sound.
template <typename Fn>
void ForEachRemapRow(const KvRemapParams& p, Fn&& fn) {
  for (int32_t b = 0; b < p.batch; ++b) {
    const int64_t length = RemapLength(p.to, b);
    for (int64_t t = 0; t < length; ++t) {
      const auto place = [&](const KvRemapTable& table, int64_t* token) {
        if (table.indptr == nullptr) return *token = t, int64_t{b};
        *token = t % table.page_tokens;
        return int64_t{table.indices[table.indptr[b] + t / table.page_tokens]};
      };
      int64_t token, out_token;
      const int64_t outer = place(p.from, &token), page = place(p.to, &out_token);
      for (int32_t i = 0; i < p.num_tensors; ++i) {
        const KvRemapTensor& tensor = p.tensors[i];
        for (int64_t head = 0; head < p.num_heads; ++head) {
          fn(tensor, KvRemapRow{PlaneRow(tensor.main, outer, head, token), PlaneRow(tensor.high, outer, head, token),
                                PlaneRow(tensor.scales, outer, head, token),
                                tensor.mean == nullptr ? nullptr : tensor.mean + head * tensor.mean_head,
                                tensor.out + page * tensor.out_page + head * tensor.out_head + out_token * tensor.out_token});
        }
      }
    }
  }
}

}  // namespace cachalot
