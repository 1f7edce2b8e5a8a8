// The definition of Attention over a quantised cache: as attention_ref.cc has it, over the values that the codes stand
// for, with the query of attention_query.h. Everything happens where the keys are stored, rotated and without their
// mean: the rotation cancels in the scores, and the mean adds the same to all of them. Only where the value lies in the
// key does the output have to be turned back.
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_query.h"
#include "kernels/attention/attention_variants.h"
#include "kernels/common/kv_region.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

struct Scratch {
  float query[kMaxKvDim];
  float stored[kMaxKvDim];
};

void StoreQuery(const KvPlanes& planes, const float* q, float* query) {
  const int32_t dim = planes.key.coding.dim;
  std::copy_n(q, dim + planes.exact_dim, query);
  RotateKv(query, dim, planes.rotation);
  if (!IntegerKeys(planes)) return;
  float largest = 0;
  for (int32_t i = 0; i < dim; ++i) {
    if (!(std::fabs(query[i]) <= largest)) largest = std::fabs(query[i]);  // a NaN stays
  }
  const float scale = QueryScale(largest), inverse = scale == 0 ? 0.0f : 1.0f / scale;
  for (int32_t i = 0; i < dim; ++i) query[i] = std::nearbyint(query[i] * inverse) * scale;
}

float Score(const AttentionParams& params, Scratch* scratch, int64_t slot, int64_t head, int64_t position) {
  const PagedKv& kv = params.kv.At(position);
  const KvPlanes& planes = *kv.planes;
  const int32_t dim = planes.key.coding.dim;
  std::byte* region = KvRegion(kv, slot, position, head);
  const int64_t token = position % kv.block_tokens;
  DecodeKvRows(planes.key, region, token, scratch->stored);
  double coded = 0, exact = 0;
  for (int32_t i = 0; i < dim; ++i) coded += double{scratch->query[i]} * scratch->stored[i];
  const uint16_t* tail = planes.Exact(region, token);
  for (int32_t i = 0; i < planes.exact_dim; ++i) exact += double{scratch->query[dim + i]} * BF16ToF32(tail[i]);
  return static_cast<float>(coded * StoredScoreScale(planes, params.scale) + exact * params.scale);
}

}  // namespace

void AttendCodesRow(const AttentionParams& params, const SeqSpan& span, int64_t row, int64_t head, double* acc) {
  const PagedKv& kv = params.kv;
  const KvPlanes& planes = *kv.planes;
  const int64_t kv_head = head / (params.num_q_heads / kv.num_kv_heads);
  float* out = params.out + (span.q_begin + row) * params.out_token_stride + head * params.out_head_stride;
  const KvRange range = VisibleRange(int64_t{span.kv_len} - span.q_len + row, params.window);
  Scratch scratch;
  StoreQuery(planes, params.q + (span.q_begin + row) * params.q_token_stride + head * params.q_head_stride, scratch.query);

  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t t = range.begin; t < range.end; ++t) {
    largest = std::max(largest, Score(params, &scratch, span.slot, kv_head, t));
  }
  double sum = 0;
  std::fill_n(acc, kv.v_dim, 0.0);
  for (int64_t t = range.begin; t < range.end; ++t) {
    const double p = std::exp(Score(params, &scratch, span.slot, kv_head, t) - largest);
    const PagedKv& part = kv.At(t);
    DecodeKvRows(part.planes->value, KvRegion(part, span.slot, t, kv_head), t % kv.block_tokens, scratch.stored);
    sum += p;
    for (int32_t i = 0; i < kv.v_dim; ++i) acc[i] += p * scratch.stored[i];
  }
  for (int32_t i = 0; i < kv.v_dim; ++i) out[i] = static_cast<float>(acc[i] / sum);
  if (!planes.value_in_key) return;
  const float* mean = KvKeyMean(kv, kv_head);
  RotateKv(out, kv.v_dim, planes.rotation);
  for (int32_t i = 0; i < kv.v_dim; ++i) out[i] = out[i] / static_cast<float>(planes.rotation) + (mean == nullptr ? 0.0f : mean[i]);
}

}  // namespace cachalot
