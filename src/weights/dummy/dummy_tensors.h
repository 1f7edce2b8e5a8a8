// The tensors of a dummy, under their Hugging Face names, each with its part in the model (which says how a
// GGUF file calls it) and the distribution of its values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/dummy/dummy_spec.h"
#include "weights/tensor_source.h"

namespace cachalot {

// clang-format off
enum class DummyRole : uint8_t {
  kEmbed, kFinalNorm, kHead,
  kAttnNorm, kFfnNorm,
  kQ, kK, kV, kO, kQBias, kKBias, kVBias, kQNorm, kKNorm,
  kQA, kQANorm, kQB, kKvA, kKvANorm, kKvB,
  kRouter, kRouterBias,
  kGate, kUp, kDown,
  kExpertGate, kExpertUp, kExpertDown,
  kSharedGate, kSharedUp, kSharedDown,
  kMtpEmbedNorm, kMtpHiddenNorm, kMtpProjection, kMtpFinalNorm,
  kBlockScale,  // the weight_scale_inv of an FP8 weight
};
// clang-format on

// Suffix below "blk.N." (or the whole name for the three global ones); "" where GGUF keeps no such tensor by
// itself.
const char* GgufNameOf(DummyRole role);

// How values are drawn: all around `mean` with deviation `std`.
enum class DummyFill : uint8_t { kNormal, kBlockScale };

struct DummyTensor {
  SourceTensor info;
  DummyRole role = DummyRole::kEmbed;
  int32_t layer = -1;  // -1: belongs to no layer
  int32_t expert = -1;
  DummyFill fill = DummyFill::kNormal;
  float mean = 0.0f;
  float std = 0.0f;

  int64_t num_rows() const { return info.num_values() / num_cols(); }
  int64_t num_cols() const { return info.dims[info.num_dims - 1]; }
};

// FP8 tensors are followed by their block scales. Weights are of `type`; norms, biases and router are not, as
// in real files: F32 beside a block-quantised type, else the plain 16- or 32-bit type.
std::vector<DummyTensor> ListDummyTensors(const DummySpec& spec, DType type);

}  // namespace cachalot
