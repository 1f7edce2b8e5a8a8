#include "tasks/kv_error_probe.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/attention/attention_query.h"
#include "kernels/common/kv_region.h"
#include "quant/kv_rotate.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

// One head of a sequence: what the model meant, and what a quantised cache would hold.
struct Head {
  std::vector<float> keys, values;                  // [tokens, k_dim], [tokens, v_dim]
  std::vector<float> stored;                        // [tokens, coded dims]: rotated, without the mean, not yet coded
  std::vector<float> key_variance, value_variance;  // [tokens, ·]: of every stored value's rounding
};

double StepVariance(KvCode code, float x, float scale) {
  double step = scale;
  if (code == KvCode::kE4M3 && scale > 0) {
    const double magnitude = std::fabs(x) / scale;
    step *= magnitude < 0x1p-6 ? 0x1p-9 : std::exp2(std::floor(std::log2(magnitude)) - 3);
  }
  return step * step / 12;
}

void Variances(const KvRows& rows, std::byte* region, int64_t token, const float* x, float* variance) {
  const KvCoding& coding = rows.coding;
  for (int32_t i = 0; i < coding.dim; ++i) {
    variance[i] = static_cast<float>(StepVariance(coding.code, x[i], BF16ToF32(rows.Scales(region, token)[i / coding.group])));
  }
}

