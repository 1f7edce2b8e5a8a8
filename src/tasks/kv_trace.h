// KvTrace: requests as a prefix cache sees them: when, and which blocks, by name, from the first on. Read
// from Mooncake's published traces ({"timestamp", "hash_ids"} a line) or from what `serve --record` wrote.
// Invariant: in order of time; a block's key covers all that stands before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct KvTraceRequest {
  int64_t time_us = 0;
  std::vector<uint64_t> blocks;
  int32_t num_looked_up = 0;  // of them, the prompt's: those that could have come from the cache
};

struct KvTrace {
  std::vector<KvTraceRequest> requests;
  int64_t num_lookups = 0;   // blocks that were asked for
  int64_t num_distinct = 0;  // blocks with different contents
};

struct KvTraceOptions {
  int32_t block_tokens = 16;  // into which records are cut; Mooncake's are cut already, into 512
  int64_t max_requests = 0;   // only the first; 0: all
};

// place stands in front of error messages.
Result<KvTrace> ParseKvTrace(std::string_view text, const std::string& place,
                             const KvTraceOptions& options = {});
// Of a file, or of a folder that --record wrote.
Result<KvTrace> ReadKvTrace(const std::string& path, const KvTraceOptions& options = {});

}  // namespace cachalot
