// cachalot bench serve: load on a server with OpenAI's API, and how well it bears it.
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/bench_serve_client.h"
#include "cli/bench_serve_report.h"
#include "cli/bench_serve_workload.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "tasks/output_check.h"

namespace cachalot {
namespace {

struct BenchServeFlags {
  BenchClientOptions client;
  WorkloadOptions work;
  std::string endpoint = "completions";
  std::string slo;
  std::string svg;
  int32_t static_batch = 0;
  int32_t warmup = 0;
  bool json = false;
  bool stop_at_eos = false;
  bool trace_clock = false;
};

std::string Settings(const BenchServeFlags& flags) {
  nlohmann::ordered_json json = {{"base_url", flags.client.base_url},
                                 {"model", flags.client.model},
                                 {"endpoint", flags.endpoint},
                                 {"dataset", flags.work.dataset},
                                 {"num_prompts", flags.work.num_prompts},
                                 {"input_len", flags.work.input_len},
                                 {"output_len", flags.work.output_len},
                                 {"range", flags.work.range},
                                 {"request_rate", flags.work.request_rate},
                                 {"concurrency", flags.client.max_concurrency},
                                 {"static_batch", flags.static_batch},
                                 {"seed", flags.work.seed}};
  if (flags.work.dataset == "shared-prefix") {
    json["prefix_len"] = flags.work.prefix_len;
    json["num_prefixes"] = flags.work.num_prefixes;
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Status Run(BenchServeFlags* flags, Output* output) {
  ASSIGN_OR_RETURN(const ServiceLevel level, ParseServiceLevel(flags->slo));
  flags->client.chat = flags->endpoint == "chat";
  flags->client.ignore_eos = !flags->stop_at_eos;
  flags->client.wave = flags->static_batch;
  ASSIGN_OR_RETURN(std::vector<WorkItem> items, MakeWorkload(flags->work));
  // A trace brings its own times; without them, or with a limit of concurrency alone, everything is due at once.
  if (flags->work.dataset == "trace" && !flags->trace_clock && flags->work.request_rate <= 0) {
    for (auto& item : items) item.start_us = 0;
  }
  const StopOnInterrupt stop;
  if (flags->warmup > 0) {
    std::vector<WorkItem> first(items.begin(), items.begin() + std::min<int64_t>(flags->warmup, static_cast<int64_t>(items.size())));
    for (auto& item : first) item.start_us = 0;
    RETURN_IF_ERROR(RunWorkload(flags->client, first, stop).status());
  }
  ASSIGN_OR_RETURN(const std::vector<RequestTiming> timings, RunWorkload(flags->client, items, stop));
  const ServeReport report = MakeReport(timings, level);
  RETURN_IF_ERROR(output->Write(flags->json ? ReportJson(report, level, Settings(*flags)) : ReportTable(report, level)));
  if (!flags->svg.empty()) {
    const std::string title = fmt::format("{}: {} requests, {:.1f} output tokens/s", flags->client.base_url, report.completed,
                                          report.PerSecond(static_cast<double>(report.output_tokens)));
    RETURN_IF_ERROR(WriteFileAtomically(flags->svg, ReportSvg(report, title)));
  }
  if (report.completed == 0) return Internal("no request was answered: {}", report.first_error);
  return Status::Ok();
}

}  // namespace

int BenchServeCommand(Args args) {
  BenchServeFlags flags;
  flags.client.base_url = "http://127.0.0.1:8080";
  WorkloadOptions& work = flags.work;
  FlagSet set("bench serve --base-url http://127.0.0.1:8080 --concurrency 8",
              "Load on any server with OpenAI's API: times to the first token, between tokens and of whole answers.");
  set.Section("Server");
  set.String("--base-url", &flags.client.base_url, "URL", "where it is (default http://127.0.0.1:8080)");
  set.String("--ca-file", &flags.client.ca_file, "FILE", "of https: certificates to trust beside the system's (PEM)");
  set.String("--model", &flags.client.model, "NAME", "model to ask for (default: none is named)");
  set.String("--api-key", &flags.client.api_key, "KEY", "key to send");
  set.Choice("--endpoint", &flags.endpoint, {"completions", "chat"}, "which API (default completions)");
  set.String("--extra-body", &flags.client.extra_body, "JSON", "fields that every request gets");
  set.Int("--timeout", &flags.client.timeout_s, 1, 1'000'000, "S", "seconds for one request (default 600)");
  set.Section("Load");
  set.Choice("--dataset", &work.dataset, {"random", "shared-prefix", "sharegpt", "trace"}, "what is asked (default random)");
  set.String("--dataset-path", &work.path, "FILE", "of trace (JSON lines, also what serve --record wrote) and sharegpt (JSON;\nwithout: made-up prompts with lengths like ShareGPT's)");
  set.Int("-n,--num-prompts", &work.num_prompts, 1, 100'000'000, "N", "requests (default 100)");
  set.Int("--input-len", &work.input_len, 1, 1 << 20, "N", "words of a prompt, about as many tokens (default 128)");
  set.Int("--output-len", &work.output_len, 1, 1 << 20, "N", "tokens of an answer (default 64)");
  set.Int("--vocab-size", &work.vocab_size, 0, INT32_MAX, "N", "prompts are token ids of a vocabulary of N instead of words, so that\nlengths are exact (completions only)");
  set.Float("--range", &work.range, 0, 1, "X", "lengths vary by this part, up and down (default 0)");
  set.Int("--prefix-len", &work.prefix_len, 1, 1 << 20, "N", "words of the prefix of shared-prefix (default 1024)");
  set.Int("--num-prefixes", &work.num_prefixes, 1, 1 << 20, "N", "different prefixes (default 1)");
  set.Float("--request-rate", &work.request_rate, 0, 1e6, "X", "requests a second, as a Poisson process (0: at once)");
  set.Int("--concurrency,--max-concurrency", &flags.client.max_concurrency, 0, 1 << 20, "N", "requests that run at once (0: no limit)");
  set.Int("--static-batch", &flags.static_batch, 0, 1 << 20, "N", "the old way, to compare with: N at a time, the next N when all are done");
  set.Switch("--trace-clock", &flags.trace_clock, "a trace's requests come at the trace's times");
  set.Float("--speed", &work.speed, 0.001, 1e6, "X", "of the trace's clock (default 1)");
  set.Switch("--stop-at-eos", &flags.stop_at_eos, "answers end where the model would (otherwise at their length)");
  set.Float("--temp,--temperature", &flags.client.temperature, 0, 100, "X", "temperature (default 0)");
  set.Int("-s,--seed", &work.seed, 0, INT32_MAX, "N", "of the load (default 1)");
  set.Int("--warmup", &flags.warmup, 0, 1 << 20, "N", "the first N are sent once before, uncounted");
  set.Section("Report");
  set.String("--slo", &flags.slo, "ttft:MS,itl:MS,e2e:MS", "counts the answers within these times");
  set.Switch("--json", &flags.json, "as JSON");
  set.String("--svg", &flags.svg, "FILE", "draws the distributions");
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (work.dataset == "trace" && work.path.empty()) return ExitUsage(InvalidArgument("--dataset trace needs --dataset-path FILE"));
  if (work.dataset != "trace" && work.dataset != "sharegpt" && !work.path.empty()) {
    return ExitUsage(InvalidArgument("--dataset {} has no file", work.dataset));
  }
  if (work.vocab_size > 0 && (work.vocab_size < 8 || flags.endpoint == "chat")) {
    return ExitUsage(InvalidArgument("--vocab-size {}: at least 8, and --endpoint completions", work.vocab_size));
  }
  if (!flags.svg.empty()) {
    const std::string inputs[] = {work.path};
    if (const Status status = CheckOutput("--svg", flags.svg, inputs); !status.ok()) return ExitUsage(status);
  }
  const Status status = Run(&flags, &output);
  return status.code() == StatusCode::kCancelled && !output.closed() ? kExitInterrupted : ExitWith(status, output);
}

}  // namespace cachalot
