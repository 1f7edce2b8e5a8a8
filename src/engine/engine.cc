// The one Engine there is. EngineImpl::Step is the loop; everything below it is bookkeeping around callbacks.
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "engine/engine_stats.h"
#include "engine/kv_session.h"
#include "engine/kv_tier.h"
#include "engine/live_request.h"
#include "engine/request_check.h"
#include "kv/policy/eviction_policies.h"
#include "sched/policy/policies.h"
#include "sched/scheduler.h"

namespace cachalot {
namespace {

// A token has one bias.
void Forbid(int32_t token_id, std::vector<TokenBias>* biases) {
  const auto found = std::find_if(biases->begin(), biases->end(), [&](const TokenBias& bias) { return bias.token_id == token_id; });
  TokenBias* bias = found == biases->end() ? &biases->emplace_back() : &*found;
  *bias = {token_id, -std::numeric_limits<float>::infinity()};
}

SequenceSpec SpecOf(Request* request) {
  SequenceSpec spec;
  spec.prompt_ids = std::move(request->prompt_ids);
  spec.sampling = std::move(request->sampling);
  spec.max_tokens = request->max_tokens;
  if (!request->ignore_eos) spec.stop_ids = std::move(request->stop_ids);
  if (request->min_tokens > 0) {
    spec.sampling.suppressed_ids = spec.stop_ids;
    spec.sampling.suppressed_until = static_cast<int64_t>(spec.prompt_ids.size()) + request->min_tokens;
  }
  for (const auto& word : request->bad_words) {
    if (word.size() == 1) Forbid(word[0], &spec.sampling.logit_bias);
  }
  spec.num_top_logprobs = request->num_top_logprobs;
  spec.prompt_logprobs = request->prompt_logprobs;
  if (spec.prompt_logprobs) spec.num_prompt_top_logprobs = request->num_prompt_top_logprobs;
  spec.all_logits = request->all_logits;
  spec.mtp_logits = request->mtp_logits;
  spec.priority = request->priority;
  spec.cache_salt = std::move(request->cache_salt);
  spec.keep = {.priority = request->kv_priority, .ttl_us = request->kv_ttl_us, .reuse_class = request->kv_class};
  spec.tenant = std::move(request->tenant);
  spec.tenant_weight = request->tenant_weight;
  return spec;
}

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr size_t kAhead = 8;  // rows

// The scheduler has had the sequence in its hands; what else belongs to the choice lay still while the device computed.
void Prefetch(const Sequence* seq) {
  if (seq == nullptr) return;
  const auto* choice = static_cast<const Choice*>(seq);
  __builtin_prefetch(choice->request);
  if (choice->plain) return;
  const char* bytes = reinterpret_cast<const char*>(choice);
  for (size_t at = sizeof(Sequence); at < sizeof(Choice); at += 64) __builtin_prefetch(bytes + at);
}

// What a row points at; an executor that points outside has a bug.
template <typename T>
std::span<const T> Slice(const std::vector<T>& values, int64_t begin, int64_t count) {
  CHECK(begin >= 0 && count >= 0 && begin + count <= static_cast<int64_t>(values.size()))
      << "values " << begin << " + " << count << " of " << values.size() << " in a step's result";
  return std::span<const T>(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

const Clock* ClockOf(const EngineOptions& options) {
  static const SteadyClock machine;
  return options.clock != nullptr ? options.clock : &machine;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(StepExecutor* executor, const Tokenizer* tokenizer, std::unique_ptr<Scheduler> scheduler,
             std::unique_ptr<KvTier> tier, const EngineOptions& options)
      : executor_(executor),
        tokenizer_(tokenizer),
        scheduler_(std::move(scheduler)),
        tier_(std::move(tier)),
        clock_(ClockOf(options)),
        max_waiting_(options.max_waiting) {
    plans_.resize(static_cast<size_t>(executor->info().depth) + 1);
    tokens_.reserve(1 + kMaxDrafts);
    logprobs_.reserve(1 + kMaxDrafts);
    top_logprobs_.reserve(1 + kMaxDrafts);
    stats_.kv_blocks_used.resize(executor->info().kv_groups.size());
    stats_.kv_blocks_pinned.resize(executor->info().kv_groups.size());
    stats_.kv_blocks_cached.resize(executor->info().kv_groups.size());
    stats_.kv_unused_tokens.resize(executor->info().kv_groups.size());
    ShowTiers();
    if (options.drafts != DraftKind::kNone) stats_.accepted_by_position.resize(static_cast<size_t>(options.max_drafts));
  }

  Result<uint64_t> Submit(Request request, OutputCallback on_output) override;
  void Cancel(uint64_t request_id) override;
  int32_t PinPrefix(std::span<const int32_t> prompt_ids, const std::string& cache_salt, bool pinned) override {
    const int32_t num_tokens = scheduler_->PinPrefix(prompt_ids, cache_salt, pinned);
    ShowStats();
    return num_tokens;
  }
  void FlushCache() override {
    scheduler_->FlushCache();
    if (tier_ != nullptr) tier_->Flush();
    ShowStats();
  }
  Status SaveSession(const std::string& path, const std::string& note, std::span<const int32_t> tokens) override {
    return SaveKvSession(path, note, tokens, executor_, *scheduler_);
  }
  Result<LoadedSession> LoadSession(const std::string& path) override {
    auto loaded = LoadKvSession(path, executor_, scheduler_.get());
    ShowStats();
    return loaded;
  }
  bool HasWork() const override { return !live_.empty() || scheduler_->num_in_flight() > 0 || TierHasWork(); }
  void Wake() override {
    if (tier_ != nullptr) tier_->Wake();
  }
  Status Step() override;
  const EngineStats& stats() const override { return stats_; }
  const StepResult& last_result() const override { return result_; }

 private:
  void ShowStats();
  void ShowTiers();
  bool TierHasWork() const { return tier_ != nullptr && !broken_ && tier_->HasWork(); }
  void EndCancelled();
  void EndExpired();
  bool IsPipelineFull() const { return scheduler_->num_in_flight() == static_cast<int32_t>(plans_.size()); }
  Status Advance();
  void HandleFault(const Status& error);
  void Recover();
  void FailAll(const Status& error);
  void ForceAtStart();
  void Force(Choice* choice, int32_t num_kept);
  void Retake(Choice* choice, int32_t num_kept);
  void PublishRow(const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row);
  bool PublishPlain(Choice* choice, const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row);
  void PublishTokens(const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row, RequestOutput* output);
  void End(LiveRequest* request, FinishReason reason, const Status& error);
  void End(Choice* choice, FinishReason reason, const Status& error);
  void Finish(Choice* choice, FinishReason reason, RequestOutput* output);
  void Fill(const Choice& choice, RequestOutput* output) const;

  StepExecutor* const executor_;
  const Tokenizer* const tokenizer_;
  const std::unique_ptr<Scheduler> scheduler_;
  const std::unique_ptr<KvTier> tier_;  // null: none
  const Clock* const clock_;
  const int32_t max_waiting_;
  std::unordered_map<uint64_t, std::unique_ptr<LiveRequest>> live_;
  std::vector<uint64_t> cancelled_;
  std::vector<uint64_t> forced_;       // requests whose answers begin with forced tokens
  std::vector<int32_t> forced_tokens_;
  std::vector<float> zeros_;           // log-probabilities of forced tokens,
  std::vector<std::span<const TopLogprob>> no_tops_;  // which have no others beside them
  int64_t next_deadline_us_ = kNever;  // of a live request, or earlier
  uint64_t last_id_ = 0;               // of a request or a sequence
  std::vector<StepPlan> plans_;        // a ring, one more than the depth
  size_t next_plan_ = 0;
  StepResult result_;
  // Of the row being published.
  std::vector<int32_t> tokens_;
  std::vector<float> logprobs_;
  std::vector<std::span<const TopLogprob>> top_logprobs_;
  bool broken_ = false;          // the last attempt to recover failed
  bool just_recovered_ = false;  // and no step came to its end since
  EngineStats stats_;
};

Status EngineImpl::Step() {
  EndCancelled();
  EndExpired();
  ForceAtStart();
  if (broken_) Recover();
  Status status;
  if (scheduler_->AwaitsTokens()) status = Advance();
  if (status.ok() && tier_ != nullptr && !broken_) status = tier_->Seek();
  if (!status.ok()) {
    HandleFault(status);
    ShowStats();
    return Status::Ok();
  }
  StepPlan& plan = plans_[next_plan_];
  scheduler_->Plan(&plan, clock_->NowUs());
  if (!plan.empty()) {
    next_plan_ = (next_plan_ + 1) % plans_.size();
    const auto start = std::chrono::steady_clock::now();
    status = executor_->Launch(plan);
    stats_.step_launch_us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  } else if (scheduler_->num_in_flight() == 0 && TierHasWork() && (live_.empty() || tier_->IsAwaited())) {
    tier_->Wait();
  } else if (scheduler_->num_in_flight() == 0 && !live_.empty()) {
    return Internal("{} requests are live and none can run", live_.size());
  }
  // Something is collected when the pipeline is full, or when nothing else can be done.
  if (status.ok() && (plan.empty() ? scheduler_->num_in_flight() > 0 : IsPipelineFull())) status = Advance();
  if (!status.ok()) HandleFault(status);
  ShowStats();
  return Status::Ok();
}

void EngineImpl::ShowStats() {
  ReadStats(*scheduler_, &stats_);
  ShowTiers();
}

void EngineImpl::ShowTiers() {
  if (tier_ == nullptr) return;
  stats_.kv_host = tier_->host_stats();
  stats_.kv_disk = tier_->disk_stats();
}

// The oldest step in flight: collect, commit, publish.
Status EngineImpl::Advance() {
  RETURN_IF_ERROR(executor_->Collect(&result_));
  const StepPlan& plan =
      plans_[(next_plan_ + plans_.size() - static_cast<size_t>(scheduler_->num_in_flight())) % plans_.size()];
  const SchedulerCounters before = scheduler_->counters();
  const std::span<const ScheduledRow> rows = scheduler_->Commit(result_, clock_->NowUs());
  ++stats_.steps;
  stats_.step_prompt_tokens =
      static_cast<int32_t>(scheduler_->counters().prompt_tokens - before.prompt_tokens);
  stats_.step_decode_tokens =
      static_cast<int32_t>(scheduler_->counters().decode_tokens - before.decode_tokens);
  stats_.step_device_us = result_.device_us;
  just_recovered_ = false;
  CountExperts(result_, executor_->info().num_experts, &stats_);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) Prefetch(rows[i + kAhead].seq);
    PublishRow(rows[i], plan.rows[i], result_.rows[i]);
  }
  if (tier_ != nullptr && !result_.one_off) tier_->ObserveStep(stats_.step_prompt_tokens, stats_.step_decode_tokens, stats_.step_device_us);
  return Status::Ok();
}

Result<uint64_t> EngineImpl::Submit(Request request, OutputCallback on_output) {
  CHECK(on_output != nullptr);
  RETURN_IF_ERROR(CheckRequest(request, executor_->info(), tokenizer_ != nullptr));
  if (max_waiting_ > 0 && scheduler_->num_waiting() >= max_waiting_) {
    return Exhausted("{} requests wait already, and at most {} may", scheduler_->num_waiting(), max_waiting_);
  }
  const int64_t now_us = clock_->NowUs();
  SequenceSpec spec = SpecOf(&request);
  spec.deadline_us = request.deadline_us > 0 && request.deadline_us < kNever - now_us
                         ? now_us + request.deadline_us
                         : kNever;
  RETURN_IF_ERROR(scheduler_->CanAdd(spec));
  std::erase_if(request.bad_words, [](const auto& word) { return word.size() < 2; });
  const BadWords bad_words(std::move(request.bad_words));
  auto live = std::make_unique<LiveRequest>();
  live->id = last_id_ + 1;
  live->on_output = std::move(on_output);
  live->deadline_us = spec.deadline_us;
  next_deadline_us_ = std::min(next_deadline_us_, spec.deadline_us);
  for (int32_t i = 0; i < request.n; ++i) {
    SequenceSpec own = spec;
    own.sampling.seed += static_cast<uint64_t>(i);
    // What the prompt brings is the same for all: the first choice reports it.
    if (i > 0) own.prompt_logprobs = false;
    Choice* first = i > 0 && !own.wants_logits() ? live->choices.front().get() : nullptr;
    live->choices.push_back(
        std::make_unique<Choice>(++last_id_, std::move(own), live.get(), i, MakeStream(request, request.text ? tokenizer_ : nullptr)));
    live->choices.back()->bad_words = bad_words;
    live->choices.back()->plain = !request.text && bad_words.empty();
    scheduler_->Add(live->choices.back().get(), now_us, first);
  }
  live->num_live = request.n;
  const uint64_t id = live->id;
  if (!live->choices.front()->stream.forced().empty()) forced_.push_back(id);
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
    if (found != live_.end())
      End(found->second.get(), FinishReason::kCancelled, Status::Ok());  // else it ended by itself
  }
  cancelled_.clear();
}

void EngineImpl::EndExpired() {
  if (next_deadline_us_ == kNever) return;
  const int64_t now_us = clock_->NowUs();
  if (now_us < next_deadline_us_) return;
  std::vector<LiveRequest*> expired;
  next_deadline_us_ = kNever;
  for (const auto& [id, request] : live_) {
    if (request->deadline_us <= now_us)
      expired.push_back(request.get());
    else
      next_deadline_us_ = std::min(next_deadline_us_, request->deadline_us);
  }
  std::sort(expired.begin(), expired.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  for (LiveRequest* request : expired) {
    End(request, FinishReason::kError,
        DeadlineExceeded("request {} did not end before its deadline", request->id));
  }
}

void EngineImpl::HandleFault(const Status& error) {
  const std::span<Sequence* const> lost = scheduler_->Abandon();
  if (tier_ != nullptr) tier_->Abandon();
  LOG_ERROR("a step failed, {} requests end with it: {}", lost.size(), error.ToString());
  for (Sequence* seq : lost) End(static_cast<Choice*>(seq), FinishReason::kError, error);
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
  for (const uint64_t id : ids) End(live_.at(id).get(), FinishReason::kError, error);
}

void EngineImpl::PublishRow(const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row) {
  if (scheduled.seq == nullptr) return;  // it ended while this step was in flight
  if (scheduled.num_new == 0) return;    // computed again after a preemption
  Choice& choice = *static_cast<Choice*>(scheduled.seq);
  if (choice.plain && PublishPlain(&choice, scheduled, planned, row)) return;
  const int64_t vocab_size = executor_->info().vocab_size;
  RequestOutput output;
  choice.stream.BeginStep();

  choice.queue_us = choice.admitted_us - choice.added_us;
  choice.num_prompt_computed = std::min(scheduled.num_computed, choice.num_prompt);
  stats_.prompt_tokens +=
      choice.num_prompt_computed - std::min(scheduled.num_computed - scheduled.num_new, choice.num_prompt);
  if (planned.outputs & kOutputPromptLogprobs) {
    output.prompt_logprobs = Slice(result_.prompt_logprobs, row.prompt_logprob_begin, row.prompt_logprob_len);
    output.prompt_top_logprobs = Slice(result_.prompt_top_logprobs, row.prompt_top_begin,
                                       int64_t{row.prompt_logprob_len} * planned.num_prompt_top_logprobs);
  }
  if (planned.outputs & kOutputAllLogits) {
    output.logits = Slice(result_.logits, row.logits_begin, planned.q_len * vocab_size);
  }
  if (planned.outputs & kOutputMtp) {
    // The first position of a sequence completes no MTP slot.
    const int64_t num_slots = planned.q_len - (planned.num_computed == 0 ? 1 : 0);
    output.mtp_logits = Slice(result_.mtp_logits, row.mtp_logits_begin, num_slots * vocab_size);
  }

  PublishTokens(scheduled, planned, row, &output);
  const int32_t num_dropped = scheduled.num_sampled - static_cast<int32_t>(tokens_.size());
  if (num_dropped > 0 && !choice.stream.stopped()) {
    // Something must stand in front of these, or in place of the first: whatever end they brought is none.
    const int32_t num_kept = choice.num_tokens() - num_dropped;
    if (!tokens_.empty()) {
      Fill(choice, &output);
      choice.request->on_output(output);
    }
    if (choice.stream.forced().empty() && choice.retaken_at == num_kept) return Retake(&choice, num_kept);
    Force(&choice, num_kept);
    return;
  }

  if (scheduled.end == SequenceEnd::kBadToken && !choice.stream.stopped()) {
    output.error = Internal("request {}: the executor sampled token {} of a vocabulary of {}",
                            choice.request->id, row.sampled_token, vocab_size);
    Finish(&choice, FinishReason::kError, &output);
  } else if (scheduled.end == SequenceEnd::kStop || choice.stream.stopped()) {
    Finish(&choice, FinishReason::kStop, &output);
  } else if (scheduled.end == SequenceEnd::kLength) {
    Finish(&choice, FinishReason::kLength, &output);
  } else {
    Fill(choice, &output);
    choice.request->on_output(output);
    if (choice.retaken_at >= 0 && choice.num_tokens() > choice.retaken_at) {
      choice.retaken_at = -1;
      // The slot was set up for that one position.
      const bool forbids_stops = choice.spec.sampling.suppressed_until > choice.num_tokens();
      if (forbids_stops && choice.stream.forced().empty()) return scheduler_->Continue(&choice, choice.num_tokens(), {});
    }
    Force(&choice, choice.num_tokens());
  }
}

// The usual row: one more token of an answer that goes on, and nothing hangs on it. It stays in the cache lines that the
// scheduler needs too.
bool EngineImpl::PublishPlain(Choice* choice, const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row) {
  if (planned.outputs != kOutputSample || scheduled.end != SequenceEnd::kNone || scheduled.num_sampled != 1 || row.accept_len != 0 ||
      choice->num_prompt_computed != choice->num_prompt) {
    return false;
  }
  ++stats_.generated_tokens;
  RequestOutput output;
  output.request_id = choice->request->id;
  output.choice = choice->index;
  output.token_ids = std::span(&row.sampled_token, 1);
  output.num_prompt_computed = choice->num_prompt_computed;
  output.num_cached_tokens = choice->num_cached;
  output.queue_us = choice->queue_us;
  choice->request->on_output(output);
  return true;
}

// The position behind the first num_kept tokens is drawn again, without what would complete a bad word there: the token that
// it would have got if those had never been among the candidates.
void EngineImpl::Retake(Choice* choice, int32_t num_kept) {
  const std::vector<int32_t> banned = choice->bad_words.Banned(choice->answer(num_kept));
  scheduler_->Continue(choice, num_kept, {}, banned);
  ++stats_.retaken_tokens;
}

void EngineImpl::ForceAtStart() {
  for (const uint64_t id : forced_) {
    const auto found = live_.find(id);
    if (found == live_.end()) continue;
    LiveRequest* request = found->second.get();
    for (size_t i = 0, left = static_cast<size_t>(request->num_live); left > 0; ++i) {
      if (request->choices[i] == nullptr) continue;
      --left;
      Force(request->choices[i].get(), request->choices[i]->num_tokens());  // with the last one the request goes
    }
  }
  forced_.clear();
}

// What must stand next in an answer, behind its first num_kept tokens, is put there as if it had been sampled, in front of
// whatever rows in flight sample. Its rows begin anew behind what the prefix cache has.
void EngineImpl::Force(Choice* choice, int32_t num_kept) {
  while (!choice->stream.forced().empty()) {
    // Pushing them changes the stream.
    forced_tokens_.assign(choice->stream.forced().begin(), choice->stream.forced().end());
    std::span<const int32_t> ids = forced_tokens_;
    const auto room = static_cast<size_t>(std::max(0, choice->max_total - num_kept));
    ids = ids.first(std::min(ids.size(), room));
    if (ids.empty()) return;
    choice->stream.BeginStep();
    ids = ids.first(choice->stream.PushForced(ids));
    scheduler_->Continue(choice, num_kept, ids);
    num_kept = choice->num_tokens();
    stats_.generated_tokens += static_cast<int64_t>(ids.size());
    RequestOutput output;
    output.token_ids = ids;
    if (choice->spec.num_top_logprobs >= 0) {
      zeros_.assign(ids.size(), 0.0f);
      output.logprobs = zeros_;
      no_tops_.resize(ids.size());
      output.top_logprobs = no_tops_;
    }
    if (choice->stream.stopped()) return Finish(choice, FinishReason::kStop, &output);
    if (choice->num_tokens() == choice->max_total) return Finish(choice, FinishReason::kLength, &output);
    Fill(*choice, &output);
    choice->request->on_output(output);
  }
}

// All that the row brought, up to the token that completes a stop string, or behind which others must stand; and none from
// the one on that completes a bad word, or that may not stand there.
void EngineImpl::PublishTokens(const ScheduledRow& scheduled, const PlanRow& planned, const ResultRow& row,
                               RequestOutput* output) {
  Choice& choice = *static_cast<Choice*>(scheduled.seq);
  const auto accepted = Slice(result_.accepted, row.accept_begin, row.accept_len);
  tokens_.clear();
  logprobs_.clear();
  top_logprobs_.clear();
  const int32_t begin = choice.num_tokens() - scheduled.num_sampled;
  const auto ends = [&choice] { return choice.stream.stopped() || !choice.stream.forced().empty(); };
  for (int32_t i = 0; i < scheduled.num_sampled && (i == 0 || !ends()); ++i) {
    const AcceptedToken token = i < row.accept_len
                                    ? accepted[static_cast<size_t>(i)]
                                    : AcceptedToken{row.sampled_token, row.sampled_logprob, row.top_begin, row.top_len};
    if (choice.retaken_at != begin + i && choice.bad_words.Completed(choice.answer(begin + i + 1))) {
      choice.retaken_at = begin + i;
      break;
    }
    const bool is_stop_id = scheduled.end == SequenceEnd::kStop && i + 1 == scheduled.num_sampled;
    if (!choice.stream.Take(token.token_id, is_stop_id)) break;
    tokens_.push_back(token.token_id);
    if (planned.outputs & kOutputTopLogprobs) {
      logprobs_.push_back(token.logprob);
      top_logprobs_.push_back(Slice(result_.top_logprobs, token.top_begin, token.top_len));
    }
  }
  stats_.generated_tokens += static_cast<int64_t>(tokens_.size());
  output->token_ids = tokens_;
  output->logprobs = logprobs_;
  output->top_logprobs = top_logprobs_;
}

void EngineImpl::End(LiveRequest* request, FinishReason reason, const Status& error) {
  for (size_t i = 0, left = static_cast<size_t>(request->num_live); left > 0; ++i) {
    if (request->choices[i] == nullptr) continue;
    --left;
    End(request->choices[i].get(), reason, error);  // with the last one the request goes
  }
}

void EngineImpl::End(Choice* choice, FinishReason reason, const Status& error) {
  RequestOutput output;
  output.error = error;
  choice->stream.BeginStep();
  Finish(choice, reason, &output);
}

// The last output of a choice; afterwards it is gone, and with the last of them the request.
void EngineImpl::Finish(Choice* choice, FinishReason reason, RequestOutput* output) {
  choice->stream.Finish();
  // The end of the text may have completed a stop string.
  if (reason == FinishReason::kLength && choice->stream.stopped()) reason = FinishReason::kStop;
  Fill(*choice, output);
  output->finished = true;
  output->finish_reason = reason;
  if (tier_ != nullptr) tier_->Leave(choice);
  scheduler_->Remove(choice);
  LiveRequest* request = choice->request;
  request->on_output(*output);
  request->choices[static_cast<size_t>(choice->index)].reset();
  if (--request->num_live == 0) live_.erase(request->id);
}

// What every output says.
void EngineImpl::Fill(const Choice& choice, RequestOutput* output) const {
  output->request_id = choice.request->id;
  output->choice = choice.index;
  output->text = choice.stream.text();
  output->num_prompt_computed = choice.num_prompt_computed;
  output->num_reasoning_tokens = choice.stream.guide().num_reasoning_tokens();
  output->num_cached_tokens = std::max(0, choice.num_cached);
  if (choice.num_cached >= 0) output->queue_us = choice.admitted_us - choice.added_us;
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

SchedulerLimits LimitsOf(const ExecutorInfo& info) {
  return {.max_seqs = info.max_seqs,
          .max_step_tokens = info.max_step_tokens,
          .max_context = info.max_context,
          .vocab_size = info.vocab_size,
          .max_logit_rows = info.max_logit_rows,
          .depth = info.depth,
          .kv_groups = info.kv_groups,
          .kv_identity = info.kv_identity,
          .device_drafts = info.device_drafts,
          .draft_context = info.draft_context,
          .draft_cost = info.draft_cost,
          .accepts_by_lot = info.accepts_by_lot};
}

Result<std::unique_ptr<Engine>> Engine::Create(StepExecutor* executor, const Tokenizer* tokenizer,
                                               EngineOptions options) {
  SchedulerLimits limits = LimitsOf(executor->info());
  if (!(options.itl_target_ms >= 0 && options.itl_target_ms <= 1e6)) {
    return InvalidArgument("itl_target_ms is {}: must be in 0..1000000 (0: off)", options.itl_target_ms);
  }
  if (options.itl_ratio != 0 && !(options.itl_ratio >= 1 && options.itl_ratio <= 1000)) {
    return InvalidArgument("itl_ratio is {}: must be in 1..1000 (0: off)", options.itl_ratio);
  }
  if (options.max_waiting < 0) {
    return InvalidArgument("max_waiting is {}: must be at least 0 (0: any number)", options.max_waiting);
  }
  SchedulerOptions scheduling;
  scheduling.max_batch_tokens = options.max_batch_tokens;
  scheduling.prefill_chunk = options.prefill_chunk;
  scheduling.itl_target_us = static_cast<int32_t>(options.itl_target_ms * 1000);
  scheduling.itl_percent = static_cast<int32_t>(options.itl_ratio * 100);
  scheduling.enable_prefix_caching = options.enable_prefix_caching;
  scheduling.kv_policy = options.kv_policy;
  scheduling.lru_k = options.lru_k;
  scheduling.kv_tenant_floor = options.kv_tenant_floor;
  scheduling.preemption = options.preemption;
  scheduling.drafts = options.drafts;
  scheduling.max_drafts = options.max_drafts;
  scheduling.adaptive_drafts = options.adaptive_drafts;
  ASSIGN_OR_RETURN(auto policy, MakeSchedulingPolicy(options.policy));
  ASSIGN_OR_RETURN(auto scheduler, Scheduler::Create(std::move(limits), scheduling, std::move(policy)));
  scheduler->RecordTo(options.trace);
  std::unique_ptr<KvTier> tier;
  if (!options.kv_disk_dir.empty() || options.kv_host_bytes > 0) {
    if (!options.enable_prefix_caching) return InvalidArgument("a KV cache on disk or in the host's memory, and no prefix caching");
    KvTierOptions below{.host_bytes = options.kv_host_bytes, .disk = {.dir = options.kv_disk_dir, .max_bytes = options.kv_disk_bytes}};
    ASSIGN_OR_RETURN(below.make_policy, FindEvictionPolicy(options.kv_policy, options.lru_k));
    ASSIGN_OR_RETURN(tier, KvTier::Open(below, executor, scheduler.get(), ClockOf(options)));
  }
  return std::unique_ptr<Engine>(new EngineImpl(executor, tokenizer, std::move(scheduler), std::move(tier), options));
}

Status Engine::RunUntilIdle() {
  while (HasWork()) RETURN_IF_ERROR(Step());
  return Status::Ok();
}

}  // namespace cachalot
