#include "cli/serve_flags.h"

#include <charconv>
#include <filesystem>

#include "base/file.h"
#include "cli/answer_flags.h"
#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxKeyFileBytes = 1 << 20;
constexpr int32_t kMaxSeconds = 1'000'000;
constexpr int32_t kLargestStep = 512;  // tokens, where nobody says
constexpr int32_t kSmallStep = 128;

void Split(const std::string& text, char separator, std::vector<std::string>* out) {
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    std::string piece = text.substr(begin, end - begin);
    while (!piece.empty() && (piece.back() == ' ' || piece.back() == '\r' || piece.back() == '\t')) piece.pop_back();
    if (!piece.empty()) out->push_back(std::move(piece));
    begin = end + 1;
  }
}

}  // namespace

ServeFlags::ServeFlags() {
  model.options.max_seqs = 8;
  model.options.max_step_tokens = 0;
}

void ServeFlags::Declare(FlagSet* flags) {
  flags->Section("Server");
  flags->String("--host", &server.http.host, "ADDRESS", "address to listen on (default 127.0.0.1)");
  flags->Int("--port", &server.http.port, 0, 65535, "N", "port (default 8080; 0: any free one, told on standard error)");
  flags->String("--config", &config_, "FILE", "flags from a TOML file, by these names; the command line wins");
  flags->Strings("--served-model-name", &served_names_, "NAME", "name of the model in the API; may be given several times");
  flags->String("-a,--alias", &aliases_, "NAME,…", "the same, as a list");
  flags->Strings("--api-key", &keys_, "KEY", "key that clients must send; may be given several times");
  flags->Path("--api-key-file", &key_file_, "FILE", "keys, one a line");
  flags->Path("--ssl-cert-file,--ssl-certfile", &server.http.ssl_cert_file, "FILE",
              "certificate (PEM, those that vouch for it behind it): with it and its key\nthe port speaks HTTPS only");
  flags->Path("--ssl-key-file,--ssl-keyfile", &server.http.ssl_key_file, "FILE", "the certificate's key (PEM, without a passphrase)");
  flags->Strings("--cors-origin,--allowed-origins", &server.cors_origins, "ORIGIN", "page that may use the API from a browser ('*': any)");
  flags->Int("--threads-http", &server.http.num_threads, 1, 64, "N", "threads for connections (default 2)");
  flags->Int("--max-connections", &server.http.max_connections, 1, 1 << 20, "N", "open connections at most (default 4096)");
  flags->Int("--max-body-mib", &body_mib_, 1, 1024, "N", "size of a request's body (default 16)");
  flags->Int("--read-timeout", &read_timeout_s_, 1, kMaxSeconds, "S", "seconds for a request to arrive (default 30)");
  flags->Int("--idle-timeout", &idle_timeout_s_, 1, kMaxSeconds, "S", "seconds that an unused connection stays (default 120)");
  flags->Int("--sse-keepalive-s", &sse_keepalive_s_, 0, kMaxSeconds, "S", "a stream that brings nothing for so long gets a comment (default 30; 0: never)");
  flags->Int("--drain-timeout", &drain_timeout_s_, 0, kMaxSeconds, "S", "seconds that running requests get after SIGTERM (default 30)");
  flags->Int("--request-timeout", &request_timeout_s_, 0, kMaxSeconds, "S", "seconds for a whole answer; what takes longer ends with an error (0: none)");
  flags->Int("--health-timeout", &stall_s_, 1, kMaxSeconds, "S", "a step that takes longer turns /health red (default 60)");
  flags->Section("Batching");
  flags->Int("--max-num-seqs,-np,--parallel", &model.options.max_seqs, 1, 1 << 16, "N", "sequences that run at once (default 8)");
  flags->Int("--max-num-batched-tokens,-b,--batch-size", &model.options.max_step_tokens, 0, 1 << 20, "N",
             "tokens of one step; fewer: tokens of running streams come more evenly\n(0: 512 on a GPU, 128 or a little more on a CPU)");
  flags->Int("--prefill-chunk", &prefill_chunk_, 0, 1 << 20, "N", "tokens by which a prompt advances in a step (0: all of the step's)");
  flags->Choice("--scheduling-policy", &engine.policy, {"fcfs", "priority", "fair"},
                "who goes first: who came first (default), by priority, or fairly\namong API keys");
  flags->Float("--itl-target-ms", &itl_target_ms_, 0, 1e6, "X", "prompts leave running streams room for a token in this time (0: off)");
  flags->Float("--itl-ratio", &itl_ratio_, 0, 1000, "X",
               "without such a time: running streams wait for a token at most X times as long as at the\nmedian, while few prompts wait (0: off; default 2 on a GPU, else off)");
  flags->Switch("--enable-prefix-caching", &prefix_caching_on_, "beginnings of prompts are computed once (the default)");
  flags->Switch("--no-enable-prefix-caching", &prefix_caching_off_, "not so");
  flags->Choice("--kv-policy", &engine.kv_policy, {EvictionPolicyNames().begin(), EvictionPolicyNames().end()},
                "which cached beginnings give way (default lru-k)");
  flags->Ints("--kv-tau", &kv_tau_s_, 1, 10'000'000, "S[,S,S,S]",
              "of lru-k: seconds after which a use counts 1/e, by kv_class of requests (default 600)");
  flags->Int("--kv-tenant-floor", &engine.kv_tenant_floor, 0, 50, "PERCENT",
             "of the KV cache that each API key keeps for what it used last,\nwhatever others bring (default 0)");
  model.DeclareKvTiers(flags);
  flags->Int("--response-cache", &server.response_cache, 0, 1 << 20, "N",
             "keeps so many answers of requests that can have only one (greedy, or\nwith a seed of their own), and gives them again (default 0: none)");
  flags->Choice("--preemption-mode", &preemption_, {"recompute", "swap"},
                "what becomes of a sequence's KV cache when memory runs out: it is\nforgotten (default), or moved to the host (--swap-tokens)");
  flags->Int("--swap-tokens", &model.options.swap_tokens, 0, int64_t{1} << 40, "N", "tokens that the host keeps for preempted sequences");
  flags->Int("--kv-tokens", &model.options.kv_tokens, 0, int64_t{1} << 40, "N",
             "tokens that the KV cache holds, over all sequences\n(0: every sequence can be as long as -c)");
  flags->Int("--block-size", &model.options.block_tokens, 1, 4096, "N", "tokens of a KV block (default 16)");
  flags->Int("--max-waiting", &server.max_waiting, 0, 1 << 20, "N", "requests that may wait; more get 429 (default 1024)");
  flags->Int("-t,--threads", &model.options.num_threads, 0, 1024, "N", "threads that compute (0: physical cores)");
  flags->Section("Answers");
  flags->Choice("--reasoning-format", &reasoning_format_, {"auto", "none"}, "none: <think> stays in the content");
  flags->Choice("--reasoning-fields", &reasoning_fields_, {"both", "reasoning", "reasoning_content"},
                "names under which reasoning is sent (default both)");
  flags->Int("--reasoning-budget", &server.reasoning_budget, -1, INT32_MAX, "N",
             "tokens of reasoning of requests that do not say; then it is ended\n(default -1: any number)");
  DeclareToolCallParser(flags, &tool_call_parser_);
  flags->Section("Watching");
  flags->Choice("--metrics-compat", &metrics_compat_, {"none", "vllm"}, "vllm: /metrics has vLLM's names too");
  flags->String("--request-log", &server.request_log, "FILE", "a JSON line for each request ('-': standard error, the default;\n'': none)");
  flags->String("--step-log", &server.step_log, "FILE", "a JSON line for each step of the engine (default '': none)");
  model.DeclareTrace(flags);
  flags->Path("--record", &server.record_dir, "DIR", "keeps requests and answers for cachalot replay");
  flags->Strings("--inject-fault", &fault_texts_, "POINT:CALLS", "");  // for the soak test
  model.Declare(flags, ModelFlags::kWithoutBatch);
}

