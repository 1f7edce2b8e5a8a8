// Sources and pages of the C interface, checked and understood as a call of KvRemap.
#pragma once

#include "capi/flashinfer/kv_outcome.h"
#include "kernels/kv_remap/kv_remap.h"

namespace cachalot {

KvOutcome KvBlockBytes(const cachalot_kv_source& source, uint64_t* bytes);
KvOutcome ViewKvPages(const cachalot_kv_source& source, cachalot_kv_pages* pages);
// Of structs in host memory; what they point at is only read where the headers are.
KvOutcome PlanMaterialize(const cachalot_kv_source& source, const cachalot_kv_pages& pages, KvRemapParams* params);

}  // namespace cachalot
