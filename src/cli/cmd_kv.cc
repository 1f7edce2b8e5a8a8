// cachalot kv: what concerns the KV cache. kv simulate: cache policies on recorded traffic, without a model.
#include "base/file.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/nearest.h"
#include "tasks/kv_curves.h"
#include "tasks/kv_simulate.h"
#include "tasks/output_check.h"

namespace cachalot {
namespace {

struct SimulateFlags {
  std::string trace;
  std::string policy = "all";
  std::vector<int32_t> blocks;
  float tau_s = 600;
  KvTraceOptions reading;
  std::string svg, csv;
};

Status Simulate(const SimulateFlags& flags, const StopOnInterrupt& stop, Output* output) {
  LruKOptions lru_k;
  lru_k.tau_s.fill(flags.tau_s);
  ASSIGN_OR_RETURN(const KvTrace trace, ReadKvTrace(flags.trace, flags.reading));
  std::vector<KvSimulation> results;
  for (const std::string& policy : SimulatedPolicies()) {
    if (flags.policy != "all" && flags.policy != policy) continue;
    for (const int32_t num_blocks : flags.blocks) {
      if (stop.interrupted()) return Status(StatusCode::kCancelled, "interrupted");
      ASSIGN_OR_RETURN(KvSimulation result, SimulateKv(trace, policy, num_blocks, lru_k));
      results.push_back(std::move(result));
    }
  }
  if (!flags.csv.empty()) RETURN_IF_ERROR(WriteFileAtomically(flags.csv, CurvesCsv(results)));
  if (!flags.svg.empty()) {
    const std::string name = flags.trace.substr(flags.trace.find_last_of('/') + 1);
    RETURN_IF_ERROR(WriteFileAtomically(flags.svg, CurvesSvg(results, "KV cache policies on " + name)));
  }
  return output->Write(fmt::format("{} requests, {} blocks asked for, {} different\n{}",
                                   trace.requests.size(), trace.num_lookups, trace.num_distinct,
                                   CurvesTable(results)));
}

int SimulateCommand(Args args) {
  SimulateFlags flags;
  FlagSet set(
      "kv simulate --trace FILE|FOLDER --blocks N,N,…",
      "Strict prefix hit ratios of cache policies on recorded requests, which need no model: Mooncake's\n"
      "traces, or what serve --record wrote.");
  std::vector<std::string> policies = SimulatedPolicies();
  policies.insert(policies.begin(), "all");
  set.String("--trace", &flags.trace, "FILE", "the requests");
  set.Choice("--policy", &flags.policy, policies, "which policy (default all); belady knows the future");
  set.Ints("--blocks", &flags.blocks, 1, 1 << 24, "N,N,…",
           "blocks that the cache holds; several sizes make a curve");
  set.Float("--tau", &flags.tau_s, 1, 1e7, "S",
            "of lru-k: seconds after which a use counts 1/e (default 600)");
  set.Int("--block-size", &flags.reading.block_tokens, 1, 4096, "N",
          "tokens of a block, for records (default 16)");
  set.Int("--limit-requests", &flags.reading.max_requests, 0, INT64_MAX, "N",
          "only the first N requests (0: all)");
  set.String("--csv", &flags.csv, "FILE", "writes the results as CSV");
  set.String("--svg", &flags.svg, "FILE", "draws the miss-ratio curves");
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (flags.trace.empty()) return ExitUsage(InvalidArgument("--trace FILE is needed"));
  if (flags.blocks.empty())
    return ExitUsage(InvalidArgument("--blocks N,N,… is needed: the sizes of the cache"));
  const std::string inputs[] = {flags.trace};
  for (const auto& [flag, path] : {std::pair{"--csv", flags.csv}, std::pair{"--svg", flags.svg}}) {
    if (path.empty()) continue;
    if (const Status status = CheckOutput(flag, path, inputs); !status.ok()) return ExitUsage(status);
  }
  const StopOnInterrupt stop;
  const Status status = Simulate(flags, stop, &output);
  return status.code() == StatusCode::kCancelled && !output.closed() ? kExitInterrupted
                                                                     : ExitWith(status, output);
}

}  // namespace

int KvCommand(Args args) {
  const std::string tasks[] = {"simulate", "calibrate", "report"};
  if (!args.empty() && args[0] == tasks[0]) return SimulateCommand(args.subspan(1));
  if (!args.empty() && args[0] == tasks[1]) return KvCalibrateCommand(args.subspan(1));
  if (!args.empty() && args[0] == tasks[2]) return KvReportCommand(args.subspan(1));
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    PrintNote("usage: cachalot kv simulate|calibrate|report … (see cachalot kv simulate --help, …)\n");
    return args.empty() ? kExitUsage : kExitOk;
  }
  return ExitUsage(InvalidArgument("unknown task '{}'{}", args[0], NearestHint(args[0], tasks)));
}

}  // namespace cachalot
