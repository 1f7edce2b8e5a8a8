#include "cli/bench_run.h"

#include <chrono>

#include "runtime/runtime.h"

namespace cachalot {
namespace {

int64_t MovedBytes(const Runtime& runtime) {
  return runtime.counters().weight_bytes.load() + runtime.counters().kv_bytes.load();
}

// A different text for each sequence, the same in every repeat.
std::vector<int32_t> MadeUpPrompt(int32_t length, int32_t sequence, int32_t vocab_size) {
  std::vector<int32_t> ids;
  uint32_t state = 12345u + 7919u * static_cast<uint32_t>(sequence);
  for (int32_t i = 0; i < length; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab_size)));
  }
  return ids;
}

}  // namespace

Result<BenchSample> Measure(Session& session, const BenchCase& bench, const StopOnInterrupt& stop) {
  const Runtime& runtime = *session.bundle().runtime;
  const int64_t moved_before = MovedBytes(runtime);
  Status status;
  const auto start = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < bench.batch; ++i) {
    Request request;
    request.prompt_ids = MadeUpPrompt(bench.prompt > 0 ? bench.prompt : 1, i, runtime.info().vocab_size);
    request.max_tokens = bench.prompt > 0 ? 1 : bench.generate;
    request.ignore_eos = true;
    RETURN_IF_ERROR(session.engine()
                        .Submit(std::move(request),
                                [&status](const RequestOutput& output) {
                                  if (!output.error.ok()) status = output.error;
                                })
                        .status());
  }
  while (session.engine().HasWork()) {
    if (stop.interrupted()) return Cancelled("interrupted");
    RETURN_IF_ERROR(session.engine().Step());
    RETURN_IF_ERROR(status);
  }
  BenchSample sample;
  sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  sample.tokens = int64_t{bench.batch} * (bench.prompt > 0 ? bench.prompt : bench.generate);
  sample.moved_bytes = MovedBytes(runtime) - moved_before;
  return sample;
}

}  // namespace cachalot
