// --kv-max-kl: before a model with a quantised KV cache is used, what that costs is measured on a short text: the mean KL
// divergence of its next-token distributions from those with a BF16 cache. What costs more than allowed is refused, or
// gives way to a more exact type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/kv_gate_options.h"
#include "engine/kv_types.h"
#include "runtime/runtime.h"

namespace cachalot {

class Tokenizer;

// What can be measured: the model and its threads go into a runtime and come back. Left with the types it was asked for last.
struct KvGateModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<ThreadPool> pool;
};

// What `options` asks for, if it passes, else what it falls back to. `choice`: ChooseKv's for `options`; runtime: as the model
// will run.
Result<KvChoice> GateKv(const KvGateOptions& gate, const KvOptions& options, const KvChoice& choice, const RuntimeOptions& runtime,
                        const Tokenizer& tokenizer, KvGateModel* model);

// The types after `type` that "auto" goes on with, the last one plain.
std::vector<std::string> KvFallbacks(const std::string& type);

}  // namespace cachalot
