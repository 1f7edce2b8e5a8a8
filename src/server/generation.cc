#include "server/generation.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "engine/request_check.h"
#include "engine/request_stream.h"
#include "server/api/json_text.h"
#include "server/long_work.h"
#include "server/record.h"
#include "server/request_line.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxQueuedEvents = 1 << 14;  // of one request that its connection's thread has not taken yet
constexpr int64_t kLookEvery = 256;            // events
constexpr size_t kKeptOutput = 4 << 10;        // bytes

// A single line end: some clients take an empty line for an event without data.
constexpr const char* kSseComment = ": ping\n";

class Generation;

// The way of a prompt's events to its generation; on the engine's thread, where it is called for every token of every stream.
// So it has all that it needs in itself, in one cache line: what the connection's thread writes to is far away.
class alignas(64) Sender final : public EventSink {
 public:
  Sender(ServerContext* context, const std::shared_ptr<Generation>& generation, size_t first_choice);
  void Send(const TokenEvent& event) override;
  void SendTokens(int32_t choice, std::span<const int32_t> token_ids, int64_t time_us) override;

 private:
  void Count();

  ServerContext* const context_;
  Generation* const generation_;
  const std::shared_ptr<EventReceiver> receiver_;  // the same
  const void* const loop_;  // of the generation's exchange
  const size_t first_choice_;
  int64_t num_sent_ = 0;
};

// Keeps what passes, until the answer is whole and the cache may have it.
class Keeper final : public EventSink {
 public:
  Keeper(std::unique_ptr<EventSink> next, ResponseCache* cache, const BlockKey& key, int32_t num_choices)
      : next_(std::move(next)), cache_(cache), key_(key), num_left_(num_choices) {}

  void Send(const TokenEvent& event) override {
    response_.push_back(event);
    const bool whole = event.error.ok() && (event.finish_reason == FinishReason::kStop || event.finish_reason == FinishReason::kLength);
    if (event.finished && whole && --num_left_ == 0) cache_->Insert(key_, std::move(response_));
    next_->Send(event);
  }

 private:
  const std::unique_ptr<EventSink> next_;
  ResponseCache* const cache_;
  const BlockKey key_;
  int32_t num_left_;
  ResponseCache::Response response_;
};

class Generation final : public EventReceiver, public std::enable_shared_from_this<Generation> {
 public:
  Generation(ServerContext* context, std::shared_ptr<Exchange> exchange, GenerationEndpoint endpoint, GenerationParams params)
      : context_(*context), exchange_(std::move(exchange)), endpoint_(endpoint), params_(std::move(params)) {}

  void Start();
  void Take(size_t choice, TokenEvent& event) override;
  void Flush() override;
  const std::shared_ptr<Exchange>& exchange() const { return exchange_; }
  int64_t num_taken() const { return num_taken_.load(std::memory_order_relaxed); }
  void CancelAll();

 private:
  static void MakeText(RequestStream* stream, TokenEvent* event);
  uint64_t Submit(Request request, size_t begin);
  void Replay(const ResponseCache::Response& response, size_t begin);
  void OpenStream();
  void KeepAlive();
  void Handle(Choice& choice, TokenEvent& event, std::string* out);
  ChoiceDelta TakeTokens(Choice& choice, TokenEvent& event);
  void Stream(Choice& choice, const ChoiceDelta& delta, bool has_tokens, std::string* out);
  void Record(const Request& request);
  void SharePromptLogprobs();
  void Complete();
  void Respond(HttpResponse response);
  void CountEnd(const Choice& choice, int64_t now_us);
  void WriteLog();
  Usage CountUsage() const;
  std::vector<Choice*> BestChoices();
  bool IsStopId(int32_t id) const;
  std::string ChunkUsage() const { return params_.continuous_usage ? UsageJson(CountUsage()) : ""; }

