// How an op picks its variant: an explicit table, best first, the generic one last. The first row that the
// context's instruction set allows and whose declared features cover the call runs; falling back to the
// generic one is counted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "device/exec_context.h"

namespace cachalot {

template <typename Params>
struct KernelVariant {
  Isa isa;
  bool (*covers)(const Params& params);  // null: every shape
  void (*run)(const ExecContext& ctx, const Params& params);
};

template <typename Params, size_t kCount>
void RunVariant(const KernelVariant<Params> (&variants)[kCount], const ExecContext& ctx,
                const Params& params) {
  for (const KernelVariant<Params>& variant : variants) {
    if (variant.isa > ctx.isa || (variant.covers != nullptr && !variant.covers(params))) continue;
    if (variant.isa == Isa::kRef && ctx.isa != Isa::kRef && ctx.counters != nullptr) {
      ctx.counters->generic_calls.fetch_add(1, std::memory_order_relaxed);
    }
    variant.run(ctx, params);
    return;
  }
  CHECK(false) << "the last variant of an op covers every shape";
}

}  // namespace cachalot
