// cachalot bench: speed of prompts and of generation over lists of sizes, threads and batches, against the
// memory bandwidth that the same threads reach in the same run.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/available_memory.h"
#include "base/cpu_features.h"
#include "cli/bench_beside.h"
#include "cli/bench_drafts.h"
#include "cli/bench_run.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "cli/session.h"
#include "runtime/cuda_runtime.h"
#include "runtime/runtime.h"
#include "spec/draft_source.h"
#include "tasks/read_bandwidth.h"
#include "tasks/spread.h"

namespace cachalot {
namespace {

constexpr int32_t kGpuStepTokens = 8192;
constexpr int32_t kBesideTokens = 4096;  // that a stream of --beside generates, at most

struct BenchFlags {
  ModelFlags model;
  std::vector<int32_t> prompts = {512};
  std::vector<int32_t> generates = {128};
  std::vector<int32_t> threads = {0};
  std::vector<int32_t> batches = {1};
  int32_t depth = 0;
  int32_t step_tokens = 0;  // 0: 512, and 8192 on a GPU
  int32_t repeats = 5;
  std::vector<std::string> tunes;  // settings of the GPU's kernels to compare
  bool compare_drafts = false;
  bool pairs = false;
  bool beside = false;
  bool json = false;
};

// Everything that is measured with one number of threads.
struct ThreadSetup {
  int32_t threads = 0;
  std::unique_ptr<Session> session;
  double roof = 0.0;  // bytes a second
};

struct Row {
  BenchCase bench;
  ThreadSetup* setup = nullptr;
  std::vector<BenchSample> samples;