  ServerContext& context_;
  const std::shared_ptr<Exchange> exchange_;
  const GenerationEndpoint endpoint_;
  const GenerationParams params_;
  std::string id_;
  std::unique_ptr<Reply> reply_;
  std::deque<Choice> choices_;
  std::vector<Choice*> all_;
  std::vector<std::unique_ptr<RequestStream>> streams_;  // [choices]; null: the engine makes the text
  std::vector<uint64_t> tickets_;          // of the prompts
  std::vector<Request> recorded_;          // with --record: what the engine was asked, by choice
  std::shared_ptr<LiveRequestInfo> live_;
  uint64_t live_key_ = 0;
  size_t num_finished_ = 0;
  Status error_;
  bool client_gone_ = false;
  bool completed_ = false;
  bool stream_open_ = false;
  bool quiet_ = false;                     // since the last look at it nothing was sent
  bool failed_ = false;                    // the client has been told of error_
  int status_ = 200;
  int64_t first_token_us_ = 0;
  int64_t last_token_us_ = 0;
  int64_t end_us_ = 0;

  std::string out_;                        // since the last Flush
  std::atomic<int64_t> num_taken_{0};      // events
};

std::string Sse(const std::string& json) {
  return json.empty() ? "" : "data: " + json + "\n\n";
}

void Generation::Start() {
  const int32_t count = params_.num_choices();
  const uint64_t number = ++context_.last_request;
  const bool chat = endpoint_ == GenerationEndpoint::kChat;
  id_ = fmt::format("{}-{:x}{:08x}", chat ? "chatcmpl" : "cmpl", context_.start_unix, number);
  if (context_.draining) {
    context_.metrics->rejected_draining->Add();
    ApiError error = ErrorOfStatus(503, "the server is shutting down and takes no new requests");
    error.retry_after_s = 5;
    return Refuse(context_, exchange_.get(), error);
  }
  if (const Status room = context_.loop->Reserve(count); !room.ok()) {
    ApiError error = ErrorOf(room);
    if (error.status == 429) {
      context_.metrics->rejected_queue_full->Add();
      error.retry_after_s = context_.loop->RetryAfterSeconds();
    } else {
      error = ErrorOfStatus(503, room.message());
    }
    return Refuse(context_, exchange_.get(), error);
  }
  const int64_t created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const Tokenizer& tokenizer = *context_.bundle->tokenizer;
  reply_ = chat ? MakeChatReply(id_, created, params_, tokenizer, context_.options.reasoning_fields)
                : MakeCompletionReply(id_, created, params_, tokenizer);
  live_ = std::make_shared<LiveRequestInfo>();
  live_->id = id_;
  live_->endpoint = exchange_->request().path;
  live_->arrival_us = exchange_->request().arrival_us;
  live_->num_choices = count;
  live_->streaming = params_.stream;
  for (const auto& prompt : params_.prompts) live_->prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  live_key_ = context_.live.Add(live_);

  for (int32_t i = 0; i < count; ++i) {
    Choice choice;
    choice.prompt_idx = i / params_.best_of;
    choice.index = i;
    choice.parser = AnswerParser(params_.format);
    choices_.push_back(std::move(choice));
    all_.push_back(&choices_.back());
  }
  exchange_->OnClosed([weak = weak_from_this()] {
    if (const auto generation = weak.lock()) {
      generation->client_gone_ = true;
      generation->CancelAll();
    }
  });
  exchange_->on_half_closed = [weak = weak_from_this()] {
    if (const auto generation = weak.lock()) generation->exchange_->Write(kSseComment);
  };
  streams_.resize(choices_.size());
  for (size_t begin = 0; begin < choices_.size(); begin += static_cast<size_t>(params_.best_of)) {
    Request request = MakeEngineRequest(params_, context_.facts, choices_[begin].prompt_idx);
    if (context_.recorder) Record(request);
    tickets_.push_back(Submit(std::move(request), begin));
  }
  if (client_gone_) CancelAll();
  if (params_.stream && context_.options.sse_keepalive_ms > 0) KeepAlive();
}

// The ticket, or 0 where the answer is known.
uint64_t Generation::Submit(Request request, size_t begin) {
  const auto self = shared_from_this();
  request.text = !CanLeaveText(request);
  for (size_t i = begin; !request.text && i < begin + static_cast<size_t>(request.n); ++i) {
    streams_[i] = std::make_unique<RequestStream>(MakeStream(request, context_.bundle->tokenizer.get()));
  }
  const std::optional<BlockKey> key = context_.responses ? ResponseKey(request, params_.seeded) : std::nullopt;
  const auto known = key ? context_.responses->Find(*key) : nullptr;
  if (known != nullptr) {
    context_.loop->GiveBack(request.n);
    exchange_->Post([self, known, begin] { self->Replay(*known, begin); });
    return 0;
  }
  std::unique_ptr<EventSink> sink = std::make_unique<Sender>(&context_, self, begin);
  if (key) sink = std::make_unique<Keeper>(std::move(sink), context_.responses.get(), *key, request.n);
  return context_.loop->Submit(std::move(request), std::move(sink));
}

