// The one Engine there is. EngineImpl::Step is the loop; everything below it is bookkeeping around callbacks.
#include "engine/engine.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "engine/request_check.h"
#include "engine/request_stream.h"
#include "sched/policy/fcfs.h"
#include "sched/scheduler.h"

namespace cachalot {
namespace {

struct LiveRequest {
  LiveRequest(uint64_t id, SequenceSpec spec, const Tokenizer* tokenizer,
              std::vector<std::string> stop_strings, OutputCallback callback)
      : seq(id, std::move(spec)),
        stream(tokenizer, std::move(stop_strings)),
        on_output(std::move(callback)) {}

  Sequence seq;
  RequestStream stream;
  OutputCallback on_output;
  int32_t num_prompt_computed = 0;  // published
  bool cancelled = false;
};

SequenceSpec SpecOf(Request* request) {
  SequenceSpec spec;
  spec.prompt_ids = std::move(request->prompt_ids);
  spec.sampling = std::move(request->sampling);
  spec.max_tokens = request->max_tokens;
  if (!request->ignore_eos) spec.stop_ids = std::move(request->stop_ids);
  spec.num_top_logprobs = request->num_top_logprobs;
  spec.prompt_logprobs = request->prompt_logprobs;
  spec.all_logits = request->all_logits;
  spec.mtp_logits = request->mtp_logits;
  spec.priority = request->priority;
  spec.cache_salt = std::move(request->cache_salt);
  return spec;
}

// What a row points at; an executor that points outside has a bug.
template <typename T>
std::span<const T> Slice(const std::vector<T>& values, int64_t begin, int64_t count) {
  CHECK(begin >= 0 && count >= 0 && begin + count <= static_cast<int64_t>(values.size()))
      << "values " << begin << " + " << count << " of " << values.size() << " in a step's result";
  return std::span<const T>(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(StepExecutor* executor, const Tokenizer* tokenizer, std::unique_ptr<Scheduler> scheduler)
      : executor_(executor), tokenizer_(tokenizer), scheduler_(std::move(scheduler)) {
    plans_.resize(static_cast<size_t>(executor->info().depth) + 1);
    stats_.kv_blocks_used.resize(executor->info().kv_groups.size());
    stats_.kv_blocks_cached.resize(executor->info().kv_groups.size());
  }

  Result<uint64_t> Submit(Request request, OutputCallback on_output) override;
  void Cancel(uint64_t request_id) override;
  bool HasWork() const override { return !live_.empty() || scheduler_->num_in_flight() > 0; }
  Status Step() override;
  const EngineStats& stats() const override { return stats_; }
  const StepResult& last_result() const override { return result_; }

 private:
  void EndCancelled();
  bool IsPipelineFull() const { return scheduler_->num_in_flight() == static_cast<int32_t>(plans_.size()); }
  Status Advance();
  void HandleFault(const Status& error);
  void Recover();
  void FailAll(const Status& error);
  void Fail(LiveRequest* request, const Status& error);
  void PublishRow(const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row);
  void Finish(LiveRequest* request, FinishReason reason, RequestOutput* output);
  void UpdateStats();
  void CountExperts();

  LiveRequest& LiveOf(const Sequence& seq) { return *live_.at(seq.id); }

  StepExecutor* const executor_;
  const Tokenizer* const tokenizer_;
  const std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<uint64_t, std::unique_ptr<LiveRequest>> live_;
  std::vector<uint64_t> cancelled_;
  uint64_t last_request_id_ = 0;
  std::vector<StepPlan> plans_;  // a ring, one more than the depth
  size_t next_plan_ = 0;
  StepResult result_;
  bool broken_ = false;          // the last attempt to recover failed
  bool just_recovered_ = false;  // and no step came to its end since
  EngineStats stats_;
};

Status EngineImpl::Step() {
  EndCancelled();
  if (broken_) Recover();
  StepPlan& plan = plans_[next_plan_];
  scheduler_->Plan(&plan);
  Status status;
  if (!plan.rows.empty()) {
    next_plan_ = (next_plan_ + 1) % plans_.size();
    status = executor_->Launch(plan);
  } else if (scheduler_->num_in_flight() == 0 && !live_.empty()) {
    return Internal("{} requests are live and none can run", live_.size());
  }
  // Something is collected when the pipeline is full, or when nothing else can be done.
  if (status.ok() && (plan.rows.empty() ? scheduler_->num_in_flight() > 0 : IsPipelineFull()))
    status = Advance();
  if (!status.ok()) HandleFault(status);
  UpdateStats();
  return Status::Ok();
}

// The oldest step in flight: collect, commit, publish.
Status EngineImpl::Advance() {
  RETURN_IF_ERROR(executor_->Collect(&result_));
  const StepPlan& plan =
      plans_[(next_plan_ + plans_.size() - static_cast<size_t>(scheduler_->num_in_flight())) % plans_.size()];
  const std::span<const ScheduledRow> rows = scheduler_->Commit(result_);
  ++stats_.steps;
  just_recovered_ = false;
  CountExperts();
  for (size_t i = 0; i < rows.size(); ++i) PublishRow(rows[i], plan.rows[i], result_.rows[i]);
  return Status::Ok();
}

Result<uint64_t> EngineImpl::Submit(Request request, OutputCallback on_output) {
  CHECK(on_output != nullptr);
  RETURN_IF_ERROR(CheckRequest(request, executor_->info().vocab_size, tokenizer_ != nullptr));
  std::vector<std::string> stop_strings = std::move(request.stop_strings);
  SequenceSpec spec = SpecOf(&request);
  RETURN_IF_ERROR(scheduler_->CanAdd(spec));
  const uint64_t id = ++last_request_id_;
  auto live = std::make_unique<LiveRequest>(id, std::move(spec), tokenizer_, std::move(stop_strings),
                                            std::move(on_output));
  scheduler_->Add(&live->seq);
  live_.emplace(id, std::move(live));
  return id;
}

void EngineImpl::Cancel(uint64_t request_id) {
  const auto found = live_.find(request_id);
  if (found == live_.end() || found->second->cancelled) return;
  found->second->cancelled = true;
  cancelled_.push_back(request_id);
}

void EngineImpl::EndCancelled() {
  // A callback may cancel more while this runs.
  for (size_t i = 0; i < cancelled_.size(); ++i) {
    const auto found = live_.find(cancelled_[i]);
    if (found == live_.end()) continue;  // it ended by itself
    RequestOutput output;
    found->second->stream.BeginStep();
    Finish(found->second.get(), FinishReason::kCancelled, &output);
  }
  cancelled_.clear();
}

void EngineImpl::HandleFault(const Status& error) {
  const std::span<Sequence* const> lost = scheduler_->Abandon();
  LOG_ERROR("a step failed, {} requests end with it: {}", lost.size(), error.ToString());
  for (Sequence* seq : lost) Fail(&LiveOf(*seq), error);
  // Twice in a row: it would go on like that for ever.
  if (just_recovered_) FailAll(error);
  Recover();
}

void EngineImpl::Recover() {
  const Status status = executor_->Recover();
  broken_ = !status.ok();
  just_recovered_ = status.ok();
  if (status.ok()) {
    ++stats_.recoveries;
    LOG_WARN("the executor recovered ({} times so far)", stats_.recoveries);
    return;
  }
  LOG_ERROR("the executor could not recover, {} requests end with it: {}", live_.size(), status.ToString());
  FailAll(status);
}

void EngineImpl::FailAll(const Status& error) {
  std::vector<uint64_t> ids;  // a callback may submit others
  for (const auto& [id, request] : live_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) Fail(live_.at(id).get(), error);
}

void EngineImpl::Fail(LiveRequest* request, const Status& error) {
  RequestOutput output;
  output.error = error;
  request->stream.BeginStep();
  Finish(request, FinishReason::kError, &output);
}

void EngineImpl::PublishRow(const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row) {
  if (scheduled.seq == nullptr) return;  // it ended while this step was in flight
  if (scheduled.num_new == 0) return;    // computed again after a preemption
  LiveRequest& request = LiveOf(*scheduled.seq);
  const Sequence& seq = request.seq;
  const int64_t vocab_size = executor_->info().vocab_size;
  RequestOutput output;
  request.stream.BeginStep();

  request.num_prompt_computed = std::min(scheduled.num_computed, seq.num_prompt);
  stats_.prompt_tokens +=
      request.num_prompt_computed - std::min(scheduled.num_computed - scheduled.num_new, seq.num_prompt);
  output.num_prompt_computed = request.num_prompt_computed;
  output.num_cached_tokens = std::max(0, seq.num_cached);
  if (planned.outputs & kOutputPromptLogprobs) {
    output.prompt_logprobs = Slice(result_.prompt_logprobs, row.prompt_logprob_begin, row.prompt_logprob_len);
  }
  if (planned.outputs & kOutputAllLogits) {
    output.logits = Slice(result_.logits, row.logits_begin, planned.q_len * vocab_size);
  }
  if (planned.outputs & kOutputMtp) {
    // The first position of a sequence completes no MTP slot.
    const int64_t num_slots = planned.q_len - (planned.num_computed == 0 ? 1 : 0);
    output.mtp_logits = Slice(result_.mtp_logits, row.mtp_logits_begin, num_slots * vocab_size);
  }

  std::span<const TopLogprob> top;
  if ((planned.outputs & kOutputSample) && scheduled.end != SequenceEnd::kBadToken) {
    ++stats_.generated_tokens;
    output.token_ids = std::span(&row.sampled_token, 1);
    if (planned.outputs & kOutputTopLogprobs) {
      top = Slice(result_.top_logprobs, row.top_begin, row.top_len);
      output.logprobs = std::span(&row.sampled_logprob, 1);
      output.top_logprobs = std::span(&top, 1);
    }
    if (scheduled.end != SequenceEnd::kStop) request.stream.Push(row.sampled_token);
  }

  if (scheduled.end == SequenceEnd::kBadToken) {
    output.error = Internal("request {}: the executor sampled token {} of a vocabulary of {}", seq.id,
                            row.sampled_token, vocab_size);
    Finish(&request, FinishReason::kError, &output);
  } else if (scheduled.end == SequenceEnd::kStop || request.stream.stopped()) {
    Finish(&request, FinishReason::kStop, &output);
  } else if (scheduled.end == SequenceEnd::kLength) {
    Finish(&request, FinishReason::kLength, &output);
  } else {
    output.request_id = seq.id;
    output.text = request.stream.text();
    request.on_output(output);
  }
}

// The last output of a request; afterwards it is gone.
void EngineImpl::Finish(LiveRequest* request, FinishReason reason, RequestOutput* output) {
  request->stream.Finish();
  // The end of the text may have completed a stop string.
  if (reason == FinishReason::kLength && request->stream.stopped()) reason = FinishReason::kStop;
  const uint64_t id = request->seq.id;
  output->request_id = id;
  output->num_prompt_computed = request->num_prompt_computed;
  output->num_cached_tokens = std::max(0, request->seq.num_cached);
  output->text = request->stream.text();
  output->finished = true;
  output->finish_reason = reason;
  scheduler_->Remove(&request->seq);
  request->on_output(*output);
  live_.erase(id);
}

void EngineImpl::CountExperts() {
  const auto num_experts = static_cast<size_t>(executor_->info().num_experts);
  if (num_experts == 0) return;
  const size_t num_layers = result_.expert_counts.size() / num_experts;
  stats_.moe_activation_ratio.resize(num_layers);
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const auto begin = result_.expert_counts.begin() + static_cast<int64_t>(layer * num_experts);
    const auto idle = std::count(begin, begin + static_cast<int64_t>(num_experts), 0);
    const double ratio = 1.0 - static_cast<double>(idle) / static_cast<double>(num_experts);
    double& mean = stats_.moe_activation_ratio[layer];
    mean += (ratio - mean) / static_cast<double>(stats_.steps);
  }
}

void EngineImpl::UpdateStats() {
  stats_.running = scheduler_->num_running();
  stats_.waiting = scheduler_->num_waiting();
  stats_.preemptions = scheduler_->num_preemptions();
  stats_.cache_query_tokens = scheduler_->num_cache_queries();
  stats_.cache_hit_tokens = scheduler_->num_cache_hits();
  stats_.cache_evictions = scheduler_->blocks().num_evictions();
  for (size_t g = 0; g < stats_.kv_blocks_used.size(); ++g) {
    const BlockPool& pool = scheduler_->blocks().pool(static_cast<int32_t>(g));
    stats_.kv_blocks_used[g] = pool.num_used();
    stats_.kv_blocks_cached[g] = pool.num_cached_free();
  }
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

Result<std::unique_ptr<Engine>> Engine::Create(StepExecutor* executor, const Tokenizer* tokenizer,
                                               EngineOptions options) {
  const ExecutorInfo& info = executor->info();
  SchedulerLimits limits{.max_seqs = info.max_seqs,
                         .max_step_tokens = info.max_step_tokens,
                         .max_context = info.max_context,
                         .vocab_size = info.vocab_size,
                         .max_logit_rows = info.max_logit_rows,
                         .depth = info.depth,
                         .kv_groups = info.kv_groups,
                         .kv_identity = info.kv_identity};
  SchedulerOptions scheduling{.max_batch_tokens = options.max_batch_tokens,
                              .prefill_chunk = options.prefill_chunk,
                              .enable_prefix_caching = options.enable_prefix_caching};
  ASSIGN_OR_RETURN(auto scheduler, Scheduler::Create(std::move(limits), scheduling, MakeFcfsPolicy()));
  return std::unique_ptr<Engine>(new EngineImpl(executor, tokenizer, std::move(scheduler)));
}

Status Engine::RunUntilIdle() {
  while (HasWork()) RETURN_IF_ERROR(Step());
  return Status::Ok();
}

}  // namespace cachalot
