#include "server/record.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "formats/json.h"

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kMaxRecordBytes = int64_t{4} << 30;
constexpr int64_t kMaxLineBytes = int64_t{256} << 20;

Json ToJson(const SamplingConfig& sampling) {
  Json bias = Json::array();
  for (const auto& entry : sampling.logit_bias) bias.push_back({entry.token_id, entry.bias});
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"seed", sampling.seed},
          {"logit_bias", bias}};
}

SamplingConfig SamplingOf(const nlohmann::json& json) {
  SamplingConfig sampling;
  sampling.temperature = json.at("temperature").get<float>();
  sampling.top_k = json.at("top_k").get<int32_t>();
  sampling.top_p = json.at("top_p").get<float>();
  sampling.min_p = json.at("min_p").get<float>();
  sampling.repetition_penalty = json.at("repetition_penalty").get<float>();
  sampling.presence_penalty = json.at("presence_penalty").get<float>();
  sampling.frequency_penalty = json.at("frequency_penalty").get<float>();
  sampling.seed = json.at("seed").get<uint64_t>();
  for (const auto& entry : json.at("logit_bias")) {
    sampling.logit_bias.push_back({entry.at(0).get<int32_t>(), entry.at(1).get<float>()});
  }
  return sampling;
}

RecordedChoice ChoiceOf(const nlohmann::json& json) {
  RecordedChoice choice;
  choice.request.prompt_ids = json.at("prompt_ids").get<std::vector<int32_t>>();
  choice.request.sampling = SamplingOf(json.at("sampling"));
  choice.request.max_tokens = json.at("max_tokens").get<int32_t>();
  choice.request.stop_strings = json.at("stop_strings").get<std::vector<std::string>>();
  choice.request.bad_words = json.value("bad_words", std::vector<std::vector<int32_t>>());
  choice.request.stop_ids = json.at("stop_ids").get<std::vector<int32_t>>();
  choice.request.min_tokens = json.value("min_tokens", 0);
  choice.request.include_stop = json.value("include_stop", false);
  choice.request.skip_special = json.value("skip_special", true);
  choice.request.num_top_logprobs = json.at("num_top_logprobs").get<int32_t>();
  choice.request.priority = json.at("priority").get<int32_t>();
  if (const auto found = json.find("reasoning"); found != json.end()) {
    choice.request.reasoning = {.inside = found->at("inside").get<bool>(),
                                .budget = found->at("budget").get<int32_t>(),
                                .close_ids = found->at("close_ids").get<std::vector<int32_t>>(),
                                .then_ids = found->at("then_ids").get<std::vector<int32_t>>()};
    if (const auto call = found->find("call"); call != found->end()) {
      choice.request.call = {.on = call->at("on").get<bool>(),
                             .in_prompt = call->at("in_prompt").get<bool>(),
                             .names = call->at("names").get<std::vector<std::string>>(),
                             .middle = call->at("middle").get<std::string>(),
                             .close = call->at("close").get<std::string>()};
    }
    choice.request.shown_ids = found->at("shown_ids").get<std::vector<int32_t>>();
  }
  const auto& result = json.at("result");
  choice.token_ids = result.at("token_ids").get<std::vector<int32_t>>();
  choice.text = result.at("text").get<std::string>();
  choice.finish_reason = result.at("finish_reason").get<std::string>();
  return choice;
}

}  // namespace

std::string RecordLine(const std::string& id, const HttpRequest& request, int64_t arrival_us, int64_t e2e_us,
                       const std::vector<Request>& requests, const std::vector<Choice*>& choices) {
  Json list = Json::array();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& asked = requests[i];
    list.push_back({{"prompt_ids", asked.prompt_ids},
                    {"sampling", ToJson(asked.sampling)},
                    {"max_tokens", asked.max_tokens},
                    {"stop_strings", asked.stop_strings},
                    {"bad_words", asked.bad_words},
                    {"stop_ids", asked.stop_ids},
                    {"min_tokens", asked.min_tokens},
                    {"include_stop", asked.include_stop},
                    {"skip_special", asked.skip_special},
                    {"num_top_logprobs", asked.num_top_logprobs},
                    {"priority", asked.priority},
                    {"reasoning",
                     {{"inside", asked.reasoning.inside},
                      {"budget", asked.reasoning.budget},
                      {"close_ids", asked.reasoning.close_ids},
                      {"then_ids", asked.reasoning.then_ids},
                      {"call",
                       {{"on", asked.call.on},
                        {"in_prompt", asked.call.in_prompt},
                        {"names", asked.call.names},
                        {"middle", asked.call.middle},
                        {"close", asked.call.close}}},
                      {"shown_ids", asked.shown_ids}}},
                    {"result",
                     {{"token_ids", choices[i]->token_ids},
                      {"text", choices[i]->text},
                      {"finish_reason", FinishReasonName(choices[i]->finish_reason)}}}});
  }
  const Json body = Json::parse(request.body, nullptr, false);
  const Json line = {{"id", id},
                     {"path", request.path},
                     {"arrival_us", arrival_us},
                     {"e2e_us", e2e_us},
                     {"body", body.is_discarded() ? Json() : body},
                     {"choices", list}};
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RecordedRequest> ParseRecordLine(std::string_view line, const std::string& place) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(line, place, {.max_bytes = kMaxLineBytes}));
  try {
    RecordedRequest record;
    record.id = json.at("id").get<std::string>();
    record.path = json.at("path").get<std::string>();
    record.body = json.at("body").dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    record.arrival_us = json.at("arrival_us").get<int64_t>();
    record.e2e_us = json.at("e2e_us").get<int64_t>();
    for (const auto& choice : json.at("choices")) record.choices.push_back(ChoiceOf(choice));
    return record;
  } catch (const nlohmann::json::exception& exception) {
    return Corrupt("{}: no record of a request: {}", place, exception.what());
  }
}

Result<std::vector<RecordedRequest>> ReadRecords(const std::string& path) {
  const std::string file = IsDirectory(path) ? path + "/" + kRecordFile : path;
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxRecordBytes));
  std::vector<RecordedRequest> records;
  size_t begin = 0;
  int torn = 0;  // the first such line
  for (int number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    Result<RecordedRequest> record = ParseRecordLine(line, fmt::format("{}:{}", file, number));
    if (!record.ok() && !nlohmann::json::accept(line)) {
      LOG_WARN("{}:{}: left out: the line is torn (the server that wrote it was killed, or its disk was full)", file, number);
      torn = torn == 0 ? number : torn;
      continue;
    }
    RETURN_IF_ERROR(record.status());
    records.push_back(std::move(*record));
  }
  if (records.empty() && torn > 0) return Corrupt("{}:{}: no valid JSON, and no other line has a request", file, torn);
  return records;
}

}  // namespace cachalot
