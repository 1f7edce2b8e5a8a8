#include "server/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "server/request_log.h"
#include "server/server_metrics.h"

namespace cachalot {
namespace {

constexpr int64_t kRateWindowUs = 2'000'000;

// What the event held before gives its memory to what it holds then.
void FillEvent(const RequestOutput& output, int64_t now_us, TokenEvent* event) {
  event->time_us = now_us;
  event->token_ids.assign(output.token_ids.begin(), output.token_ids.end());
  event->text.assign(output.text);
  event->logprobs.assign(output.logprobs.begin(), output.logprobs.end());
  event->top_logprobs.clear();
  for (const auto& top : output.top_logprobs) event->top_logprobs.emplace_back(top.begin(), top.end());
  event->prompt_logprobs.assign(output.prompt_logprobs.begin(), output.prompt_logprobs.end());
  event->prompt_top_logprobs.assign(output.prompt_top_logprobs.begin(), output.prompt_top_logprobs.end());
  event->choice = output.choice;
  event->num_prompt_computed = output.num_prompt_computed;
  event->num_cached_tokens = output.num_cached_tokens;
  event->num_reasoning_tokens = output.num_reasoning_tokens;
  event->queue_us = output.queue_us;
  event->finished = output.finished;
  event->finish_reason = output.finish_reason;
  event->error = output.error;
}

}  // namespace

void EventSink::SendTokens(int32_t choice, std::span<const int32_t> token_ids, int64_t time_us) {
  TokenEvent event;
  event.choice = choice;
  event.time_us = time_us;
  event.token_ids.assign(token_ids.begin(), token_ids.end());
  Send(event);
}

int64_t SteadyNowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

EngineLoop::EngineLoop(Engine* engine, const ExecutorInfo& info, ServerMetrics* metrics, EngineLoopOptions options)
    : engine_(engine), info_(info), metrics_(metrics), options_(options) {
  snapshot_.kv_groups = info.kv_groups;
  snapshot_.kv_identity = info.kv_identity;
  snapshot_.max_seqs = info.max_seqs;
  progress_us_ = SteadyNowUs();
  ShowStats();
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() {
  Stop();
}

Status EngineLoop::Reserve(int32_t count) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (stop_) return Cancelled("the server is stopping");
  }
  const int32_t limit = options_.max_seqs + options_.max_waiting;
  int32_t live = live_.load();
  do {
    if (live + count > limit) {
      return Exhausted("{} sequences run or wait, and {} more would be over the limit of {}", live, count, limit);
    }
  } while (!live_.compare_exchange_weak(live, live + count));
  return Status::Ok();
}

uint64_t EngineLoop::Submit(Request request, std::unique_ptr<EventSink> sink) {
  const uint64_t ticket = ++last_ticket_;
  const int32_t num_choices = request.n;
  Status ended;
  {
    const std::lock_guard lock(mutex_);
    if (!stop_ && failure_.ok()) {
      commands_.push_back({ticket, std::move(request), std::move(sink), nullptr});
    } else {
      ended = failure_.ok() ? Cancelled("the server is stopping") : failure_;
    }
  }
  if (ended.ok()) {
    Wake();
    return ticket;
  }
  live_.fetch_sub(num_choices);
  for (int32_t i = 0; i < num_choices; ++i) {
    TokenEvent event;
    event.choice = i;
    event.time_us = SteadyNowUs();
    event.finished = true;
    event.finish_reason = FinishReason::kError;
    event.error = ended;
    sink->Send(event);
  }
  return ticket;
}

void EngineLoop::Cancel(uint64_t ticket) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    commands_.push_back({ticket, {}, nullptr, nullptr});
  }
  Wake();
}

bool EngineLoop::Post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || !failure_.ok()) return false;
    commands_.push_back({0, {}, nullptr, std::move(task)});
  }
  Wake();
  return true;
}

void EngineLoop::CancelAll() {
  {
    const std::lock_guard lock(mutex_);
    cancel_all_ = true;
  }
  Wake();
}

void EngineLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

// The loop waits here, or the engine for its tiers.
void EngineLoop::Wake() {
  wake_.notify_one();
  engine_->Wake();
}