// A quantised copy of one sequence's cache: sinks in a block of their own form, if there are any.
struct Copy {
  Copy(const PagedKv& kv, const KvScheme& scheme, const float* mean, int32_t kv_len, int32_t sink_tokens)
      : latent(kv.v_offset == 0), block_tokens(sink_tokens > 0 ? sink_tokens : kv_len) {
    const KvVectors vectors = {kv.k_dim, kv.v_dim, latent ? kv.k_dim - kv.v_dim : 0, latent};
    planes = PlanKvPlanes(scheme, vectors, block_tokens);
    sink_planes = PlanKvPlanes(SinkScheme(scheme), vectors, block_tokens);
    view = kv;
    view.block_tokens = block_tokens;
    view.key_mean = mean;
    view.table_stride = (kv_len + block_tokens - 1) / block_tokens;
    for (int32_t i = 0; i < view.table_stride; ++i) table.push_back(i);
    view.block_tables = table.data();
    view.block_bytes = planes.head_bytes * kv.num_kv_heads;
    bytes.resize(static_cast<size_t>(view.block_bytes * view.table_stride));
    view.data = bytes.data();
    view.planes = &planes;
    if (sink_tokens == 0) return;
    sinks = view;
    sinks.planes = &sink_planes;
    sinks.block_bytes = sink_planes.head_bytes * kv.num_kv_heads;
    sink_bytes.resize(static_cast<size_t>(sinks.block_bytes));
    sinks.data = sink_bytes.data();
    view.sinks = &sinks;
    view.sink_tokens = sink_tokens;
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  bool latent;
  int32_t block_tokens;
  KvPlanes planes, sink_planes;
  std::vector<int32_t> table;
  std::vector<std::byte> bytes, sink_bytes;
  PagedKv view, sinks;
};

Head ReadHead(const PagedKv& kv, const Copy& copy, const SeqSpan& span, int64_t head) {
  Head out;
  const float* mean = KvKeyMean(copy.view, head);
  const auto tokens = static_cast<size_t>(span.kv_len), k_dim = static_cast<size_t>(kv.k_dim), v_dim = static_cast<size_t>(kv.v_dim);
  const auto coded = static_cast<size_t>(copy.planes.key.coding.dim);
  out.keys.resize(tokens * k_dim);
  out.values.resize(tokens * v_dim);
  out.stored.resize(tokens * coded);
  out.key_variance.resize(tokens * coded);
  out.value_variance.resize(tokens * v_dim);
  std::vector<float> key(k_dim);
  for (size_t t = 0; t < tokens; ++t) {
    const auto position = static_cast<int64_t>(t);
    const auto* block = reinterpret_cast<const float*>(kv.Block(span.slot, position));
    const int64_t in_block = position % kv.block_tokens;
    const float* k = block + head * kv.k_head_stride + in_block * kv.k_dim;
    const float* v = block + kv.v_offset + head * kv.v_head_stride + in_block * kv.v_token_stride;
    std::copy_n(k, k_dim, out.keys.data() + t * k_dim);
    std::copy_n(v, v_dim, out.values.data() + t * v_dim);
    std::copy_n(k, k_dim, key.data());
    const PagedKv& part = copy.view.At(position);
    const KvPlanes& planes = *part.planes;
    std::byte* region = KvRegion(part, 0, position, head);
    const int64_t token = position % copy.block_tokens;
    EncodeKvKey(planes, mean, key.data(), region, token);
    if (!planes.value_in_key) EncodeKvValue(planes, v, region, token);
    float* stored = out.stored.data() + t * coded;  // what EncodeKvKey coded
    std::copy_n(k, coded, stored);
    for (size_t i = 0; i < coded && mean != nullptr; ++i) stored[i] -= mean[i];
    RotateKv(stored, static_cast<int32_t>(coded), planes.rotation);
    if (position < copy.view.sink_tokens) continue;
    Variances(planes.key, region, token, stored, out.key_variance.data() + t * coded);
    float* value_variance = out.value_variance.data() + t * v_dim;
    if (planes.value_in_key) {
      // Turned back, the error's square is that of the stored values over the rotation's length, spread evenly.
      for (size_t i = 0; i < v_dim; ++i) value_variance[i] = out.key_variance[t * coded + i] / static_cast<float>(planes.rotation);
    } else {
      Variances(planes.value, region, token, v, value_variance);
    }
  }
  return out;
}

// Adds one output's prediction.
void Predict(const KvPlanes& planes, const Head& head, const float* q, int64_t tokens, float scale, int64_t k_dim, int64_t v_dim,
             std::vector<double>* output, KvErrorProbe::Layer* layer) {
  const int64_t coded = planes.key.coding.dim;
  std::vector<double> weight(static_cast<size_t>(tokens));
  double largest = -1e300, sum = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    double dot = 0;
    for (int64_t i = 0; i < k_dim; ++i) dot += double{q[i]} * head.keys[static_cast<size_t>(t * k_dim + i)];
    weight[static_cast<size_t>(t)] = dot * scale;
    largest = std::max(largest, dot * scale);
  }
  for (double& w : weight) sum += w = std::exp(w - largest);
  output->assign(static_cast<size_t>(v_dim), 0.0);
  std::vector<double> mean_key(static_cast<size_t>(coded));
  for (int64_t t = 0; t < tokens; ++t) {
    const double a = weight[static_cast<size_t>(t)] /= sum;
    for (int64_t i = 0; i < v_dim; ++i) (*output)[static_cast<size_t>(i)] += a * head.values[static_cast<size_t>(t * v_dim + i)];
    for (int64_t i = 0; i < coded; ++i) mean_key[static_cast<size_t>(i)] += a * head.stored[static_cast<size_t>(t * coded + i)];
  }
  std::vector<float> rotated(q, q + coded);
  RotateKv(rotated.data(), static_cast<int32_t>(coded), planes.rotation);
  float query_largest = 0;
  for (const float x : rotated) query_largest = std::max(query_largest, std::fabs(x));
  const double stored_scale = StoredScoreScale(planes, scale);
  const double query_step = IntegerKeys(planes) ? QueryScale(query_largest) : 0.0;
  std::vector<double> with_value(static_cast<size_t>(coded * v_dim));  // Σ a_j (k_j - mean k) v_j
  for (int64_t t = 0; t < tokens; ++t) {
    const double a = weight[static_cast<size_t>(t)];
    double delta = 0, distance = 0, value = 0;
    for (int64_t i = 0; i < coded; ++i) {
      const double x = rotated[static_cast<size_t>(i)];
      delta += x * x * head.key_variance[static_cast<size_t>(t * coded + i)];
    }
    for (int64_t i = 0; i < v_dim; ++i) {
      const double d = head.values[static_cast<size_t>(t * v_dim + i)] - (*output)[static_cast<size_t>(i)];
      distance += d * d;
      value += head.value_variance[static_cast<size_t>(t * v_dim + i)];
    }
    layer->from_keys += a * a * delta * stored_scale * stored_scale * distance;
    layer->from_values += a * a * value;
    for (int64_t i = 0; i < coded && query_step > 0 && a > 1e-6; ++i) {
      const double k = a * (head.stored[static_cast<size_t>(t * coded + i)] - mean_key[static_cast<size_t>(i)]);
      double* row = with_value.data() + i * v_dim;
      for (int64_t j = 0; j < v_dim; ++j) row[j] += k * head.values[static_cast<size_t>(t * v_dim + j)];
    }
  }
  double squares = 0;
  for (const double x : with_value) squares += x * x;
  layer->from_query += squares * stored_scale * stored_scale * query_step * query_step / 12;
}

}  // namespace

