// The flags of `cachalot serve`, with vLLM's and llama.cpp's names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "engine/engine.h"
#include "server/server_context.h"

namespace cachalot {

struct ServeFlags {
  ServeFlags();

  ModelFlags model;
  ServerOptions server;
  EngineOptions engine;

  void Declare(FlagSet* flags);
  std::vector<std::pair<std::string, int32_t>> faults;  // for tests: a point, and the calls between two of its faults

  // After FlagSet::Parse.
  Status Resolve();

 private:
  std::string config_;
  std::vector<std::string> fault_texts_;
  std::string aliases_;
  std::vector<std::string> served_names_;
  std::string key_file_;
  std::vector<std::string> keys_;
  std::string metrics_compat_ = "none";
  std::string reasoning_format_ = "auto";
  std::string reasoning_fields_ = "both";
  std::string tool_call_parser_ = "auto";
  int64_t body_mib_ = 16;
  std::string preemption_ = "recompute";
  std::vector<int32_t> kv_tau_s_;
  bool prefix_caching_on_ = false, prefix_caching_off_ = false;
  float itl_target_ms_ = 0;
  float itl_ratio_ = -1;  // as Session::Open chooses
  int32_t prefill_chunk_ = 0, request_timeout_s_ = 0;
  int32_t read_timeout_s_ = 30, idle_timeout_s_ = 120, drain_timeout_s_ = 30, stall_s_ = 60, sse_keepalive_s_ = 30;
};

}  // namespace cachalot
