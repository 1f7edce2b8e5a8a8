// --kv-budget: which KV type each layer gets, from what the types cost it (`kv calibrate`) and how many bits a value may take.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct KvBudgetType {
  std::string name;
  double bits = 0;             // of a value, scales included
  std::vector<float> errors;   // by layer: squares, so that they add up
};

// The index of each layer's type. Greedy: all begin with the type of the fewest bits, and whoever gains most per bit goes up
// next, as long as the average stays within `bits`. kInvalidArgument: even the smallest type is beyond it.
Result<std::vector<size_t>> ChooseKvMix(std::span<const KvBudgetType> types, size_t num_layers, double bits);

}  // namespace cachalot