Status EngineLoop::Health() const {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_.WithContext("the engine has failed");
  }
  if (!working_.load()) return Status::Ok();
  const int64_t age_us = SteadyNowUs() - progress_us_.load();
  if (age_us <= options_.stall_us) return Status::Ok();
  return DeadlineExceeded("no step has ended for {:.1f} s while {} requests wait (limit {:.1f} s)", age_us * 1e-6, live(),
                          options_.stall_us * 1e-6);
}

int32_t EngineLoop::RetryAfterSeconds() const {
  // As long as the queue in front needs when each of it takes about a second of a slot; 1 to 30.
  return std::clamp(live() / std::max(options_.max_seqs, 1), 1, 30);
}

EngineLoop::Snapshot EngineLoop::GetSnapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

bool EngineLoop::TakeCommands(std::vector<Command>* commands) {
  bool cancel_all = false;
  bool stop = false;
  {
    std::unique_lock lock(mutex_);
    if (!engine_->HasWork()) {
      working_ = false;
      wake_.wait(lock, [this] { return stop_ || cancel_all_ || !commands_.empty(); });
      progress_us_ = SteadyNowUs();
    }
    commands->swap(commands_);
    cancel_all = std::exchange(cancel_all_, false);
    stop = stop_;
  }
  for (auto& command : *commands) {
    if (command.task) {
      const std::function<void()> then = command.task(engine_);
      ShowStats();
      then();
    } else if (command.sink) {
      Accept(std::move(command));
    } else if (const auto found = tickets_.find(command.ticket); found != tickets_.end()) {
      engine_->Cancel(found->second->request_id);
    }
  }
  commands->clear();
  if (cancel_all || stop) {
    for (const auto& [id, ticket] : tickets_) engine_->Cancel(ticket->request_id);
  }
  return !stop;
}

void EngineLoop::Run() {
  thread_id_ = std::this_thread::get_id();
  std::vector<Command> commands;
  bool go_on = true;
  while (go_on) {
    go_on = TakeCommands(&commands);
    if (!engine_->HasWork()) {
      FlushEvents();
      continue;
    }
    working_ = true;
    const int64_t begin_us = SteadyNowUs();
    Status status;
    try {
      status = engine_->Step();
    } catch (const std::exception& exception) {  // out of memory
      status = Internal("a step failed: {}", exception.what());
    }
    if (!status.ok()) {
      LOG_ERROR("the engine cannot go on: {}", status.ToString());
      {
        const std::lock_guard lock(mutex_);
        failure_ = status;
      }
      FailAll(status);
      FlushEvents();
      return;
    }
    FlushEvents();
    AfterStep(begin_us, SteadyNowUs());
  }
  // The last step above has ended what was cancelled; what came in meanwhile is told here.
  FailAll(Cancelled("the server is stopping"));
  FlushEvents();
}

void EngineLoop::Accept(Command command) {
  const auto num_prompt = static_cast<uint64_t>(command.request.prompt_ids.size());
  auto owned = std::make_unique<Ticket>(command.ticket, std::move(command.sink), command.request.n);
  Ticket* ticket = owned.get();
  tickets_.emplace(command.ticket, std::move(owned));
  Result<uint64_t> id = engine_->Submit(std::move(command.request), [this, ticket](const RequestOutput& output) { Deliver(ticket, output); });
  if (!id.ok()) {
    Fail(ticket, id.status());
    return;
  }
  ticket->request_id = *id;
  metrics_->prompt_tokens->Add(num_prompt);
}

// With the last output of its last choice the ticket goes.
void EngineLoop::Deliver(Ticket* ticket, const RequestOutput& output) {
  LookAhead();
  order_.push_back({ticket, ticket->sink.get()});
  TicketChoice& choice = ticket->choice(output.choice);
  if (choice.finished) return;
  // What a step brings has come at one time.
  if (const uint64_t step = engine_->stats().steps; events_us_ == 0 || step != events_step_) {
    events_us_ = SteadyNowUs();
    events_step_ = step;
  }
  if (!output.token_ids.empty()) CountTokens(output.token_ids.size(), &choice);
  const bool only_tokens = !output.finished && output.text.empty() && output.num_prompt_computed == choice.num_prompt_computed &&
                           output.num_reasoning_tokens == 0 && output.logprobs.empty() && output.prompt_logprobs.empty();
  if (only_tokens) {
    ticket->sink->SendTokens(output.choice, output.token_ids, events_us_);
    return;
  }
  choice.num_prompt_computed = output.num_prompt_computed;
  if (!choice.begun && output.error.ok() && output.num_prompt_computed > 0) {
    choice.begun = true;
    metrics_->queue_seconds->Observe(static_cast<double>(output.queue_us) * 1e-6);
  }
  FillEvent(output, events_us_, &event_);
  if (!output.finished) {
    ticket->sink->Send(event_);
    return;
  }
  choice.finished = true;
  live_.fetch_sub(1);
  if (--ticket->num_left > 0) {
    ticket->sink->Send(event_);
    return;
  }
  const std::unique_ptr<EventSink> sink = std::move(ticket->sink);
  Forget(ticket);
  sink->Send(event_);
}

