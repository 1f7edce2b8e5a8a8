// The definition of RopeAppend: pair (a, b) turned by the angle becomes (a cos - b sin, b cos + a sin).
#include <algorithm>

#include "kernels/common/kv_region.h"
#include "kernels/common/kv_value.h"
#include "kernels/rope_append/rope_append_variants.h"

namespace cachalot {
namespace {

void Rotate(float* x, const float* cos, const float* sin, int32_t rope_dim, RopeStyle style) {
  const int32_t half = rope_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    float& a = style == RopeStyle::kHalf ? x[i] : x[2 * i];
    float& b = style == RopeStyle::kHalf ? x[i + half] : x[2 * i + 1];
    const float a0 = a, b0 = b;
    a = a0 * cos[i] - b0 * sin[i];
    b = b0 * cos[i] + a0 * sin[i];
  }
}

// The rotated value at `i` of key x, without writing to x.
float RotatedAt(const float* x, int32_t i, const float* cos, const float* sin, int32_t rope_dim,
                RopeStyle style) {
  const int32_t half = rope_dim / 2;
  const bool first = style == RopeStyle::kHalf ? i < half : i % 2 == 0;
  const int32_t pair = style == RopeStyle::kHalf ? i % half : i / 2;
  const int32_t other = style == RopeStyle::kHalf ? (first ? i + half : i - half) : (i ^ 1);
  return first ? x[i] * cos[pair] - x[other] * sin[pair] : x[i] * cos[pair] + x[other] * sin[pair];
}

void RotateKey(const RopeAppendParams& params, int64_t row, int32_t head, float* out) {
  const float* cos = params.cos + row * (params.rope_dim / 2);
  const float* sin = params.sin + row * (params.rope_dim / 2);
  std::copy_n(params.k + row * params.k_token_stride + head * params.k_head_stride, params.kv.k_dim, out);
  Rotate(out + params.k_rope_offset, cos, sin, params.rope_dim, params.style);
}

void AppendCodes(const RopeAppendParams& params, int64_t row, int64_t slot, int64_t position) {
  const PagedKv& kv = params.kv.At(position);
  const KvPlanes& planes = *kv.planes;
  const int64_t token = position % kv.block_tokens;
  float key[kMaxKvDim];
  for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
    std::byte* region = KvRegion(kv, slot, position, head);
    RotateKey(params, row, head, key);
    EncodeKvKey(planes, KvKeyMean(kv, head), key, region, token);
    if (params.v != nullptr) {
      EncodeKvValue(planes, params.v + row * params.v_token_stride + head * params.v_head_stride, region, token);
    }
  }
}

template <typename T>
void AppendToken(const RopeAppendParams& params, int64_t row, int64_t slot, int64_t position) {
  const PagedKv& kv = params.kv;
  T* block = reinterpret_cast<T*>(kv.Block(slot, position));
  const int64_t token = position % kv.block_tokens;
  const float* cos = params.cos + row * (params.rope_dim / 2);
  const float* sin = params.sin + row * (params.rope_dim / 2);
  for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
    const float* k = params.k + row * params.k_token_stride + head * params.k_head_stride;
    T* k_out = block + head * kv.k_head_stride + token * kv.k_dim;
    for (int32_t i = 0; i < kv.k_dim; ++i) {
      const int32_t in_rope = i - params.k_rope_offset;
      const bool rotated = in_rope >= 0 && in_rope < params.rope_dim;
      FromF32(rotated ? RotatedAt(k + params.k_rope_offset, in_rope, cos, sin, params.rope_dim, params.style)
                      : k[i],
              k_out + i);
    }
    if (params.v == nullptr) continue;
    const float* v = params.v + row * params.v_token_stride + head * params.v_head_stride;
    T* v_out = block + kv.v_offset + head * kv.v_head_stride + token * kv.v_token_stride;
    for (int32_t i = 0; i < kv.v_dim; ++i) FromF32(v[i], v_out + i);
  }
}

}  // namespace

void RopeAppendRef(const ExecContext& ctx, const RopeAppendParams& params) {
  const PagedKv& kv = params.kv;
  const double token_ns =
      2.0 * (params.num_q_heads * params.rope_dim + kv.num_kv_heads * (kv.k_dim + kv.v_dim));
  ForEachToken(ctx, params.spans, token_ns, [&](int64_t row, int64_t slot, int64_t position) {
    const float* cos = params.cos + row * (params.rope_dim / 2);
    const float* sin = params.sin + row * (params.rope_dim / 2);
    for (int32_t head = 0; head < params.num_q_heads; ++head) {
      float* q = params.q + row * params.q_token_stride + head * params.q_head_stride;
      Rotate(q + params.q_rope_offset, cos, sin, params.rope_dim, params.style);
    }
    if (kv.planes != nullptr) return AppendCodes(params, row, slot, position);
    WithKvType(kv.dtype, [&](auto type) { AppendToken<decltype(type)>(params, row, slot, position); });
  });
}

}  // namespace cachalot