Status ServeFlags::Resolve() {
  RETURN_IF_ERROR(model.Resolve());
  server.served_names = served_names_;
  Split(aliases_, ',', &server.served_names);
  server.api_keys = keys_;
  if (!key_file_.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(key_file_, kMaxKeyFileBytes));
    Split(text, '\n', &server.api_keys);
  }
  for (const auto& key : server.api_keys) {
    if (key.empty()) return InvalidArgument("--api-key: an empty key");
  }
  if (!key_file_.empty() && server.api_keys.empty()) return InvalidArgument("--api-key-file {}: there is no key in it", key_file_);
  for (const std::string& text : fault_texts_) {
    const size_t colon = std::min(text.find(':'), text.size());
    int32_t calls = 0;
    const char* end = text.data() + text.size();
    if (colon == text.size() || std::from_chars(text.data() + colon + 1, end, calls).ptr != end || calls < 1) {
      return InvalidArgument("--inject-fault {}: must be like device.op:500", text);
    }
    faults.emplace_back(text.substr(0, colon), calls);
  }
  if (server.http.ssl_cert_file.empty() != server.http.ssl_key_file.empty()) {
    return InvalidArgument("--ssl-cert-file and --ssl-key-file go together");
  }
  std::string name = model.options.dummy;
  if (name.empty()) {
    namespace fs = std::filesystem;
    const fs::path path = fs::path(model.hub.repo.empty() ? model.options.path : model.hub.repo).lexically_normal();
    name = (path.has_filename() ? path : path.parent_path()).filename().string();
    if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  }
  if (!name.empty()) server.default_name = name;
  server.http.max_body_bytes = body_mib_ << 20;
  server.http.read_timeout_ms = read_timeout_s_ * 1000;
  server.http.idle_timeout_ms = idle_timeout_s_ * 1000;
  server.sse_keepalive_ms = sse_keepalive_s_ * 1000;
  server.drain_timeout_ms = drain_timeout_s_ * 1000;
  server.stall_ms = stall_s_ * 1000;
  server.deadline_us = int64_t{request_timeout_s_} * 1'000'000;
  if (prefix_caching_on_ && prefix_caching_off_) {
    return InvalidArgument("--enable-prefix-caching and --no-enable-prefix-caching: only one of them");
  }
  if ((preemption_ == "swap") != (model.options.swap_tokens > 0)) {
    return InvalidArgument("--preemption-mode swap and --swap-tokens N go together");
  }
  engine.preemption = preemption_ == "swap" ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  engine.enable_prefix_caching = !prefix_caching_off_;
  if (kv_tau_s_.size() > engine.lru_k.tau_s.size()) {
    return InvalidArgument("--kv-tau has {} values: at most {}, one for each kv_class", kv_tau_s_.size(), engine.lru_k.tau_s.size());
  }
  for (size_t i = 0; i < engine.lru_k.tau_s.size() && !kv_tau_s_.empty(); ++i) {
    engine.lru_k.tau_s[i] = kv_tau_s_[std::min(i, kv_tau_s_.size() - 1)];
  }
  server.kv_policy = prefix_caching_off_ ? "none" : engine.kv_policy;
  engine.itl_target_ms = itl_target_ms_;
  if (itl_ratio_ > 0 && itl_ratio_ < 1) return InvalidArgument("--itl-ratio {}: at least 1, or 0", itl_ratio_);
  engine.itl_ratio = itl_ratio_;
  // What is not said is chosen once it is known where the model runs (Session::Open).
  engine.max_batch_tokens = model.options.max_step_tokens > 0 ? std::max(model.options.max_step_tokens, model.options.max_seqs) : 0;
  engine.prefill_chunk = prefill_chunk_;
  model.options.max_step_tokens = engine.max_batch_tokens > 0 ? engine.max_batch_tokens : std::max(kLargestStep, model.options.max_seqs + kSmallStep);
  server.vllm_metrics = metrics_compat_ == "vllm";
  server.split_reasoning = reasoning_format_ != "none";
  server.tool_syntax = FindToolSyntax(tool_call_parser_);  // none for "auto"
  server.reasoning_fields = reasoning_fields_ == "both"        ? ReasoningFields::kBoth
                            : reasoning_fields_ == "reasoning" ? ReasoningFields::kReasoning
                                                               : ReasoningFields::kReasoningContent;
  return Status::Ok();
}

}  // namespace cachalot
