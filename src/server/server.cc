#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <thread>

#include "server/api/api_error.h"
#include "server/record.h"
#include "server/router.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using namespace std::chrono_literals;

constexpr auto kGoodbyeTime = 2000ms;  // for the last error messages to leave

Status Prepare(ServerContext* context, ModelBundle* bundle, const ExecutorInfo& info) {
  if (bundle->tokenizer == nullptr) return bundle->tokenizer_error.WithContext("serving needs a tokenizer");
  const ServerOptions& options = context->options;
  context->bundle = bundle;
  ModelFacts& facts = context->facts;
  facts.names = options.served_names.empty() ? std::vector<std::string>{options.default_name} : options.served_names;
  facts.vocab_size = info.vocab_size;
  // A sequence can be no longer than the KV memory of any group without a window or an end.
  facts.max_context = info.max_context;
  for (const auto& group : info.kv_groups) {
    if (group.window > 0 || group.end_token < std::numeric_limits<int32_t>::max()) continue;
    const int64_t tokens = group.first_token + int64_t{group.num_blocks} * group.block_tokens;
    facts.max_context = static_cast<int32_t>(std::min<int64_t>(facts.max_context, tokens));
  }
  facts.max_choices = std::min(options.max_choices, info.max_seqs + options.max_waiting);
  size_t longest = 1;
  for (int32_t id = 0; id < bundle->tokenizer->vocab_size(); ++id) longest = std::max(longest, bundle->tokenizer->TokenBytes(id).size());
  // Normalising may make a text shorter; not four times.
  facts.max_prompt_bytes = int64_t{4} * facts.max_context * static_cast<int64_t>(longest);
  facts.deadline_us = options.deadline_us;
  facts.split_reasoning = options.split_reasoning;
  facts.reasoning_budget = options.reasoning_budget;
  if (options.tool_syntax) bundle->tool_syntax = *options.tool_syntax;
  facts.defaults = bundle->generation;
  facts.stop_ids.assign(bundle->tokenizer->stop_ids().begin(), bundle->tokenizer->stop_ids().end());
  context->metrics = std::make_unique<ServerMetrics>(&context->registry, info);
  if (options.response_cache > 0) {
    const std::string policy = options.kv_policy == "none" ? "lru-k" : options.kv_policy;
    ASSIGN_OR_RETURN(context->responses, ResponseCache::Create(options.response_cache, policy, &context->registry));
  }
  return Status::Ok();
}

Status OpenFiles(ServerContext* context) {
  const ServerOptions& options = context->options;
  if (!options.request_log.empty()) {
    ASSIGN_OR_RETURN(context->request_log, LineWriter::Open(options.request_log));
  }
  if (!options.step_log.empty()) {
    ASSIGN_OR_RETURN(context->step_log, LineWriter::Open(options.step_log));
  }
  if (!options.record_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.record_dir, error);
    if (error) return InvalidArgument("--record {}: {}", options.record_dir, error.message());
    ASSIGN_OR_RETURN(context->recorder, LineWriter::Open(options.record_dir + "/" + kRecordFile));
  }
  return Status::Ok();
}

}  // namespace

uint64_t LiveRequests::Add(std::shared_ptr<LiveRequestInfo> info) {
  const std::lock_guard lock(mutex_);
  map_.emplace(++next_, std::move(info));
  return next_;
}

void LiveRequests::Remove(uint64_t key) {
  const std::lock_guard lock(mutex_);
  map_.erase(key);
}

std::vector<std::shared_ptr<const LiveRequestInfo>> LiveRequests::List(size_t max_count) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const LiveRequestInfo>> list;
  for (const auto& [key, info] : map_) {
    if (list.size() == max_count) break;
    list.push_back(info);
  }
  return list;
}

size_t LiveRequests::size() const {
  const std::lock_guard lock(mutex_);
  return map_.size();
}

Result<std::unique_ptr<Server>> Server::Listen(ServerOptions options) {
  std::unique_ptr<Server> server(new Server);
  ServerContext* context = &server->context_;
  context->options = std::move(options);
  server->stopped_ = true;  // there is nothing to stop yet
  RETURN_IF_ERROR(OpenFiles(context));
  context->start_us = SteadyNowUs();
  context->start_unix =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  auto http = HttpServer::Start(
      context->options.http, [context](std::shared_ptr<Exchange> exchange) { HandleExchange(context, exchange); },
      [](int status, std::string_view message) { return ErrorJson(ErrorOfStatus(status, std::string(message))); });
  RETURN_IF_ERROR(http.status());
  server->http_ = std::move(*http);
  server->stopped_ = false;
  return server;
}

Status Server::Serve(ModelBundle* bundle, Engine* engine, const ExecutorInfo& info) {
  ServerContext* context = &context_;
  RETURN_IF_ERROR(Prepare(context, bundle, info));
  context->http = http_.get();
  context->loop = std::make_unique<EngineLoop>(engine, info, context->metrics.get(),
                                               EngineLoopOptions{.max_waiting = context->options.max_waiting,
                                                                 .max_seqs = info.max_seqs,
                                                                 .stall_us = int64_t{context->options.stall_ms} * 1000,
                                                                 .after_step = [context] { context->outbox.Flush(); },
                                                                 .step_log = context->step_log.get()});
  context->work = std::make_unique<LongWork>(context->options.http.num_threads);
  context->loaded.store(true, std::memory_order_release);
  return Status::Ok();
}

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, ModelBundle* bundle, Engine* engine, const ExecutorInfo& info) {
  ASSIGN_OR_RETURN(auto server, Listen(std::move(options)));
  RETURN_IF_ERROR(server->Serve(bundle, engine, info));
  return server;
}

Server::~Server() {
  Stop();
}

int32_t Server::port() const {
  return http_->port();
}

void Server::BeginDrain() {
  context_.draining = true;
  http_->CloseAfterResponses();
}

bool Server::idle() const {
  return context_.live.size() == 0 && (context_.work == nullptr || context_.work->idle());
}

void Server::Stop() {
  if (std::exchange(stopped_, true)) return;
  BeginDrain();
  if (context_.loop != nullptr) {
    context_.loop->CancelAll();
    context_.loop->Stop();
    context_.work->Stop();
  }
  // Every request has its end now; the connections' threads still carry it to the clients.
  const auto deadline = std::chrono::steady_clock::now() + kGoodbyeTime;
  while ((!idle() || http_->counters().answering > 0) && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
  http_->Stop();
}

}  // namespace cachalot
