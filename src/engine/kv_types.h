// How a model's KV cache is kept, from what the user says about it: --kv-type and its companions.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/kv_layout.h"

namespace cachalot {

inline constexpr int32_t kDefaultSinks = 4;

struct KvOptions {
  std::string type = "auto";    // auto (f16), f32, f16, bf16, or a KvFormat's name
  std::string layers = "";      // of these layers another one: "0-1=f16,29=k8v8"
  std::string group = "auto";   // values of a key, or of MLA's latent, that share a scale: auto (the format's), head, 32, 64, 128
  std::string rotate = "auto";  // auto (the format's), on, off
  int32_t sinks = -1;           // first tokens that stay exact; -1: kDefaultSinks, where that is possible
  std::string calibration = ""; // a file that `kv calibrate` wrote: means of keys, errors of types
  float budget = 0;             // bits of a value on average: picks each layer's type (kv_budget.h); 0: type says
};

struct KvChoice {
  DType plain = DType::kF16;                   // of layers that are not quantised
  KvTypes types;
  std::vector<std::vector<float>> key_means;   // ModelBuildOptions::key_means
  std::string Name() const;                    // all that the bits depend on
  std::string mix = "";                        // what a budget picked: "0-3=k8v8,4=k6v8"
};

// kInvalidArgument for what is no type, layer or file of this model's.
Result<KvChoice> ChooseKv(const KvOptions& options, const ModelSpec& spec);

// What --kv-type says, without the model.
std::vector<std::string> KvTypeNames();
// llama.cpp's -ctk and -ctv, as --kv-type has it.
Result<std::string> KvTypeOfPair(const std::string& k, const std::string& v);

}  // namespace cachalot
