// What a step costs the host: plan, commit, text and delivery to the server, with a device that answers at once. At B = 256
// this has to stay below 200 us, so that it hides behind a decode step of the device. (What the device's stand-in takes
// itself is measured and left out.)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/model_bundle.h"
#include "server/engine_loop.h"
#include "server/server_metrics.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using SteadyTime = std::chrono::steady_clock;

class InstantExecutor final : public StepExecutor {
 public:
  InstantExecutor(int32_t num_seqs, int32_t vocab_size) {
    info_ = {.max_seqs = num_seqs,
             .max_step_tokens = 8192,
             .max_context = 8192,
             .vocab_size = vocab_size,
             .kv_groups = {{.name = "full", .block_tokens = 16, .num_blocks = 1 << 18, .window = 0, .block_bytes = 1}}};
  }
  const ExecutorInfo& info() const override { return info_; }
  Status Launch(const StepPlan& plan) override {
    const auto begin = SteadyTime::now();
    result_.Clear();
    result_.step_id = plan.step_id;
    for (const PlanRow& row : plan.rows) {
      const int32_t end = row.num_computed + row.q_len;
      ResultRow out{.slot = row.slot, .num_computed = end};
      if (row.outputs & kOutputSample) out.sampled_token = (end * 7919 + row.slot * 31) % info_.vocab_size;
      if (row.outputs & kOutputTopLogprobs) {
        out.top_begin = static_cast<int32_t>(result_.top_logprobs.size());
        out.top_len = row.num_top_logprobs;
        result_.top_logprobs.resize(result_.top_logprobs.size() + static_cast<size_t>(row.num_top_logprobs), {1, -1.0f});
      }
      result_.rows.push_back(out);
    }
    own_ += SteadyTime::now() - begin;
    return Status::Ok();
  }
  Status Collect(StepResult* result) override {
    std::swap(*result, result_);
    return Status::Ok();
  }
  double own_seconds() const { return std::chrono::duration<double>(own_).count(); }

 private:
  ExecutorInfo info_;
  StepResult result_;
  SteadyTime::duration own_{};
};

const Tokenizer& TinyModelsTokenizer() {
  static const ModelBundle* bundle = [] {
    ModelOptions options;
    options.dummy = "tiny-llama";
    return new ModelBundle(std::move(*PlanModel(options)));
  }();
  return *bundle->tokenizer;
}

Request MakeRequest(int32_t i, int32_t vocab_size, int32_t max_tokens, bool logprobs) {
  Request request;
  for (int32_t t = 0; t < 64; ++t) request.prompt_ids.push_back((i * 7919 + t * 31) % vocab_size);
  request.max_tokens = max_tokens;
  request.stop_strings = {"a text that never comes"};
  if (logprobs) request.num_top_logprobs = 5;
  return request;
}

// The engine alone: scheduler, text, callbacks.
void EngineStep(benchmark::State& state) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  const Tokenizer& tokenizer = TinyModelsTokenizer();
  InstantExecutor executor(num_seqs, tokenizer.vocab_size());
  auto engine = *Engine::Create(&executor, &tokenizer, {.max_batch_tokens = 8192, .prefill_chunk = 8192});
  size_t bytes = 0;
  for (int32_t i = 0; i < num_seqs; ++i) {
    CHECK(engine->Submit(MakeRequest(i, tokenizer.vocab_size(), 8000, state.range(1) != 0),
                         [&](const RequestOutput& output) { bytes += output.text.size(); }).ok());
  }
  for (int i = 0; i < 8; ++i) CHECK(engine->Step().ok());
  std::vector<double> times_us;
  times_us.reserve(static_cast<size_t>(state.max_iterations));
  for (auto _ : state) {
    const double own = executor.own_seconds();
    const auto begin = SteadyTime::now();
    CHECK(engine->Step().ok());
    const double seconds = std::chrono::duration<double>(SteadyTime::now() - begin).count() - (executor.own_seconds() - own);
    state.SetIterationTime(seconds);
    times_us.push_back(seconds * 1e6);
  }
  // On a busy machine the mean tells of the others.
  std::nth_element(times_us.begin(), times_us.begin() + static_cast<ptrdiff_t>(times_us.size() / 2), times_us.end());
  state.counters["median_us"] = times_us[times_us.size() / 2];
  benchmark::DoNotOptimize(bytes);
}
BENCHMARK(EngineStep)->Args({1, 0})->Args({64, 0})->Args({256, 0})->Args({256, 1})->Args({1024, 0})->Iterations(3000)->UseManualTime();

// With the server's loop around it: events, metrics, and a queue of each request as a connection's thread would empty it.
void LoopStep(benchmark::State& state) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  constexpr int32_t kTokens = 2000;
  const Tokenizer& tokenizer = TinyModelsTokenizer();
  for (auto _ : state) {
    InstantExecutor executor(num_seqs, tokenizer.vocab_size());
    auto engine = *Engine::Create(&executor, &tokenizer, {.max_batch_tokens = 8192, .prefill_chunk = 8192});
    MetricRegistry registry;
    ServerMetrics metrics(&registry, executor.info());
    EngineLoop loop(engine.get(), executor.info(), &metrics, {.max_waiting = num_seqs, .max_seqs = num_seqs});
    std::mutex mutex;
    std::condition_variable done;
    int32_t left = num_seqs;
    CHECK(loop.Reserve(num_seqs).ok());
    const auto begin = SteadyTime::now();
    for (int32_t i = 0; i < num_seqs; ++i) {
      loop.Submit(MakeRequest(i, tokenizer.vocab_size(), kTokens, false), SinkOf([&](const TokenEvent& event) {
        benchmark::DoNotOptimize(event.text.data());
        if (!event.finished) return;
        const std::lock_guard lock(mutex);
        if (--left == 0) done.notify_one();
      }));
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return left == 0; });
    const double seconds = std::chrono::duration<double>(SteadyTime::now() - begin).count() - executor.own_seconds();
    state.SetIterationTime(seconds / static_cast<double>(kTokens));
  }
}
BENCHMARK(LoopStep)->Args({256})->Iterations(3)->UseManualTime();

}  // namespace
}  // namespace cachalot
