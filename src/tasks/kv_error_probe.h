// KvErrorProbe: what a quantised KV cache does to the output of attention, layer by layer: predicted from the first-order
// model, and measured by running the op over a quantised copy of the cache. It taps a model that runs over a text with an
// F32 cache, so that every layer's error is its own.
//
// The prediction (nothing in it is fitted). A stored key is off by e_j, uniform within its code's step; the score by
// delta_j = scale · q·e_j. With attention weights a_j and output o = Σ a_j v_j, to first order
//   o' - o = Σ a_j (delta_j - mean delta) v_j + Σ a_j eps_j,   so
//   E|o' - o|² = Σ a_j² (var(delta_j) |v_j - o|² + E|eps_j|²) + E|Σ a_j scale · (e_q·(k_j - mean k)) v_j|²,
// where eps_j is the value's error, uniform within its step, and e_q that of the query's rounding to bytes, which is the
// same for all keys and therefore does not average out over them. A sink's e_j and eps_j are 0.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/attention_tap.h"
#include "quant/kv_format.h"
#include "tasks/kv_key_means.h"

namespace cachalot {

class KvErrorProbe final : public AttentionTap {
 public:
  struct Options {
    std::vector<KvScheme> schemes;           // by layer; the last one is that of all behind it. Plain ones are left out
    std::vector<std::vector<float>> means;   // by layer, or empty
    int32_t sample_every = 64;               // positions that are looked at
    int32_t sink_tokens = 0;                 // as KvTypes has it; only of layers without a window
    bool measure = true;                     // not only predict
  };
  explicit KvErrorProbe(Options options) : options_(std::move(options)) {}

  void OnAttention(const ExecContext& ctx, const AttentionParams& params) override;

  // Sums of squares over the sampled outputs; of a plain layer there are none.
  struct Layer {
    double from_keys = 0, from_values = 0, from_query = 0;  // predicted
    double measured = 0;
    double output = 0;
    int64_t outputs = 0;

    double predicted() const { return from_keys + from_values + from_query; }
  };
  const std::vector<Layer>& layers() const { return layers_; }

 private:
  const KvScheme& SchemeOf(size_t layer_idx) const;
  void Sample(const ExecContext& ctx, const AttentionParams& params, const SeqSpan& span, size_t layer_idx);

  Options options_;
  bool inside_ = false;  // the probe's own attention
  LayerOrder order_;
  std::vector<Layer> layers_;
};

}  // namespace cachalot
