// KeyMeans: while a model runs over a text, the mean of every channel of every head's keys, as they lie in the cache: what
// a quantised cache takes off first (`cachalot kv calibrate`). The cache must be F32, and MLA absorbed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/attention/attention_tap.h"

namespace cachalot {

// Layers in the order in which a forward pass meets them, told apart by where their cache lies.
class LayerOrder {
 public:
  size_t IndexOf(const PagedKv& kv);
  size_t size() const { return seen_.size(); }

 private:
  std::vector<const std::byte*> seen_;
};

class KeyMeans final : public AttentionTap {
 public:
  void OnAttention(const ExecContext& ctx, const AttentionParams& params) override;

  struct Layer {
    int64_t heads = 0, dim = 0;  // dim: without MLA's rotary part
    int64_t tokens = 0;
    std::vector<double> sums;    // [heads, dim]
    std::vector<double> squares;
  };
  const std::vector<Layer>& layers() const { return layers_; }
  // The part of the keys' mean square that the mean explains, over all heads of a layer: what removing it saves.
  static double MeanShare(const Layer& layer);
  std::vector<std::vector<float>> Means() const;  // by layer, [heads, dim]

 private:
  LayerOrder order_;
  std::vector<Layer> layers_;
};

// What a type costs each layer: the error's square by the output's, of its attention, as KvErrorProbe predicts it.
struct KvTypeErrors {
  std::string type;
  std::vector<float> layers;
};
// Safetensors: layers.<n>.key_mean F32 [heads, dim], kv_error.<type> F32 [layers].
Status WriteKvCalibration(const std::string& path, const KeyMeans& means, const std::vector<KvTypeErrors>& errors);

// Several taps at once.
class AttentionTaps final : public AttentionTap {
 public:
  explicit AttentionTaps(std::vector<AttentionTap*> taps) : taps_(std::move(taps)) {}
  void OnAttention(const ExecContext& ctx, const AttentionParams& params) override {
    for (AttentionTap* tap : taps_) tap->OnAttention(ctx, params);
  }

 private:
  std::vector<AttentionTap*> taps_;
};

}  // namespace cachalot
