// The client side of `bench serve`: sends the workload and notes when each token came.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench_serve_workload.h"
#include "cli/console.h"
#include "server/http/http_client.h"

namespace cachalot {

struct RequestTiming {
  int64_t sent_us = 0;
  int64_t end_us = 0;
  std::vector<int64_t> token_us;   // when each piece of text came
  int64_t prompt_tokens = 0;       // as the server counts them; 0: it does not say
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int status = 0;
  bool ended = false;              // the server said that this was all
  std::string error;               // "": answered to the end

  bool ok() const { return status == 200 && error.empty(); }
};

struct BenchClientOptions {
  std::string base_url;
  std::string model;               // "": none is named, and servers take their own
  std::string ca_file;             // of https
  std::string api_key;
  bool chat = false;
  bool ignore_eos = true;
  float temperature = 0.0f;
  std::string extra_body;          // a JSON object whose fields every request gets
  int32_t max_concurrency = 0;
  int32_t wave = 0;
  int32_t timeout_s = 600;
};

Result<std::vector<RequestTiming>> RunWorkload(const BenchClientOptions& options, const std::vector<WorkItem>& items,
                                               const StopOnInterrupt& stop);

}  // namespace cachalot
