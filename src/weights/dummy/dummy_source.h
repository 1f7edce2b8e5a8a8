// Generated weights as a TensorSource: a model of any shape without a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weights/dummy/dummy_spec.h"
#include "weights/dummy/dummy_tensors.h"
#include "weights/tensor_source.h"

namespace cachalot {

// A spec with the options of the command line applied: layers 0 keeps the model's own number, type "" its own
// type. kInvalidArgument for more layers than 1000 or a type that nothing can be encoded to.
struct DummyModel {
  DummySpec spec;
  DType type = DType::kBF16;
};
Result<DummyModel> ResolveDummy(std::string_view spec_name, int32_t layers, std::string_view type);

// The same model as a Hugging Face folder would give it: config.json's text, and tensors under their hub
// names (also of block-quantised types, which such a folder could not hold).
struct DummyWeights {
  std::string config_json;
  std::unique_ptr<TensorSource> source;
};
Result<DummyWeights> MakeDummySource(std::string_view spec_name, int32_t layers, std::string_view type);

}  // namespace cachalot
