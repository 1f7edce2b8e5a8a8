// RopeAppend, AVX2. Bound: memory. No fused multiply-add: the bits are those of the reference.
#include <immintrin.h>

#include <algorithm>

#include "kernels/common/avx2.h"
#include "kernels/common/kv_codes_avx2.h"
#include "kernels/common/kv_region.h"
#include "kernels/common/kv_value.h"
#include "kernels/rope_append/rope_append_variants.h"

namespace cachalot {
namespace {

// `out` may be `x` itself when T is float.
template <typename T>
void RotateHalf(const float* x, const float* cos, const float* sin, int32_t half, T* out) {
  int32_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
    const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
    StoreF32(out + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
    StoreF32(out + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    FromF32(a * cos[i] - b * sin[i], out + i);
    FromF32(b * cos[i] + a * sin[i], out + half + i);
  }
}

// Each of four values twice: (v0 v0 v1 v1 v2 v2 v3 v3).
__m256 LoadDoubled(const float* p) {
  const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(p));
  return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}

template <typename T>
void RotateInterleaved(const float* x, const float* cos, const float* sin, int32_t half, T* out) {
  int32_t i = 0;
  for (; i + 4 <= half; i += 4) {
    const __m256 v = _mm256_loadu_ps(x + 2 * i), swapped = _mm256_permute_ps(v, _MM_SHUFFLE(2, 3, 0, 1));
    const __m256 c = LoadDoubled(cos + i), s = LoadDoubled(sin + i);
    StoreF32(out + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, c), _mm256_mul_ps(swapped, s)));
  }
  for (; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    FromF32(a * cos[i] - b * sin[i], out + 2 * i);
    FromF32(b * cos[i] + a * sin[i], out + 2 * i + 1);
  }
}

template <typename T>
void RotateTo(const RopeAppendParams& params, int64_t row, const float* x, T* out) {
  const int32_t half = params.rope_dim / 2;
  const float* cos = params.cos + row * half;
  const float* sin = params.sin + row * half;
  if (params.style == RopeStyle::kHalf) {
    RotateHalf(x, cos, sin, half, out);
  } else {
    RotateInterleaved(x, cos, sin, half, out);
  }
}

template <typename T>
void Convert(const float* x, int32_t count, T* out) {
  int32_t i = 0;
  for (; i + 8 <= count; i += 8) StoreF32(out + i, _mm256_loadu_ps(x + i));
  for (; i < count; ++i) FromF32(x[i], out + i);
}

template <typename T>
void AppendToken(const RopeAppendParams& params, int64_t row, int64_t slot, int64_t position) {
  const PagedKv& kv = params.kv;
  T* block = reinterpret_cast<T*>(kv.Block(slot, position));
  const int64_t token = position % kv.block_tokens;
  const int32_t begin = params.k_rope_offset, end = begin + params.rope_dim;
  for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
    const float* k = params.k + row * params.k_token_stride + head * params.k_head_stride;
    T* k_out = block + head * kv.k_head_stride + token * kv.k_dim;
    Convert(k, begin, k_out);
    RotateTo(params, row, k + begin, k_out + begin);
    Convert(k + end, kv.k_dim - end, k_out + end);
    if (params.v == nullptr) continue;
    const float* v = params.v + row * params.v_token_stride + head * params.v_head_stride;
    Convert(v, kv.v_dim, block + kv.v_offset + head * kv.v_head_stride + token * kv.v_token_stride);
  }
}

// A vector and the zeros that fill up its last unit.
struct alignas(32) Padded {
  float values[kMaxKvDim + kKvUnit];
};

void EncodeRows(const KvRows& rows, Padded* x, std::byte* region, int64_t token) {
  std::fill(x->values + rows.coding.dim, x->values + rows.coding.padded(), 0.0f);
  EncodeKvVectorAvx2(rows.coding, x->values, rows.Main(region, token), rows.High(region, token), rows.Scales(region, token));
}

// EncodeKvKey, eight values at a time. key [k_dim] becomes scratch.
void EncodeKey(const KvPlanes& planes, const float* mean, Padded* key, std::byte* region, int64_t token) {
  const int32_t dim = planes.key.coding.dim;
  float* x = key->values;
  if (dim % 8 != 0 || planes.exact_dim % 8 != 0) return EncodeKvKey(planes, mean, x, region, token);
  auto* exact = reinterpret_cast<BF16Bits*>(planes.Exact(region, token));
  for (int32_t i = 0; i < planes.exact_dim; i += 8) StoreF32(exact + i, KvFinite8(_mm256_loadu_ps(x + dim + i)));
  for (int32_t i = 0; i < dim; i += 8) {
    const __m256 finite = KvFinite8(_mm256_loadu_ps(x + i));
    _mm256_storeu_ps(x + i, mean == nullptr ? finite : _mm256_sub_ps(finite, _mm256_loadu_ps(mean + i)));
  }
  RotateKvAvx2(x, dim, planes.rotation);
  EncodeRows(planes.key, key, region, token);
}

void AppendCodes(const RopeAppendParams& params, int64_t row, int64_t slot, int64_t position) {
  const PagedKv& kv = params.kv.At(position);
  const int64_t token = position % kv.block_tokens;
  const int32_t begin = params.k_rope_offset, end = begin + params.rope_dim;
  Padded x;
  for (int32_t head = 0; head < kv.num_kv_heads; ++head) {
    std::byte* region = KvRegion(kv, slot, position, head);
    const float* k = params.k + row * params.k_token_stride + head * params.k_head_stride;
    std::copy_n(k, begin, x.values);
    RotateTo(params, row, k + begin, x.values + begin);
    std::copy(k + end, k + kv.k_dim, x.values + end);
    EncodeKey(*kv.planes, KvKeyMean(kv, head), &x, region, token);
    if (params.v == nullptr) continue;
    std::copy_n(params.v + row * params.v_token_stride + head * params.v_head_stride, kv.v_dim, x.values);
    EncodeRows(kv.planes->value, &x, region, token);
  }
}

}  // namespace

void RopeAppendAvx2(const ExecContext& ctx, const RopeAppendParams& params) {
  const PagedKv& kv = params.kv;
  // Mostly the wait for columns that other threads computed: eight tokens of SmolLM2's shape take a thread 4 to 7 us (Zen 4).
  const double value_ns = kv.planes == nullptr ? 0.7 : 1.0;
  const double token_ns =
      0.7 * params.num_q_heads * params.rope_dim + value_ns * kv.num_kv_heads * (kv.k_dim + kv.v_dim);
  ForEachToken(ctx, params.spans, token_ns, [&](int64_t row, int64_t slot, int64_t position) {
    for (int32_t head = 0; head < params.num_q_heads; ++head) {
      float* q = params.q + row * params.q_token_stride + head * params.q_head_stride + params.q_rope_offset;
      RotateTo(params, row, q, q);
    }
    if (kv.planes != nullptr) return AppendCodes(params, row, slot, position);
    WithKvType(kv.dtype, [&](auto type) { AppendToken<decltype(type)>(params, row, slot, position); });
  });
}

}  // namespace cachalot