void Generation::Replay(const ResponseCache::Response& response, size_t begin) {
  const int64_t now_us = SteadyNowUs();
  for (TokenEvent event : response) {
    event.time_us = now_us;
    event.queue_us = 0;
    event.num_cached_tokens = static_cast<int32_t>(params_.prompts[static_cast<size_t>(choices_[begin].prompt_idx)].ids.size());
    Take(begin + static_cast<size_t>(event.choice), event);
  }
  Flush();
}

Sender::Sender(ServerContext* context, const std::shared_ptr<Generation>& generation, size_t first_choice)
    : context_(context), generation_(generation.get()), receiver_(generation), loop_(generation->exchange()->loop()), first_choice_(first_choice) {}

void Sender::Send(const TokenEvent& event) {
  const size_t choice = first_choice_ + static_cast<size_t>(event.choice);
  if (!context_->loop->InLoop()) {  // the loop has ended, and refuses
    generation_->exchange()->Post([receiver = receiver_, choice, event = TokenEvent(event)]() mutable {
      receiver->Take(choice, event);
      receiver->Flush();
    });
    return;
  }
  context_->outbox.Add(generation_->exchange(), loop_, receiver_, choice, event);
  Count();
}

void Sender::SendTokens(int32_t choice, std::span<const int32_t> token_ids, int64_t time_us) {
  context_->outbox.AddTokens(generation_->exchange(), loop_, generation_, first_choice_ + static_cast<size_t>(choice), token_ids, time_us);
  Count();
}

// Of events that nobody takes there must not be any number.
void Sender::Count() {
  if (++num_sent_ % kLookEvery != 0 || num_sent_ - generation_->num_taken() <= kMaxQueuedEvents) return;
  generation_->exchange()->Post([receiver = receiver_, generation = generation_] { generation->CancelAll(); });
}

void Generation::Take(size_t choice, TokenEvent& event) {
  num_taken_.fetch_add(1, std::memory_order_relaxed);
  if (streams_[choice] != nullptr) MakeText(streams_[choice].get(), &event);
  Handle(choices_[choice], event, &out_);
}

// As the engine would, which has better to do: every stream waits for it.
void Generation::MakeText(RequestStream* stream, TokenEvent* event) {
  stream->BeginStep();
  for (size_t i = 0; i < event->token_ids.size(); ++i) {
    const bool ends = event->finished && event->finish_reason == FinishReason::kStop && i + 1 == event->token_ids.size();
    stream->Take(event->token_ids[i], ends);
  }
  if (event->finished) stream->Finish();
  event->text.assign(stream->text());
  event->num_reasoning_tokens = stream->guide().num_reasoning_tokens();
}

void Generation::Flush() {
  if (!out_.empty()) {
    if (!exchange_->closed()) {
      OpenStream();
      exchange_->Write(out_);
      quiet_ = false;
    }
    if (out_.capacity() > kKeptOutput) out_ = {};
    out_.clear();
  }
  if (num_finished_ == choices_.size() && !std::exchange(completed_, true)) Complete();
}

void Generation::OpenStream() {
  if (std::exchange(stream_open_, true)) return;
  context_.metrics->streams->Add(1);
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}, {"X-Request-Id", id_}};
  exchange_->StartStream(std::move(head));
}

// What stands between us and the client must see that the stream lives, also while its request waits for its turn.
void Generation::KeepAlive() {
  if (exchange_->closed()) return;
  if (quiet_) {
    OpenStream();
    exchange_->Write(kSseComment);
  }
  quiet_ = true;
  exchange_->CallAfter(context_.options.sse_keepalive_ms, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->KeepAlive();
  });
}