  std::string test() const {
    if (bench.prompt > 0) return fmt::format("pp{}", bench.prompt);
    return bench.depth > 0 ? fmt::format("tg{}@{}", bench.generate, bench.depth) : fmt::format("tg{}", bench.generate);
  }
  template <typename Fn>
  Spread Over(Fn value) const {
    std::vector<double> values;
    for (const auto& sample : samples) values.push_back(value(sample));
    return SpreadOf(std::move(values));
  }
  Spread Speed() const {
    return Over([](const BenchSample& sample) { return sample.tokens_per_second(); });
  }
  double Moved() const {
    return Over([](const BenchSample& sample) { return sample.bytes_per_second(); }).median;
  }
};

// Large against every cache, small against the memory that is free.
int64_t RoofBytes() {
  return std::clamp<int64_t>(AvailableMemoryBytes() / 8, int64_t{64} << 20, int64_t{1} << 30);
}

// Bytes a second at which the memory that the weights lie in can be read.
Result<double> Roof(ModelBundle* bundle) {
  if (bundle->cuda_runtime != nullptr) return bundle->cuda_runtime->ReadBandwidth();
  return MeasureReadBandwidth(bundle->cpu_runtime->pool(), RoofBytes(), 3);
}

Result<std::vector<ThreadSetup>> OpenAll(const BenchFlags& flags) {
  ModelOptions options = flags.model.options;
  const auto largest = [](const std::vector<int32_t>& list) {
    return *std::max_element(list.begin(), list.end());
  };
  options.max_seqs = largest(flags.batches) + (flags.beside ? 2 : 0);
  if (flags.step_tokens > 0) options.max_step_tokens = flags.step_tokens;
  else if (options.device != "cpu") options.max_step_tokens = kGpuStepTokens;
  if (options.context == 0 && flags.beside) options.context = std::max(flags.prompts[0], flags.depth + kBesideTokens) + 1;
  if (options.context == 0) {
    const BenchCase longest = {.batch = options.max_seqs, .depth = flags.depth};
    // With drafts some sequences run ahead of the others.
    const int32_t ahead = options.drafts == DraftKind::kNone ? 0 : largest(flags.generates) + options.max_drafts * 8;
    const int32_t tuned = static_cast<int32_t>(flags.tunes.size()) * flags.repeats * (largest(flags.generates) + kTuneWarmUp);
    const int32_t generation =
        flags.depth + std::max(largest(flags.generates), tuned) + ahead + WarmUpSteps(longest, options.max_step_tokens) + 8;
    options.context = std::max(largest(flags.prompts) + 1, largest(flags.generates) > 0 ? generation : 1);
  }
  std::vector<ThreadSetup> setups;
  for (const int32_t threads : flags.threads) {
    ThreadSetup setup;
    setup.threads = options.num_threads = threads > 0 ? threads : NumPhysicalCores();
    ASSIGN_OR_RETURN(setup.session, Session::Open(options));
    ASSIGN_OR_RETURN(setup.roof, Roof(&setup.session->bundle()));
    setups.push_back(std::move(setup));
  }
  return setups;
}

std::vector<Row> MakeRows(const BenchFlags& flags, std::vector<ThreadSetup>* setups) {
  std::vector<Row> rows;
  const auto add = [&](ThreadSetup* setup, BenchCase bench) {
    bench.threads = setup->threads;
    if (bench.prompt > 0 || bench.generate > 0) rows.push_back({bench, setup, {}});
  };
  for (auto& setup : *setups) {
    for (const int32_t batch : flags.batches) {
      for (const int32_t prompt : flags.prompts) add(&setup, {.batch = batch, .prompt = prompt});
      for (const int32_t generate : flags.generates) add(&setup, {.batch = batch, .generate = generate, .depth = flags.depth});
    }
  }
  return rows;
}

std::string Table(const BenchFlags& flags, const std::vector<Row>& rows) {
  std::string text =
      fmt::format("{}\n{:>7} {:>6} {:>8} {:>12} {:>23} {:>8} {:>8} {:>8}\n", flags.model.Place(), "threads",
                  "batch", "test", "tokens/s", "min .. max", "spread", "GB/s", "of roof");
  for (const auto& row : rows) {
    const Spread speed = row.Speed();
    text += fmt::format("{:>7} {:>6} {:>8} {:>12.2f} {:>23} {:>7.1f}% {:>8.2f} {:>7.1f}%\n",
                        row.bench.threads, row.bench.batch, row.test(), speed.median,
                        fmt::format("{:.2f} .. {:.2f}", speed.min, speed.max), 100 * speed.iqr / speed.median,
                        row.Moved() / 1e9, 100 * row.Moved() / row.setup->roof);
  }
  for (const auto& row : rows) {
    if (&row == &rows[0] || row.setup != (&row - 1)->setup) {
      text += fmt::format("roof with {} thread{}: {:.2f} GB/s read\n", row.bench.threads,
                          row.bench.threads == 1 ? "" : "s", row.setup->roof / 1e9);
    }
  }
  if (const ModelOptions& options = flags.model.options; options.drafts != DraftKind::kNone) {
    for (const auto& row : rows) {
      const BenchSample& last = row.samples.back();
      if (row.bench.prompt > 0) continue;
      text += fmt::format("drafts '{}', {} {}: batch {}, {}: {} made, {:.1f} % accepted, {:.2f} tokens a step\n", DraftKindName(options.drafts),
                          options.adaptive_drafts ? "at most" : "always", options.max_drafts, row.bench.batch, row.test(),
                          last.draft_tokens, 100 * last.acceptance(), last.tokens_per_step());
    }
    if (options.draft_accept_fixed >= 0) {
      text += fmt::format("SYNTHETIC acceptance of {}: such speeds say what drafting would bring, not what it brings\n", options.draft_accept_fixed);
    }
  }
  return text;
}

std::string JsonText(const BenchFlags& flags, const std::vector<Row>& rows) {
  using Json = nlohmann::ordered_json;
  Json results = Json::array();
  for (const auto& row : rows) {
    const Spread speed = row.Speed();
    Json seconds = Json::array();
    for (const auto& sample : row.samples) seconds.push_back(sample.seconds);
    results.push_back({{"test", row.test()},
                       {"threads", row.bench.threads},
                       {"batch", row.bench.batch},
                       {"prompt", row.bench.prompt},
                       {"generate", row.bench.generate},
                       {"tokens_per_second", speed.median},
                       {"tokens_per_second_min", speed.min},
                       {"tokens_per_second_max", speed.max},
                       {"tokens_per_second_iqr", speed.iqr},
                       {"seconds", seconds},
                       {"moved_bytes", row.samples.back().moved_bytes},
                       {"draft_tokens", row.samples.back().draft_tokens},
                       {"accepted_tokens", row.samples.back().accepted_tokens},
                       {"tokens_per_step", row.samples.back().tokens_per_step()},
                       {"bytes_per_second", row.Moved()},
                       {"roof_bytes_per_second", row.setup->roof},
                       {"of_roof", row.Moved() / row.setup->roof}});
  }
  const ModelBundle& bundle = rows[0].setup->session->bundle();
  const RuntimeOptions& runtime = bundle.cuda_runtime != nullptr ? bundle.cuda_runtime->options().base : bundle.cpu_runtime->options();
  const Json json = {{"model", flags.model.Place()},
                     {"version", CACHALOT_VERSION},
                     {"device", bundle.cuda_runtime != nullptr ? bundle.cuda_runtime->device().name : "cpu"},
                     {"gpu_layers", bundle.memory.gpu_layers},
                     {"isa", IsaName(runtime.isa)},
                     {"kv_type", bundle.kv.Name()},
                     {"context", runtime.max_context},
                     {"repeats", flags.repeats},
                     {"drafts", DraftKindName(flags.model.options.drafts)},
                     {"synthetic_acceptance", flags.model.options.draft_accept_fixed >= 0},
                     {"results", results}};
  return json.dump(2) + "\n";
}

// Prompts and generation under each of the settings, as a table of batches.
Status CompareTunes(const BenchFlags& flags, const std::vector<Row>& rows, Output* output) {
  const StopOnInterrupt stop;
  std::string text = fmt::format("{}\n{:>6} {:>8} {:>10} {:>23} {:>10} {:>8}  {}\n", flags.model.Place(), "batch", "test", "tokens/s", "min .. max", "us a token", "ratio", "settings");
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    ASSIGN_OR_RETURN(const auto samples, MeasureTunes(*row.setup->session, row.bench, flags.tunes, flags.repeats, stop));
    double first = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      const Row of_setting = {row.bench, row.setup, samples[i]};
      const Spread speed = of_setting.Speed();
      if (i == 0) first = speed.median;
      const double token_us = 1e6 * row.bench.batch / speed.median;  // of a sequence
      text += fmt::format("{:>6} {:>8} {:>10.1f} {:>23} {:>10.1f} {:>8.3f}  {}\n", row.bench.batch, row.test(), speed.median,
                          fmt::format("{:.1f} .. {:.1f}", speed.min, speed.max), token_us, speed.median / first, flags.tunes[i]);
      results.push_back({{"settings", flags.tunes[i]},
                         {"test", row.test()},
                         {"batch", row.bench.batch},
                         {"tokens_per_second", speed.median},
                         {"tokens_per_second_min", speed.min},
                         {"tokens_per_second_max", speed.max},
                         {"token_us", token_us}});
    }
  }
  const nlohmann::ordered_json json = {{"model", flags.model.Place()}, {"version", CACHALOT_VERSION}, {"repeats", flags.repeats}, {"results", results}};
  return output->Write(flags.json ? json.dump(2) + "\n" : text);
}

