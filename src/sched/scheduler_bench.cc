// What a schedule costs the host: Plan and Commit, with nothing below them. At depth 1 this must stay hidden
// behind a decode step of the device (some milliseconds at 256 sequences).
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "sched/policy/fcfs.h"
#include "sched/scheduler.h"

namespace cachalot {
namespace {

SchedulerLimits Limits(int32_t num_seqs) {
  return {.max_seqs = num_seqs,
          .max_step_tokens = 8192,
          .max_context = 1 << 17,
          .vocab_size = 128256,
          .max_logit_rows = 1,
          .depth = 0,
          .kv_groups = {
              {.name = "full", .block_tokens = 16, .num_blocks = 1 << 17, .window = 0, .block_bytes = 1}}};
}

std::vector<int32_t> Prompt(int32_t length, int32_t start) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back((start * 7919 + i * 31) % 128256);
  return prompt;
}

// What a device would answer.
void Answer(const StepPlan& plan, StepResult* result) {
  result->step_id = plan.step_id;
  result->rows.clear();
  for (const PlanRow& row : plan.rows) {
    const int32_t end = row.num_computed + row.q_len;
    result->rows.push_back({.slot = row.slot,
                            .num_computed = end,
                            .sampled_token = (row.outputs & kOutputSample) ? end % 1000 : -1});
  }
}

// A decode step of so many sequences, with as many waiting for memory or a slot.
void DecodeStep(benchmark::State& state) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  auto scheduler = *Scheduler::Create(Limits(num_seqs), {.max_batch_tokens = 8192, .prefill_chunk = 8192},
                                      MakeFcfsPolicy());
  std::vector<std::unique_ptr<Sequence>> seqs;
  for (int32_t i = 0; i < num_seqs + static_cast<int32_t>(state.range(1)); ++i) {
    SequenceSpec spec;
    spec.prompt_ids = Prompt(64, i);
    spec.max_tokens = 1 << 16;
    seqs.push_back(std::make_unique<Sequence>(static_cast<uint64_t>(i + 1), std::move(spec)));
    scheduler->Add(seqs.back().get());
  }
  StepPlan plan;
  StepResult result;
  for (int i = 0; i < 8; ++i) {
    scheduler->Plan(&plan);
    Answer(plan, &result);
    scheduler->Commit(result);
  }
  for (auto _ : state) {
    scheduler->Plan(&plan);
    Answer(plan, &result);
    benchmark::DoNotOptimize(scheduler->Commit(result).data());
  }
  state.counters["per_row_ns"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * num_seqs,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(DecodeStep)
    ->Args({1, 0})
    ->Args({64, 0})
    ->Args({256, 0})
    ->Args({256, 4096})
    ->Args({1024, 0})
    ->Iterations(4000);

// A sequence enters, finds all but the last page of its prompt in the prefix cache, and leaves.
void AdmitCached(benchmark::State& state) {
  auto scheduler =
      *Scheduler::Create(Limits(16), {.max_batch_tokens = 8192, .prefill_chunk = 8192}, MakeFcfsPolicy());
  const std::vector<int32_t> prompt = Prompt(static_cast<int32_t>(state.range(0)), 1);
  StepPlan plan;
  StepResult result;
  uint64_t id = 0;
  for (auto _ : state) {
    SequenceSpec spec;
    spec.prompt_ids = prompt;
    spec.max_tokens = 1;
    Sequence seq(++id, std::move(spec));
    scheduler->Add(&seq);
    do {
      scheduler->Plan(&plan);
      Answer(plan, &result);
    } while (scheduler->Commit(result)[0].end == SequenceEnd::kNone);
    scheduler->Remove(&seq);
  }
}
BENCHMARK(AdmitCached)->Arg(1024)->Arg(16384)->Arg(131072 - 16);

}  // namespace
}  // namespace cachalot