// Most streams wait equally long for their tokens: what is the same is counted together.
void EngineLoop::CountTokens(size_t count, TicketChoice* choice) {
  num_new_tokens_ += count;
  if (choice->last_token_us != 0) {
    // Tokens that come together share the time since the last.
    const double each = static_cast<double>(events_us_ - choice->last_token_us) * 1e-6 / static_cast<double>(count);
    if (each != gap_seconds_) CountGaps();
    gap_seconds_ = each;
    num_gaps_ += count;
  }
  choice->last_token_us = events_us_;
}

void EngineLoop::CountGaps() {
  if (num_gaps_ > 0) metrics_->inter_token_seconds->Observe(gap_seconds_, num_gaps_);
  num_gaps_ = 0;
}

void EngineLoop::FlushEvents() {
  last_order_.swap(order_);
  order_.clear();
  events_us_ = 0;
  CountGaps();
  if (num_new_tokens_ > 0) metrics_->generation_tokens->Add(std::exchange(num_new_tokens_, 0));
  if (options_.after_step) options_.after_step();
}

// Steps bring the same streams in the same order, and between two of them their state may have left the caches.
void EngineLoop::LookAhead() const {
  constexpr size_t kAhead = 12;
  const size_t end = std::min(order_.size() + kAhead + 1, last_order_.size());
  for (size_t i = order_.empty() ? 0 : order_.size() + kAhead; i < end; ++i) {
    __builtin_prefetch(last_order_[i].ticket, 1);
    __builtin_prefetch(last_order_[i].sink, 1);
  }
}

void EngineLoop::Forget(Ticket* ticket) {
  for (std::vector<Turn>* turns : {&last_order_, &order_}) {
    for (Turn& turn : *turns) {
      if (turn.ticket == ticket) turn = {};
    }
  }
  tickets_.erase(ticket->id);
}

// All its choices that have not ended end with the error.
void EngineLoop::Fail(Ticket* ticket, const Status& error) {
  for (int32_t i = 0, num_choices = ticket->num_choices(), left = ticket->num_left; i < num_choices && left > 0; ++i) {
    if (ticket->choice(i).finished) continue;
    --left;
    RequestOutput output;
    output.choice = i;
    output.finished = true;
    output.finish_reason = FinishReason::kError;
    output.error = error;
    Deliver(ticket, output);
  }
}

void EngineLoop::FailAll(const Status& error) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (auto& command : commands) {
    if (!command.sink) continue;
    tickets_.emplace(command.ticket, std::make_unique<Ticket>(command.ticket, std::move(command.sink), command.request.n));
  }
  std::vector<Ticket*> left;
  for (const auto& [id, ticket] : tickets_) left.push_back(ticket.get());
  std::sort(left.begin(), left.end(), [](const Ticket* a, const Ticket* b) { return a->id < b->id; });
  for (Ticket* ticket : left) Fail(ticket, error);
  working_ = false;
}