// Generation of one setup, whose engines get all of its batches in turn.
struct GenerationRows {
  std::vector<const Row*> rows;
  std::vector<BenchCase> cases;
  std::vector<std::string> tests;
};

std::vector<GenerationRows> BySetup(const std::vector<Row>& rows) {
  std::vector<GenerationRows> groups;
  for (const Row& row : rows) {
    if (row.bench.prompt > 0) continue;
    if (groups.empty() || groups.back().rows[0]->setup != row.setup) groups.emplace_back();
    groups.back().rows.push_back(&row);
    groups.back().cases.push_back(row.bench);
    groups.back().tests.push_back(row.test());
  }
  return groups;
}

Status CompareDraftPairs(const BenchFlags& flags, const std::vector<Row>& rows, Output* output) {
  const StopOnInterrupt stop;
  std::string text = flags.model.Place() + "\n" + DraftPairsHead();
  for (const GenerationRows& group : BySetup(rows)) {
    ASSIGN_OR_RETURN(const std::string lines, CompareDraftPairs(*group.rows[0]->setup->session, group.cases, group.tests,
                                                                flags.model.options.max_drafts, flags.repeats, stop));
    text += lines;
  }
  return output->Write(text);
}

// Generation without drafts, with one and with all of them always, and with as many as pay.
Status CompareDrafts(const BenchFlags& flags, const std::vector<Row>& rows, Output* output) {
  const StopOnInterrupt stop;
  const int32_t most = flags.model.options.max_drafts;
  std::vector<DraftDepth> depths = {{0, false}, {1, true}, {most, true}, {most, false}};
  if (most == 1) depths.erase(depths.begin() + 2);
  std::string text = fmt::format("{}\n{:>7} {:>6} {:>8} {:>12} {:>23} {:>8} {:>9} {:>8}  {}\n", flags.model.Place(), "threads", "batch",
                                 "test", "tokens/s", "min .. max", "ratio", "accepted", "a step", "drafts");
  for (const GenerationRows& group : BySetup(rows)) {
    ASSIGN_OR_RETURN(const auto samples, MeasureDrafts(*group.rows[0]->setup->session, group.cases, depths, flags.repeats, stop));
    for (size_t r = 0; r < group.rows.size(); ++r) {
      const Row& row = *group.rows[r];
      double none = 0;
      for (size_t i = 0; i < depths.size(); ++i) {
        const Row of_depth = {row.bench, row.setup, samples[r][i]};
        const Spread speed = of_depth.Speed();
        if (i == 0) none = speed.median;
        const BenchSample& last = of_depth.samples.back();
        text += fmt::format("{:>7} {:>6} {:>8} {:>12.2f} {:>23} {:>8.3f} {:>8.1f}% {:>8.2f}  {}\n", row.bench.threads, row.bench.batch,
                            row.test(), speed.median, fmt::format("{:.2f} .. {:.2f}", speed.min, speed.max), speed.median / none,
                            100 * last.acceptance(), last.tokens_per_step(),
                            depths[i].most == 0 ? "none" : fmt::format("{} {}", depths[i].always ? "always" : "at most", depths[i].most));
      }
    }
  }
  return output->Write(text);
}

