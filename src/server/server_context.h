// What all routes share. Everything in it may be used from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/model_bundle.h"
#include "server/api/generation_params.h"
#include "server/api/reply.h"
#include "server/engine_loop.h"
#include "server/http/http_server.h"
#include "server/long_work.h"
#include "server/outbox.h"
#include "server/request_log.h"
#include "server/response_cache.h"
#include "server/server_metrics.h"

namespace cachalot {

// A request that is being worked on, for the live view.
struct LiveRequestInfo {
  std::string id;
  std::string endpoint;
  int64_t arrival_us = 0;
  int32_t num_choices = 1;
  std::atomic<int64_t> prompt_tokens{0};
  std::atomic<int64_t> prompt_computed{0};
  std::atomic<int64_t> generated{0};
  std::atomic<bool> streaming{false};
};

class LiveRequests {
 public:
  uint64_t Add(std::shared_ptr<LiveRequestInfo> info);
  void Remove(uint64_t key);
  std::vector<std::shared_ptr<const LiveRequestInfo>> List(size_t max_count) const;
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<LiveRequestInfo>> map_;
  uint64_t next_ = 0;
};

struct ServerOptions {
  HttpServerOptions http = {};
  std::vector<std::string> served_names = {};  // empty: `default_name`
  std::string default_name = "model";
  std::vector<std::string> api_keys = {};      // empty: no keys are asked for
  std::vector<std::string> cors_origins = {};  // "*": all
  int32_t max_waiting = 1024;
  int32_t max_choices = 128;
  int64_t deadline_us = 0;                    // of a request, from its arrival; 0: none
  int32_t drain_timeout_ms = 30'000;
  int32_t stall_ms = 60'000;                  // /health turns red when a step takes longer
  int32_t sse_keepalive_ms = 30'000;          // a stream that brings nothing for so long gets a comment; 0: never
  std::string kv_policy = "lru-k";            // what the engine was made with, to be shown
  int32_t response_cache = 0;                 // answers kept of requests that can have only one; 0: none
  bool vllm_metrics = false;
  bool split_reasoning = true;
  int32_t reasoning_budget = -1;              // of requests that name none; -1: any number
  std::optional<ToolSyntax> tool_syntax = {}; // in place of the one that the chat template shows
  ReasoningFields reasoning_fields = ReasoningFields::kBoth;
  std::string request_log = "-";              // a file, "-" for standard error, "" for none
  std::string step_log = {};                  // a file that gets a line for each step; "" for none
  std::string record_dir = {};                // "": nothing is recorded
  std::string version = "0";
};

struct ServerContext {
  ServerOptions options;
  ModelFacts facts;
  ModelBundle* bundle = nullptr;
  MetricRegistry registry;
  std::unique_ptr<ServerMetrics> metrics;
  std::unique_ptr<ResponseCache> responses;   // may be null
  Outbox outbox;                              // of the loop's thread, which outlives nothing above
  std::unique_ptr<EngineLoop> loop;
  std::unique_ptr<LongWork> work;             // what long bodies take
  std::unique_ptr<LineWriter> request_log;    // may be null
  std::unique_ptr<LineWriter> step_log;       // may be null
  std::unique_ptr<LineWriter> recorder;       // may be null
  HttpServer* http = nullptr;                 // set once it listens
  LiveRequests live;
  // Until the model is there, only options are; what else stands above may be looked at once this is true.
  std::atomic<bool> loaded{false};
  std::atomic<bool> draining{false};
  std::atomic<uint64_t> last_request{0};
  int64_t start_us = 0;                       // steady clock
  int64_t start_unix = 0;
};

}  // namespace cachalot
