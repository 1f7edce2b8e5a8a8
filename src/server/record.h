// What --record writes and `cachalot replay` reads: a line of JSON for each request that was answered.
// {"id", "path", "arrival_us", "e2e_us", "body", "choices": [{"prompt_ids", "sampling": {…}, "max_tokens", "stop_strings",
//   "stop_ids", "num_top_logprobs", "priority", "result": {"token_ids", "text", "finish_reason"}}, …]}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/api/reply.h"
#include "server/http/http_message.h"

namespace cachalot {

inline constexpr const char* kRecordFile = "requests.jsonl";

// requests[i] is what the engine was asked for choices[i].
std::string RecordLine(const std::string& id, const HttpRequest& request, int64_t arrival_us, int64_t e2e_us,
                       const std::vector<Request>& requests, const std::vector<Choice*>& choices);

struct RecordedChoice {
  Request request;
  std::vector<int32_t> token_ids;
  std::string text;
  std::string finish_reason;
};
struct RecordedRequest {
  std::string id;
  std::string path;
  std::string body;
  int64_t arrival_us = 0;  // since the server's start
  int64_t e2e_us = 0;
  std::vector<RecordedChoice> choices;
};
// place stands in front of error messages: "requests.jsonl:7".
Result<RecordedRequest> ParseRecordLine(std::string_view line, const std::string& place);
// All of a folder's record, or of a file.
Result<std::vector<RecordedRequest>> ReadRecords(const std::string& path);

}  // namespace cachalot
