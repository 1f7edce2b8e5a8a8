#include "tasks/kv_key_means.h"

#include <algorithm>

#include "base/check.h"
#include "formats/safetensors_writer.h"
#include "model/kv_calibration.h"

namespace cachalot {

size_t LayerOrder::IndexOf(const PagedKv& kv) {
  const auto it = std::find(seen_.begin(), seen_.end(), kv.data);
  if (it != seen_.end()) return static_cast<size_t>(it - seen_.begin());
  seen_.push_back(kv.data);
  return seen_.size() - 1;
}

void KeyMeans::OnAttention(const ExecContext& /*ctx*/, const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  CHECK(kv.planes == nullptr && kv.dtype == DType::kF32) << "means are taken from an F32 cache";
  const size_t idx = order_.IndexOf(kv);
  layers_.resize(std::max(layers_.size(), idx + 1));
  Layer& layer = layers_[idx];
  const bool latent = kv.v_offset == 0;
  layer.heads = kv.num_kv_heads;
  layer.dim = latent ? kv.v_dim : kv.k_dim;
  layer.sums.resize(static_cast<size_t>(layer.heads * layer.dim));
  layer.squares.resize(layer.sums.size());
  for (const SeqSpan& span : params.spans) {
    layer.tokens += span.q_len;
    for (int64_t t = int64_t{span.kv_len} - span.q_len; t < span.kv_len; ++t) {
      const auto* block = reinterpret_cast<const float*>(kv.Block(span.slot, t));
      for (int64_t h = 0; h < layer.heads; ++h) {
        const float* key = block + h * kv.k_head_stride + t % kv.block_tokens * kv.k_dim;
        for (int64_t i = 0; i < layer.dim; ++i) {
          const auto at = static_cast<size_t>(h * layer.dim + i);
          layer.sums[at] += key[i];
          layer.squares[at] += double{key[i]} * key[i];
        }
      }
    }
  }
}

double KeyMeans::MeanShare(const Layer& layer) {
  double of_mean = 0, all = 0;
  for (size_t i = 0; i < layer.sums.size(); ++i) {
    of_mean += layer.sums[i] * layer.sums[i] / static_cast<double>(layer.tokens);
    all += layer.squares[i];
  }
  return all > 0 ? of_mean / all : 0;
}

std::vector<std::vector<float>> KeyMeans::Means() const {
  std::vector<std::vector<float>> means;
  for (const Layer& layer : layers_) {
    std::vector<float>& mean = means.emplace_back();
    for (const double sum : layer.sums) mean.push_back(static_cast<float>(sum / static_cast<double>(layer.tokens)));
  }
  return means;
}

Status WriteKvCalibration(const std::string& path, const KeyMeans& means, const std::vector<KvTypeErrors>& errors) {
  SafetensorsWriter writer;
  std::vector<std::vector<float>> values = means.Means();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t dims[] = {means.layers()[i].heads, means.layers()[i].dim};
    RETURN_IF_ERROR(writer.AddTensor(KeyMeanName(static_cast<int32_t>(i)), DType::kF32, dims));
  }
  for (const KvTypeErrors& type : errors) {
    const int64_t dims[] = {static_cast<int64_t>(type.layers.size())};
    RETURN_IF_ERROR(writer.AddTensor(KvErrorName(type.type), DType::kF32, dims));
    values.push_back(type.layers);
  }
  return writer.WriteFile(path, [&](const SafetensorsTensor& tensor, ByteSink& sink) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (writer.tensors()[i].name == tensor.name) return sink.Append(std::as_bytes(std::span(values[i])));
    }
    return Internal("no tensor {}", tensor.name);
  });
}

}  // namespace cachalot
