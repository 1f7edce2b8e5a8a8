// What `bench serve` asks a server: prompts, lengths and times, from generators or files. The same seed gives the same load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct WorkloadOptions {
  std::string dataset = "random";  // random, shared-prefix, sharegpt, trace
  std::string path;                // of sharegpt and trace; sharegpt without: lengths as its conversations have them
  int32_t num_prompts = 100;
  int32_t input_len = 128;         // words, which are about tokens
  int32_t output_len = 64;
  float range = 0.0f;              // lengths vary by this part, up and down
  int32_t prefix_len = 1024;       // of shared-prefix
  int32_t num_prefixes = 1;
  float request_rate = 0.0f;       // a second, as a Poisson process; 0: at once, or as the trace says
  float speed = 1.0f;              // of a trace's clock
  int64_t seed = 1;
  int32_t vocab_size = 0;          // > 0: prompts are token ids of such a vocabulary, so that lengths are exact
};

struct WorkItem {
  int64_t start_us = 0;
  std::string prompt;      // this and prompt_ids empty: `body` is sent as it was recorded
  std::vector<int32_t> prompt_ids;
  std::string body;
  std::string path;        // of a recorded body
  int32_t output_len = 0;
};

Result<std::vector<WorkItem>> MakeWorkload(const WorkloadOptions& options);

}  // namespace cachalot