Status CompareBeside(const BenchFlags& flags, Session* session, Output* output) {
  ModelOptions options = flags.model.options;
  options.max_seqs = 2;
  options.max_step_tokens = flags.step_tokens > 0 ? flags.step_tokens : kGpuStepTokens;
  options.context = flags.prompts[0] + 1;
  ASSIGN_OR_RETURN(const auto prompts, Session::Open(options));
  const StopOnInterrupt stop;
  RETURN_IF_ERROR(output->Write(flags.model.Place() + "\n"));
  return MeasureBeside(*session, *prompts, {.batch = flags.batches[0], .depth = flags.depth, .prompt = flags.prompts[0]}, stop,
                       [output](const std::string& line) { return output->Write(line); });
}

Status Bench(const BenchFlags& flags, Output* output) {
  if (flags.compare_drafts && flags.model.options.drafts == DraftKind::kNone) return InvalidArgument("--compare-drafts says nothing without --spec");
  const bool one_case = flags.prompts.size() == 1 && flags.prompts[0] > 0 && flags.batches.size() == 1 && flags.threads.size() == 1;
  if (flags.beside && !one_case) return InvalidArgument("--beside takes one -p, above 0, one -b and one -t");
  if (flags.beside && (flags.compare_drafts || !flags.tunes.empty() || flags.json)) return InvalidArgument("--beside goes alone: not with --gpu-tune, --compare-drafts or --json");
  if (flags.pairs && !flags.compare_drafts) return InvalidArgument("--pairs says nothing without --compare-drafts");
  if (flags.json && flags.compare_drafts) return InvalidArgument("--json says nothing with --compare-drafts: its table is text");
  if (!flags.model.options.trace_streams.empty() && flags.threads.size() > 1) return InvalidArgument("--trace-streams is of one model, and -t has {} numbers", flags.threads.size());
  ASSIGN_OR_RETURN(auto setups, OpenAll(flags));
  std::vector<Row> rows = MakeRows(flags, &setups);
  if (flags.beside) return CompareBeside(flags, setups[0].session.get(), output);
  if (flags.pairs) return CompareDraftPairs(flags, rows, output);
  if (flags.compare_drafts) return CompareDrafts(flags, rows, output);
  if (!flags.tunes.empty()) return CompareTunes(flags, rows, output);
  const StopOnInterrupt stop;
  const bool show = ::isatty(STDERR_FILENO) != 0;
  // Interleaved: what the machine does meanwhile meets every row alike. Round 0 only warms up.
  for (int32_t round = 0; round <= flags.repeats; ++round) {
    for (auto& row : rows) {
      if (show)
        PrintNote(fmt::format("\rround {} of {}: {} threads, batch {}, {}   ", round, flags.repeats,
                              row.bench.threads, row.bench.batch, row.test()));
      ASSIGN_OR_RETURN(const BenchSample sample, Measure(*row.setup->session, row.bench, stop));
      if (round > 0) row.samples.push_back(sample);
    }
  }
  if (show) PrintNote("\r\x1b[K");
  return output->Write(flags.json ? JsonText(flags, rows) : Table(flags, rows));
}

}  // namespace

