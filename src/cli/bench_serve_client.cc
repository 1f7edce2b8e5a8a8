#include "cli/bench_serve_client.h"

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "formats/text.h"

namespace cachalot {
namespace {

using Json = nlohmann::json;

class BenchListener final : public LoadListener {
 public:
  BenchListener(const BenchClientOptions& options, const std::vector<WorkItem>& items, Json extra, const StopOnInterrupt& stop)
      : options_(options), items_(items), extra_(std::move(extra)), stop_(stop), timings_(items.size()), pending_(items.size()) {}

  std::optional<LoadRequest> Next(int64_t index) override {
    if (index >= static_cast<int64_t>(items_.size())) return std::nullopt;
    const WorkItem& item = items_[static_cast<size_t>(index)];
    return LoadRequest{item.start_us, Body(item), item.path};
  }
  void OnSent(int64_t index, int64_t now_us) override {
    RequestTiming& timing = timings_[static_cast<size_t>(index)];
    timing = {};  // a second try begins anew
    timing.sent_us = now_us;
    pending_[static_cast<size_t>(index)].clear();
  }
  void OnBody(int64_t index, int64_t now_us, std::string_view piece) override {
    std::string& pending = pending_[static_cast<size_t>(index)];
    pending += piece;
    size_t begin = 0;
    for (size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
      OnLine(&timings_[static_cast<size_t>(index)], now_us, std::string_view(pending).substr(begin, end - begin));
    }
    pending.erase(0, begin);
  }
  void OnEnd(int64_t index, int64_t now_us, int status, const std::string& error) override {
    RequestTiming& timing = timings_[static_cast<size_t>(index)];
    timing.end_us = now_us;
    timing.status = status;
    if (timing.error.empty()) timing.error = error;
    if (error.empty() && status != 200) timing.error = fmt::format("HTTP {}: {}", status, Printable(pending_[static_cast<size_t>(index)], 200));
    if (timing.error.empty() && !timing.ended) timing.error = "the answer ended without a finish_reason or [DONE]";
    if (timing.output_tokens == 0) timing.output_tokens = static_cast<int64_t>(timing.token_us.size());
    pending_[static_cast<size_t>(index)] = {};
  }
  bool stopped() const override { return stop_.interrupted(); }

  std::vector<RequestTiming> TakeTimings() { return std::move(timings_); }

 private:
  std::string Body(const WorkItem& item) const {
    Json body;
    if (!item.body.empty()) {
      body = Json::parse(item.body, nullptr, false);
      if (!body.is_object()) body = Json::object();
      body["stream"] = true;
      body["stream_options"] = {{"include_usage", true}};
    } else {
      body = {{"stream", true},
              {"stream_options", {{"include_usage", true}}},
              {"temperature", options_.temperature},
              {"max_tokens", item.output_len},
              {"ignore_eos", options_.ignore_eos}};
      if (options_.chat) body["messages"] = Json::array({{{"role", "user"}, {"content", item.prompt}}});
      else if (!item.prompt_ids.empty()) body["prompt"] = item.prompt_ids;
      else body["prompt"] = item.prompt;
    }
    if (!options_.model.empty()) body["model"] = options_.model;
    body.update(extra_);
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  static void OnLine(RequestTiming* timing, int64_t now_us, std::string_view line) {
    constexpr std::string_view kData = "data:";
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with(kData)) return;
    line.remove_prefix(kData.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (line == "[DONE]") {
      timing->ended = true;
      return;
    }
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object()) {
      timing->error = "an event that is no JSON object";
      return;
    }
    if (const auto error = event.find("error"); error != event.end()) {
      timing->error = JsonPreview(error->is_object() && error->contains("message") ? (*error)["message"] : *error, 200);
    }
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      timing->prompt_tokens = usage->value("prompt_tokens", int64_t{0});
      timing->output_tokens = usage->value("completion_tokens", int64_t{0});
      const auto details = usage->find("prompt_tokens_details");
      if (details != usage->end() && details->is_object()) timing->cached_tokens = details->value("cached_tokens", int64_t{0});
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    const Json& choice = (*choices)[0];
    if (HasText(choice)) timing->token_us.push_back(now_us);
    if (choice.is_object() && choice.contains("finish_reason") && choice["finish_reason"].is_string()) timing->ended = true;
  }

  static bool HasText(const Json& choice) {
    if (!choice.is_object()) return false;
    const auto filled = [](const Json& object, const char* name) {
      const auto found = object.find(name);
      return found != object.end() && found->is_string() && !found->get_ref<const std::string&>().empty();
    };
    if (filled(choice, "text")) return true;
    const auto delta = choice.find("delta");
    return delta != choice.end() && delta->is_object() &&
           (filled(*delta, "content") || filled(*delta, "reasoning_content") || filled(*delta, "reasoning"));
  }

  const BenchClientOptions& options_;
  const std::vector<WorkItem>& items_;
  const Json extra_;
  const StopOnInterrupt& stop_;
  std::vector<RequestTiming> timings_;
  std::vector<std::string> pending_;
};

}  // namespace

Result<std::vector<RequestTiming>> RunWorkload(const BenchClientOptions& options, const std::vector<WorkItem>& items,
                                               const StopOnInterrupt& stop) {
  HttpLoadOptions load;
  ASSIGN_OR_RETURN(load.url, ParseHttpUrl(options.base_url));
  if (load.url.path.ends_with("/v1")) load.url.path.resize(load.url.path.size() - 3);
  load.target = options.chat ? "/v1/chat/completions" : "/v1/completions";
  if (!options.api_key.empty()) load.headers.emplace_back("Authorization", "Bearer " + options.api_key);
  load.max_concurrency = options.max_concurrency;
  load.wave = options.wave;
  load.ca_file = options.ca_file;
  load.timeout_ms = options.timeout_s * 1000;
  Json extra = Json::object();
  if (!options.extra_body.empty()) {
    ASSIGN_OR_RETURN(extra, ParseJson(options.extra_body, "--extra-body"));
    if (!extra.is_object()) return InvalidArgument("--extra-body: must be a JSON object");
  }
  BenchListener listener(options, items, std::move(extra), stop);
  RETURN_IF_ERROR(RunLoad(load, &listener));
  if (stop.interrupted()) return Cancelled("interrupted");
  return listener.TakeTimings();
}

}  // namespace cachalot