bool Generation::IsStopId(int32_t id) const {
  const auto& own = context_.facts.stop_ids;
  const auto& more = params_.stop_token_ids;
  return (!params_.ignore_eos && std::find(own.begin(), own.end(), id) != own.end()) ||
         std::find(more.begin(), more.end(), id) != more.end();
}

ChoiceDelta Generation::TakeTokens(Choice& choice, TokenEvent& event) {
  ChoiceDelta delta;
  const bool record = context_.recorder != nullptr;
  if (params_.return_token_ids) delta.token_ids = event.token_ids;
  for (size_t i = 0; i < event.token_ids.size(); ++i) {
    const int32_t id = event.token_ids[i];
    ++choice.num_tokens;
    if (record || params_.return_token_ids) choice.token_ids.push_back(id);
    if (i >= event.logprobs.size()) continue;
    choice.sum_logprob += event.logprobs[i];
    // A token that only ends the answer is no part of it.
    const bool ends = event.finished && i + 1 == event.token_ids.size() && event.finish_reason == FinishReason::kStop && IsStopId(id) &&
                      !params_.include_stop;
    if (ends || params_.num_top_logprobs < 0) continue;
    AnswerToken token;
    token.token_id = id;
    token.logprob = event.logprobs[i];
    if (i < event.top_logprobs.size()) token.top = std::move(event.top_logprobs[i]);
    if (static_cast<int32_t>(token.top.size()) > params_.num_top_logprobs) token.top.resize(static_cast<size_t>(params_.num_top_logprobs));
    delta.tokens.push_back(std::move(token));
  }
  if (record) choice.text += event.text;
  std::vector<AnswerEvent> parts;
  if (!std::exchange(choice.primed, true)) choice.parser.Push(params_.forced_text, &parts);
  choice.parser.Push(event.text, &parts);
  if (event.finished) choice.parser.Finish(&parts);
  TakeParts(parts, params_, &choice, &delta);
  choice.num_reasoning_tokens = std::max(choice.num_reasoning_tokens, event.num_reasoning_tokens);
  return delta;
}