int BenchCommand(Args args) {
  if (!args.empty() && args[0] == "serve") return BenchServeCommand(args.subspan(1));
  BenchFlags flags;
  FlagSet set("bench -m FILE|FOLDER -p 512 -n 128 -t 1,2 -b 1,8",
              "Speed of prompts (pp) and of generation (tg), for every combination of the lists.");
  set.Ints("-p,--prompt,--n-prompt", &flags.prompts, 0, 1 << 24, "N,…",
           "lengths of prompts (default 512; 0: none)");
  set.Ints("-n,--n-predict,--n-gen", &flags.generates, 0, 1 << 24, "N,…",
           "tokens to generate (default 128; 0: none)");
  set.Ints("-t,--threads", &flags.threads, 0, 1024, "N,…", "threads (0: physical cores)");
  set.Ints("-b,--batch", &flags.batches, 1, 4096, "N,…", "sequences in one forward (default 1)");
  set.Int("-d,--n-depth", &flags.depth, 0, 1 << 24, "N", "tokens in the cache before generation (default 0)");
  set.Int("-ub,--step-tokens", &flags.step_tokens, 1, 1 << 20, "N",
          "tokens in one step at most (default 512, on a GPU 8192)");
  set.Int("-r,--repeats", &flags.repeats, 1, 10000, "N", "repeats, interleaved (default 5)");
  set.Strings("--gpu-tune", &flags.tunes, "KEY=VALUE,…",
              "settings of the GPU's kernels to compare with each other, once for each\n('-': the usual ones; keys: docs/gpu-tuning.md)");
  set.Switch("--compare-drafts", &flags.compare_drafts,
             "generation without drafts, with one and with --draft-max always, and\nwith as many as pay, in turn (with --spec)");
  set.Switch("--pairs", &flags.pairs,
             "of --compare-drafts only none and as many as pay, compared in pairs\n(-n 32 -r 50), also by processor time");
  set.Switch("--beside", &flags.beside,
             "-b sequences at -d tokens generate, while prompts of -p tokens are\ncomputed: in the same steps, on a second stream, with SMs parted");
  set.Switch("--json", &flags.json, "as JSON");
  flags.model.Declare(&set, ModelFlags::kWithoutBatch);
  flags.model.DeclareTrace(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  const auto all_zero = [](const std::vector<int32_t>& list) {
    return std::all_of(list.begin(), list.end(), [](int32_t n) { return n == 0; });
  };
  if (all_zero(flags.prompts) && all_zero(flags.generates)) {
    return ExitUsage(InvalidArgument("nothing to measure: -p and -n are all 0"));
  }
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  const Status status = Bench(flags, &output);
  return status.code() == StatusCode::kCancelled && !output.closed() ? kExitInterrupted
                                                                     : ExitWith(status, output);
}

}  // namespace cachalot
