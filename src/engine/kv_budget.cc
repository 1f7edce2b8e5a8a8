#include "engine/kv_budget.h"

#include <algorithm>

namespace cachalot {

Result<std::vector<size_t>> ChooseKvMix(std::span<const KvBudgetType> types, size_t num_layers, double bits) {
  const auto smallest = std::min_element(types.begin(), types.end(), [](const auto& a, const auto& b) { return a.bits < b.bits; });
  const double budget = bits * static_cast<double>(num_layers) * (1 + 1e-9);
  double spent = smallest->bits * static_cast<double>(num_layers);
  if (spent > budget) {
    return InvalidArgument("--kv-budget {}: the smallest type, {}, takes {:.2f} bits a value", bits, smallest->name, smallest->bits);
  }
  std::vector<size_t> mix(num_layers, static_cast<size_t>(smallest - types.begin()));
  for (;;) {
    double best_gain = 0;
    size_t best_layer = 0, best_type = 0;
    for (size_t layer = 0; layer < num_layers; ++layer) {
      const KvBudgetType& now = types[mix[layer]];
      for (size_t t = 0; t < types.size(); ++t) {
        const double more = types[t].bits - now.bits;
        if (more <= 0 || spent + more > budget) continue;
        const double gain = (double{now.errors[layer]} - types[t].errors[layer]) / more;
        if (gain > best_gain) best_gain = gain, best_layer = layer, best_type = t;
      }
    }
    if (best_gain <= 0) return mix;
    spent += types[best_type].bits - types[mix[best_layer]].bits;
    mix[best_layer] = best_type;
  }
}

}  // namespace cachalot