void EngineLoop::AfterStep(int64_t begin_us, int64_t end_us) {
  progress_us_ = end_us;
  const EngineStats& stats = engine_->stats();
  if (end_us - rate_begin_us_ >= kRateWindowUs) {
    if (rate_begin_us_ != 0) {
      rate_ = static_cast<double>(stats.generated_tokens - rate_begin_tokens_) / (static_cast<double>(end_us - rate_begin_us_) * 1e-6);
    }
    rate_begin_us_ = end_us;
    rate_begin_tokens_ = stats.generated_tokens;
  }
  if (live() > 0 || stats.steps != num_steps_) metrics_->step_seconds->Observe(static_cast<double>(end_us - begin_us) * 1e-6);
  if (stats.steps != num_steps_) {  // nothing has been collected while the pipeline fills
    num_steps_ = stats.steps;
    if (options_.step_log != nullptr) LogStep(begin_us, end_us);
    metrics_->step_wait_seconds->Observe(static_cast<double>(stats.step_device_us) * 1e-6);
    metrics_->step_launch_seconds->Observe(static_cast<double>(stats.step_launch_us) * 1e-6);
    metrics_->step_host_seconds->Observe(static_cast<double>(std::max<int64_t>(0, end_us - begin_us - stats.step_device_us)) * 1e-6);
    metrics_->step_tokens->Observe(stats.step_prompt_tokens + stats.step_decode_tokens);
    metrics_->step_prompt_tokens->Observe(stats.step_prompt_tokens);
    metrics_->step_decode_tokens->Observe(stats.step_decode_tokens);
  }
  metrics_->steps->AdvanceTo(stats.steps);
  metrics_->preemptions->AdvanceTo(static_cast<uint64_t>(stats.preemptions));
  metrics_->prefix_queries->AdvanceTo(static_cast<uint64_t>(stats.cache_query_tokens));
  metrics_->prefix_hits->AdvanceTo(static_cast<uint64_t>(stats.cache_hit_tokens));
  metrics_->cache_evictions->AdvanceTo(static_cast<uint64_t>(stats.cache_evictions));
  metrics_->draft_rows->AdvanceTo(static_cast<uint64_t>(stats.draft_rows));
  metrics_->draft_tokens->AdvanceTo(static_cast<uint64_t>(stats.draft_tokens));
  metrics_->accepted_tokens->AdvanceTo(static_cast<uint64_t>(stats.accepted_tokens));
  metrics_->AddDraftPositions(stats.accepted_by_position.size());
  for (size_t i = 0; i < stats.accepted_by_position.size(); ++i) {
    metrics_->accepted_by_position[i]->AdvanceTo(static_cast<uint64_t>(stats.accepted_by_position[i]));
  }
  if (stats.sampling_rows > 0) {
    metrics_->tokens_per_step->Set(static_cast<double>(stats.sampled_tokens) / static_cast<double>(stats.sampling_rows));
  }
  metrics_->cached_tokens->AdvanceTo(static_cast<uint64_t>(stats.cache_hit_tokens));
  ShowStats();
}

// Of the step that was collected; what the launch took is of the one behind it, where they overlap.
void EngineLoop::LogStep(int64_t begin_us, int64_t end_us) const {
  const EngineStats& stats = engine_->stats();
  options_.step_log->Write(fmt::format(
      R"({{"step":{},"end_us":{},"us":{},"prompt_tokens":{},"decode_tokens":{},"running":{},"waiting":{},"launch_us":{},"wait_us":{},"prompt_budget":{},"one_off":{}}})",
      stats.steps, end_us, end_us - begin_us, stats.step_prompt_tokens, stats.step_decode_tokens, stats.running, stats.waiting,
      stats.step_launch_us, stats.step_device_us, stats.prompt_budget, engine_->last_result().one_off));
}

void EngineLoop::ShowStats() {
  const EngineStats& stats = engine_->stats();
  metrics_->running->Set(stats.running);
  metrics_->waiting->Set(stats.waiting);
  double usage = 0.0;
  for (size_t g = 0; g < stats.kv_blocks_used.size() && g < info_.kv_groups.size(); ++g) {
    metrics_->kv_blocks_used[g]->Set(stats.kv_blocks_used[g]);
    if (g < stats.kv_blocks_cached.size()) metrics_->kv_blocks_cached[g]->Set(stats.kv_blocks_cached[g]);
    if (g < stats.kv_blocks_pinned.size()) metrics_->kv_blocks_pinned[g]->Set(stats.kv_blocks_pinned[g]);
    usage = std::max(usage, static_cast<double>(stats.kv_blocks_used[g]) / std::max(info_.kv_groups[g].num_blocks, 1));
  }
  metrics_->kv_usage->Set(usage);
  metrics_->ShowTiers(stats.kv_host, stats.kv_disk);
  const std::lock_guard lock(mutex_);
  snapshot_.stats = stats;
  snapshot_.tokens_per_second = stats.running > 0 ? rate_ : 0.0;
}

}  // namespace cachalot
