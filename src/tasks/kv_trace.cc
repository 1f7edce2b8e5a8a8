#include "tasks/kv_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_set>

#include "base/file.h"
#include "formats/json.h"
#include "kv/block_key.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxTraceBytes = int64_t{4} << 30;
constexpr double kMaxTimestampMs = 1e14;  // some thousand years
constexpr int64_t kMaxLineBytes = int64_t{256} << 20;

Result<KvTraceRequest> MooncakeRequest(const nlohmann::json& json, const std::string& place) {
  KvTraceRequest request;
  const auto timestamp = json.at("timestamp").get<double>();
  if (!(timestamp >= 0 && timestamp <= kMaxTimestampMs)) {
    return Corrupt("{}: timestamp is {}: must be in 0..{} ms", place, timestamp, kMaxTimestampMs);
  }
  request.time_us = static_cast<int64_t>(timestamp * 1000.0);
  // Small numbers are no hashes: policies may expect keys that are spread out.
  for (const auto& id : json.at("hash_ids")) {
    if (!id.is_number_unsigned()) {
      return Corrupt("{}: a block's id in hash_ids is {}: must be a whole number", place, JsonPreview(id));
    }
    request.blocks.push_back((id.get<uint64_t>() + 1) * 0x9e3779b97f4a7c15u);
  }
  request.num_looked_up = static_cast<int32_t>(request.blocks.size());
  return request;
}

// The answer's tokens are cached too, but for the last, which is never computed; and of a prompt one token is
// always computed.
KvTraceRequest RecordedChoiceRequest(const nlohmann::json& choice, int64_t arrival_us, int32_t block_tokens) {
  KvTraceRequest request;
  request.time_us = arrival_us;
  auto tokens = choice.at("prompt_ids").get<std::vector<int32_t>>();
  const auto size = static_cast<size_t>(block_tokens);
  request.num_looked_up = tokens.empty() ? 0 : static_cast<int32_t>((tokens.size() - 1) / size);
  const auto answer = choice.at("result").at("token_ids").get<std::vector<int32_t>>();
  if (!answer.empty()) tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
  BlockKey key = RootKey("", "");
  for (size_t end = size; end <= tokens.size(); end += size) {
    key = ChildKey(key, std::span(tokens).subspan(end - size, size));
    request.blocks.push_back(key.low);
  }
  return request;
}

Status AddLine(std::string_view line, const std::string& place, const KvTraceOptions& options,
               KvTrace* trace) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(line, place, {.max_bytes = kMaxLineBytes}));
  try {
    if (json.contains("hash_ids")) {
      ASSIGN_OR_RETURN(KvTraceRequest request, MooncakeRequest(json, place));
      trace->requests.push_back(std::move(request));
      return Status::Ok();
    }
    const auto arrival_us = json.at("arrival_us").get<int64_t>();
    for (const auto& choice : json.at("choices")) {
      trace->requests.push_back(RecordedChoiceRequest(choice, arrival_us, options.block_tokens));
    }
    return Status::Ok();
  } catch (const nlohmann::json::exception& exception) {
    return Corrupt(
        "{}: neither a request of a trace (timestamp, hash_ids) nor of a record (arrival_us, choices): {}",
        place, exception.what());
  }
}

}  // namespace

Result<KvTrace> ParseKvTrace(std::string_view text, const std::string& place, const KvTraceOptions& options) {
  if (options.block_tokens < 1)
    return InvalidArgument("block_tokens is {}: must be at least 1", options.block_tokens);
  KvTrace trace;
  size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    RETURN_IF_ERROR(AddLine(line, fmt::format("{}:{}", place, number), options, &trace));
  }
  // A record is in the order in which answers ended.
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const KvTraceRequest& a, const KvTraceRequest& b) { return a.time_us < b.time_us; });
  if (options.max_requests > 0 && static_cast<int64_t>(trace.requests.size()) > options.max_requests) {
    trace.requests.resize(static_cast<size_t>(options.max_requests));
  }
  std::unordered_set<uint64_t> distinct;
  for (const KvTraceRequest& request : trace.requests) {
    trace.num_lookups += request.num_looked_up;
    distinct.insert(request.blocks.begin(), request.blocks.end());
  }
  trace.num_distinct = static_cast<int64_t>(distinct.size());
  if (trace.num_lookups == 0) return InvalidArgument("{}: no request in it asks for a whole block", place);
  return trace;
}

Result<KvTrace> ReadKvTrace(const std::string& path, const KvTraceOptions& options) {
  const std::string file = IsDirectory(path) ? path + "/requests.jsonl" : path;
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxTraceBytes));
  return ParseKvTrace(text, file, options);
}

}  // namespace cachalot