void Generation::Handle(Choice& choice, TokenEvent& event, std::string* out) {
  if (choice.finished) return;
  live_->prompt_computed = std::max<int64_t>(live_->prompt_computed, event.num_prompt_computed);
  live_->generated += static_cast<int64_t>(event.token_ids.size());
  choice.queue_us = std::max(choice.queue_us, event.queue_us);
  choice.num_cached_tokens = std::max(choice.num_cached_tokens, event.num_cached_tokens);
  choice.prompt_logprobs.insert(choice.prompt_logprobs.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  choice.prompt_top.insert(choice.prompt_top.end(), event.prompt_top_logprobs.begin(), event.prompt_top_logprobs.end());
  if (!event.token_ids.empty()) {
    if (choice.num_tokens == 0) {
      context_.metrics->first_token_seconds->Observe(static_cast<double>(event.time_us - exchange_->request().arrival_us) * 1e-6);
    }
    if (choice.num_tokens == 0) choice.first_token_us = event.time_us;
    choice.last_token_us = event.time_us;
    if (first_token_us_ == 0) first_token_us_ = event.time_us;
    last_token_us_ = event.time_us;
  }
  const ChoiceDelta delta = TakeTokens(choice, event);
  if (choice.cut && !event.finished) {
    // The one call that was wanted is there. What still comes of this choice is not looked at.
    event.finished = true;
    event.finish_reason = FinishReason::kStop;
    if (num_finished_ + 1 == choices_.size()) CancelAll();
  }
  if (event.finished) {
    choice.finished = true;
    choice.finish_reason = event.finish_reason;
    ++num_finished_;
    end_us_ = event.time_us;
    CountEnd(choice, event.time_us);
    Status error = event.error;
    if (event.finish_reason == FinishReason::kCancelled && !client_gone_) error = Cancelled("the server is shutting down");
    if (event.finish_reason == FinishReason::kError && error.ok()) error = Internal("the request failed");
    if (!error.ok() && error_.ok()) {
      error_ = std::move(error);
      CancelAll();  // one choice without the others is no answer
    }
  }
  if (client_gone_ || failed_) return;
  if (params_.stream) {
    Stream(choice, delta, !event.token_ids.empty(), out);
  } else {
    choice.content += delta.content;
    choice.reasoning += delta.reasoning;
    choice.tokens.insert(choice.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  }
}

void Generation::Stream(Choice& choice, const ChoiceDelta& delta, bool has_tokens, std::string* out) {
  if (!error_.ok()) {
    if (!stream_open_ && out->empty()) return;  // a whole response can still tell of it
    failed_ = true;
    *out += Sse(ErrorJson(ErrorOf(error_))) + "data: [DONE]\n\n";
    return;
  }
  if (!choice.begun) {
    if (reply_->FirstNeedsPrompt() && !has_tokens && !choice.finished) return;
    choice.begun = true;
    if (reply_->FirstNeedsPrompt()) SharePromptLogprobs();
    *out += Sse(reply_->FirstChunk(choice, ChunkUsage()));
  }
  *out += Sse(reply_->DeltaChunk(choice, delta, ChunkUsage()));
  if (choice.finished) *out += Sse(reply_->LastChunk(choice, ChunkUsage()));
}

// Each choice as a request of its own, so that a replay needs nothing of the others.
void Generation::Record(const Request& request) {
  for (int32_t i = 0; i < request.n; ++i) {
    recorded_.push_back(request);
    recorded_.back().n = 1;
    recorded_.back().sampling.seed += static_cast<uint64_t>(i);
  }
}

// The engine tells those of a prompt once, with its first choice.
void Generation::SharePromptLogprobs() {
  for (size_t i = 0; i < all_.size(); ++i) {
    const Choice* first = all_[i - i % static_cast<size_t>(params_.best_of)];
    if (all_[i]->prompt_logprobs.size() >= first->prompt_logprobs.size()) continue;
    all_[i]->prompt_logprobs = first->prompt_logprobs;
    all_[i]->prompt_top = first->prompt_top;
  }
}

void Generation::CancelAll() {
  if (num_finished_ == choices_.size()) return;
  for (const uint64_t ticket : tickets_) context_.loop->Cancel(ticket);
}

Usage Generation::CountUsage() const {
  Usage usage;
  for (const auto& prompt : params_.prompts) usage.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  for (size_t i = 0; i < all_.size(); ++i) {
    usage.completion_tokens += all_[i]->num_tokens;
    usage.reasoning_tokens += all_[i]->num_reasoning_tokens;
    // A prompt counts once, however many choices share it.
    if (i % static_cast<size_t>(params_.best_of) == 0) usage.cached_tokens += all_[i]->num_cached_tokens;
  }
  return usage;
}

// Of each prompt's best_of choices the n with the best mean log-probability, numbered anew.
std::vector<Choice*> Generation::BestChoices() {
  std::vector<Choice*> kept;
  for (size_t begin = 0; begin < all_.size(); begin += static_cast<size_t>(params_.best_of)) {
    std::vector<Choice*> group(all_.begin() + static_cast<int64_t>(begin), all_.begin() + static_cast<int64_t>(begin) + params_.best_of);
    if (params_.best_of > params_.n) {
      const auto mean = [](const Choice* choice) { return choice->sum_logprob / std::max(choice->num_tokens, 1); };
      std::stable_sort(group.begin(), group.end(), [&](const Choice* a, const Choice* b) { return mean(a) > mean(b); });
      group.resize(static_cast<size_t>(params_.n));
    }
    for (Choice* choice : group) {
      choice->index = static_cast<int32_t>(kept.size());
      kept.push_back(choice);
    }
  }
  return kept;
}

void Generation::Respond(HttpResponse response) {
  response.headers.emplace_back("X-Request-Id", id_);
  exchange_->Respond(std::move(response));
}

void Generation::Complete() {
  context_.live.Remove(live_key_);
  if (stream_open_) context_.metrics->streams->Add(-1);
  const Usage usage = CountUsage();
  if (client_gone_ || exchange_->closed()) {
    status_ = 499;
  } else if (stream_open_) {
    std::string out;
    if (!failed_) {
      if (params_.include_usage) out += Sse(reply_->UsageChunk(UsageJson(usage)));
      out += "data: [DONE]\n\n";
    }
    if (!out.empty()) exchange_->Write(out);
    exchange_->EndStream();
  } else if (!error_.ok()) {
    const ApiError error = ErrorOf(error_);
    status_ = error.status;
    Respond(ErrorResponse(error));
  } else {
    SharePromptLogprobs();
    HttpResponse response;
    response.body = reply_->Body(BestChoices(), UsageJson(usage));
    Respond(std::move(response));
  }
  WriteLog();
  if (context_.recorder && !client_gone_ && error_.ok()) {
    context_.recorder->Write(RecordLine(id_, exchange_->request(), exchange_->request().arrival_us - context_.start_us,
                                        end_us_ - exchange_->request().arrival_us, recorded_, all_));
  }
}

void Generation::CountEnd(const Choice& choice, int64_t now_us) {
  ServerMetrics& metrics = *context_.metrics;
  switch (choice.finish_reason) {
    case FinishReason::kStop: metrics.finished_stop->Add(); break;
    case FinishReason::kLength: metrics.finished_length->Add(); break;
    case FinishReason::kCancelled: metrics.finished_abort->Add(); break;
    case FinishReason::kError: metrics.finished_error->Add(); break;
  }
  const auto num_prompt = static_cast<double>(params_.prompts[static_cast<size_t>(choice.prompt_idx)].ids.size());
  metrics.e2e_seconds->Observe(static_cast<double>(now_us - exchange_->request().arrival_us) * 1e-6);
  metrics.request_prompt_tokens->Observe(num_prompt);
  metrics.request_generation_tokens->Observe(choice.num_tokens);
  metrics.request_max_tokens->Observe(params_.max_tokens < 0 ? context_.facts.max_context - num_prompt : params_.max_tokens);
  metrics.request_n->Observe(params_.n);
  if (choice.num_tokens == 0) return;
  const auto seconds = [](int64_t us) { return static_cast<double>(std::max<int64_t>(us, 0)) * 1e-6; };
  const int64_t begun_us = exchange_->request().arrival_us + choice.queue_us;
  metrics.request_prefill_seconds->Observe(seconds(choice.first_token_us - begun_us));
  metrics.request_decode_seconds->Observe(seconds(choice.last_token_us - choice.first_token_us));
  metrics.request_inference_seconds->Observe(seconds(choice.last_token_us - begun_us));
  if (choice.num_tokens > 1) {
    metrics.request_token_seconds->Observe(seconds(choice.last_token_us - choice.first_token_us) / (choice.num_tokens - 1));
  }
}

void Generation::WriteLog() {
  std::string reasons;
  int64_t queue_us = 0;
  for (const Choice* choice : all_) {
    if (!reasons.empty()) reasons += ',';
    reasons += FinishReasonName(choice->finish_reason);
    queue_us = std::max(queue_us, choice->queue_us);
  }
  LogRequest(context_, exchange_->request(),
             {.id = id_,
              .status = status_,
              .stream = params_.stream,
              .finish_reasons = reasons,
              .num_choices = static_cast<int64_t>(all_.size()),
              .usage = CountUsage(),
              .queue_us = queue_us,
              .first_token_us = first_token_us_,
              .last_token_us = last_token_us_,
              .end_us = end_us_,
              .seed = params_.sampling.seed,
              .priority = params_.priority,
              .user = params_.user,
              .error = error_.ok() ? "" : error_.message()});
}

}  // namespace

void PrepareGeneration(ServerContext* context, const std::shared_ptr<Exchange>& exchange, GenerationEndpoint endpoint, ParseRequest parse) {
  context->work->Run(exchange, [context, exchange, endpoint, parse]() -> LongWork::Finish {
    ChatJson body;
    const auto params = std::make_shared<GenerationParams>();
    std::optional<ApiError> error = ParseBody(exchange->request().body, &body);
    if (!error) error = parse(body, *context->bundle, context->facts, params.get());
    if (error) {
      return [context, exchange, error = std::move(*error)] { Refuse(*context, exchange.get(), error); };
    }
    params->tenant = exchange->request().tenant;
    return [context, exchange, endpoint, params] { StartGeneration(context, exchange, endpoint, std::move(*params)); };
  });
}

void StartGeneration(ServerContext* context, std::shared_ptr<Exchange> exchange, GenerationEndpoint endpoint, GenerationParams params) {
  std::make_shared<Generation>(context, std::move(exchange), endpoint, std::move(params))->Start();
}

}  // namespace cachalot