void KvErrorProbe::OnAttention(const ExecContext& ctx, const AttentionParams& params) {
  if (inside_) return;
  CHECK(params.kv.planes == nullptr && params.kv.dtype == DType::kF32) << "errors are measured against an F32 cache";
  inside_ = true;
  const size_t idx = order_.IndexOf(params.kv);
  layers_.resize(std::max(layers_.size(), idx + 1));
  if (!SchemeOf(idx).quantised()) {
    inside_ = false;
    return;
  }
  for (const SeqSpan& span : params.spans) {
    if (span.q_len > 0) Sample(ctx, params, span, idx);
  }
  inside_ = false;
}

const KvScheme& KvErrorProbe::SchemeOf(size_t layer_idx) const {
  return options_.schemes[std::min(layer_idx, options_.schemes.size() - 1)];
}

void KvErrorProbe::Sample(const ExecContext& ctx, const AttentionParams& params, const SeqSpan& span, size_t layer_idx) {
  const PagedKv& kv = params.kv;
  const float* means = options_.means.empty() ? nullptr : options_.means[layer_idx].data();
  const Copy copy(kv, SchemeOf(layer_idx), means, span.kv_len, params.window > 0 ? 0 : options_.sink_tokens);
  std::vector<Head> heads;
  for (int64_t h = 0; h < kv.num_kv_heads; ++h) heads.push_back(ReadHead(kv, copy, span, h));
  Layer& layer = layers_[layer_idx];
  const int64_t group = params.num_q_heads / kv.num_kv_heads;
  std::vector<float> got(static_cast<size_t>(int64_t{params.num_q_heads} * kv.v_dim));
  std::vector<double> want;
  for (int32_t row = 0; row < span.q_len; ++row) {
    const int32_t position = span.kv_len - span.q_len + row;
    if ((position + 1) % options_.sample_every != 0) continue;
    const float* q = params.q + (span.q_begin + row) * params.q_token_stride;
    const SeqSpan one = {.slot = 0, .q_begin = 0, .q_len = 1, .kv_len = position + 1};
    AttentionParams own = params;
    own.spans = {&one, 1};
    own.q = q;
    own.window = 0;
    own.kv = copy.view;
    own.out = got.data();
    own.out_token_stride = int64_t{params.num_q_heads} * kv.v_dim;
    own.out_head_stride = kv.v_dim;
    if (options_.measure) Attention(ctx, own);
    for (int64_t h = 0; h < params.num_q_heads; ++h) {
      Predict(copy.planes, heads[static_cast<size_t>(h / group)], q + h * params.q_head_stride, position + 1, params.scale, kv.k_dim,
              kv.v_dim, &want, &layer);
      for (int64_t i = 0; i < kv.v_dim; ++i) {
        const double error = got[static_cast<size_t>(h * kv.v_dim + i)] - want[static_cast<size_t>(i)];
        layer.measured += options_.measure ? error * error : 0;
        layer.output += want[static_cast<size_t>(i)] * want[static_cast<size_t>(i)];
      }
      ++layer.outputs;
    }
  }
}

}  // namespace cachalot
