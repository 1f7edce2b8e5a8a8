// What a KV type does to a model's answers: two sessions over the same windows, position by position.
#pragma once

#include <functional>
#include <span>

#include "cli/session.h"
#include "tasks/ppl_windows.h"

namespace cachalot {

struct KvComparison {
  PplTotals base, other;
  int64_t positions = 0;
  int64_t same_top = 0;   // the same most likely token
  double kl_sum = 0;      // of KL(base || other), in nats
  double kl_largest = 0;

  double mean_kl() const { return positions > 0 ? kl_sum / static_cast<double>(positions) : 0; }
  double same_top_share() const { return positions > 0 ? static_cast<double>(same_top) / static_cast<double>(positions) : 0; }
};

// done: windows; false stops the work (kCancelled). Both sessions give logits of every position (ModelOptions::max_logit_rows).
Result<KvComparison> CompareKv(Session* base, Session* other, std::span<const PplWindow> windows,
                               const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace cachalot
