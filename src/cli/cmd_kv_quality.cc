// cachalot kv calibrate: the means of a model's keys over a text, for --kv-calibration. cachalot kv report: what a KV type
// costs, predicted layer by layer and measured.
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/kv_compare.h"
#include "cli/model_flags.h"
#include "cli/ppl_run.h"
#include "cli/session.h"
#include "tasks/kv_error_probe.h"
#include "tasks/kv_key_means.h"
#include "tasks/output_check.h"
#include "tasks/token_input.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;

struct QualityFlags {
  ModelFlags model;
  PromptFlags text;
  std::string tokens;
  std::string out;
  std::string against = "bf16";
  int32_t chunks = 0;
  int32_t sample_every = 64;
  float max_kl = 0;
  bool layers_only = false;
  bool json = false;
};

Result<std::vector<PplWindow>> ReadWindows(const FlagSet& set, const QualityFlags& flags, Session& session) {
  std::vector<int32_t> tokens;
  const Tokenizer* tokenizer = session.bundle().tokenizer.get();
  if (!flags.tokens.empty()) {
    ASSIGN_OR_RETURN(tokens, ReadTokenIds(flags.tokens));
  } else {
    ASSIGN_OR_RETURN(tokenizer, session.tokenizer());
    ASSIGN_OR_RETURN(const std::string text, flags.text.Read(set, PromptFlags::Use::kPrompt));
    ASSIGN_OR_RETURN(tokens, tokenizer->Encode(text, {.add_special = true, .parse_special = false}));
  }
  const bool adds_bos = tokenizer != nullptr && tokenizer->add_bos();
  ASSIGN_OR_RETURN(auto windows, CutChunks(tokens, flags.model.options.context, adds_bos ? tokenizer->bos_id() : -1));
  if (flags.chunks > 0 && windows.size() > static_cast<size_t>(flags.chunks)) windows.resize(static_cast<size_t>(flags.chunks));
  return windows;
}

// Where the keys can be seen: an F32 cache on the CPU, whole chunks in a step, MLA by its latents.
ModelOptions Observed(ModelOptions options) {
  options.kv = {.type = "f32"};
  options.device = "cpu";
  options.mla_form = MlaForm::kAbsorbed;
  options.max_seqs = 1;
  options.max_step_tokens = options.context;
  return options;
}

PplProgress ShowProgress(const char* what, const StopOnInterrupt& stop, bool show) {
  return [=, &stop](int64_t done, int64_t total, const PplTotals&) {
    if (show) PrintNote(fmt::format("\r{}: {} of {} chunks   ", what, done, total));
    return !stop.interrupted();
  };
}

// What every type costs every layer, on the first windows.
Result<std::vector<KvTypeErrors>> ProbeTypes(const KeyMeans& means, std::vector<PplWindow> windows, int32_t sample_every, int32_t sink_tokens,
                                             Session* session, const PplProgress& progress) {
  constexpr size_t kProbedChunks = 2;
  if (windows.size() > kProbedChunks) windows.resize(kProbedChunks);
  std::vector<std::unique_ptr<KvErrorProbe>> probes;
  std::vector<AttentionTap*> taps;
  for (const KvFormat& format : KvFormats()) {
    probes.push_back(std::make_unique<KvErrorProbe>(KvErrorProbe::Options{.schemes = {format.scheme},
                                                                          .means = means.Means(),
                                                                          .sample_every = sample_every,
                                                                          .sink_tokens = sink_tokens,
                                                                          .measure = false}));
    taps.push_back(probes.back().get());
  }
  AttentionTaps all(taps);
  const ScopedAttentionTap tap(&all);
  RETURN_IF_ERROR(ScoreWindows(session->engine(), windows, 1, progress).status());
  std::vector<KvTypeErrors> errors;
  for (size_t i = 0; i < probes.size(); ++i) {
    KvTypeErrors& type = errors.emplace_back(KvTypeErrors{KvFormats()[i].name, {}});
    for (const KvErrorProbe::Layer& layer : probes[i]->layers()) {
      type.layers.push_back(layer.output > 0 ? static_cast<float>(layer.predicted() / layer.output) : 0.0f);
    }
  }
  return errors;
}

Status Calibrate(const FlagSet& set, const QualityFlags& flags) {
  KeyMeans means;
  ASSIGN_OR_RETURN(const auto session, Session::Open(Observed(flags.model.options)));
  ASSIGN_OR_RETURN(const auto windows, ReadWindows(set, flags, *session));
  const StopOnInterrupt stop;
  const bool show = ::isatty(STDERR_FILENO) != 0;
  {
    const ScopedAttentionTap tap(&means);
    RETURN_IF_ERROR(ScoreWindows(session->engine(), windows, 1, ShowProgress("calibrate", stop, show)).status());
  }
  const int32_t sample_every = std::min(flags.sample_every, std::max(1, flags.model.options.context / 4));
  const int32_t sink_tokens = SinkTokens(kDefaultSinks, flags.model.options.block_tokens);
  const auto errors = ProbeTypes(means, windows, sample_every, sink_tokens, session.get(), ShowProgress("types", stop, show));
  if (show) PrintNote("\r\x1b[K");
  RETURN_IF_ERROR(errors.status());
  RETURN_IF_ERROR(WriteKvCalibration(flags.out, means, *errors));
  double least = 1, most = 0;
  for (const auto& layer : means.layers()) {
    least = std::min(least, KeyMeans::MeanShare(layer));
    most = std::max(most, KeyMeans::MeanShare(layer));
  }
  PrintNote(fmt::format("{}: key means of {} layers over {} chunks of {} tokens; they are {:.0f} to {:.0f} % of the keys' mean square\n",
                        flags.out, means.layers().size(), windows.size(), flags.model.options.context, 100 * least, 100 * most));
  return Status::Ok();
}

// Each layer's own error in its attention's output, relative to the output.
Result<std::vector<KvErrorProbe::Layer>> ProbeLayers(const FlagSet& set, const QualityFlags& flags, const KvChoice& choice,
                                                     const StopOnInterrupt& stop, bool show) {
  ASSIGN_OR_RETURN(const auto session, Session::Open(Observed(flags.model.options)));
  const ModelSpec& spec = session->bundle().spec;
  KvErrorProbe::Options options = {.schemes = {}, .means = choice.key_means, .sample_every = flags.sample_every, .sink_tokens = choice.types.sink_tokens};
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) options.schemes.push_back(choice.types.Of(spec, layer));
  KvErrorProbe probe(std::move(options));
  const ScopedAttentionTap tap(&probe);
  ASSIGN_OR_RETURN(auto windows, ReadWindows(set, flags, *session));
  constexpr size_t kProbedChunks = 4;  // some hundred outputs of every head
  if (windows.size() > kProbedChunks) windows.resize(kProbedChunks);
  RETURN_IF_ERROR(ScoreWindows(session->engine(), windows, 1, ShowProgress("layers", stop, show)).status());
  return probe.layers();
}

double Relative(double squares, const KvErrorProbe::Layer& layer) { return layer.output > 0 ? std::sqrt(squares / layer.output) : 0; }

std::string LayersText(const std::vector<KvErrorProbe::Layer>& layers) {
  std::string text = "error of each layer's attention, % of its output\nlayer    keys  values   query  predicted  measured  ratio\n";
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& layer = layers[i];
    if (layer.outputs == 0) {
      text += fmt::format("{:>5}   not quantised\n", i);
      continue;
    }
    text += fmt::format("{:>5}{:>8.3f}{:>8.3f}{:>8.3f}{:>11.3f}{:>10.3f}{:>7.3f}\n", i, 100 * Relative(layer.from_keys, layer),
                        100 * Relative(layer.from_values, layer), 100 * Relative(layer.from_query, layer),
                        100 * Relative(layer.predicted(), layer), 100 * Relative(layer.measured, layer),
                        std::sqrt(layer.predicted() / layer.measured));
  }
  return text;
}

Json LayersJson(const std::vector<KvErrorProbe::Layer>& layers) {
  Json list = Json::array();
  for (const auto& layer : layers) {
    list.push_back({{"keys", Relative(layer.from_keys, layer)},
                    {"values", Relative(layer.from_values, layer)},
                    {"query", Relative(layer.from_query, layer)},
                    {"predicted", Relative(layer.predicted(), layer)},
                    {"measured", Relative(layer.measured, layer)}});
  }
  return list;
}

Result<KvComparison> Compare(const FlagSet& set, const QualityFlags& flags, const StopOnInterrupt& stop, bool show) {
  ModelOptions options = flags.model.options;
  options.max_seqs = 1;
  options.max_step_tokens = options.max_logit_rows = std::min(options.context, 128);
  ASSIGN_OR_RETURN(const auto other, Session::Open(options));
  options.kv = {.type = flags.against};
  ASSIGN_OR_RETURN(const auto base, Session::Open(options));
  ASSIGN_OR_RETURN(const auto windows, ReadWindows(set, flags, *base));
  return CompareKv(base.get(), other.get(), windows, [&](int64_t done, int64_t total) {
    if (show) PrintNote(fmt::format("\rcompare: {} of {} chunks   ", done, total));
    return !stop.interrupted();
  });
}

Status Report(const FlagSet& set, const QualityFlags& flags, Output* output) {
  const StopOnInterrupt stop;
  const bool show = ::isatty(STDERR_FILENO) != 0 && !flags.json;
  ASSIGN_OR_RETURN(const ModelBundle plan, PlanModel(flags.model.options));
  if (!plan.kv.types.any_quantised()) {
    return InvalidArgument("--kv-type {}: the report is about a quantised type", flags.model.options.kv.type);
  }
  ASSIGN_OR_RETURN(const auto layers, ProbeLayers(set, flags, plan.kv, stop, show));
  Json json = {{"model", flags.model.Place()}, {"kv", plan.kv.Name()}, {"mix", plan.kv.mix}, {"against", flags.against}, {"context", flags.model.options.context},
               {"layers", LayersJson(layers)}};
  std::string text = fmt::format("{}\n{}", plan.kv.mix.empty() ? flags.model.options.kv.type : plan.kv.mix, LayersText(layers));
  double mean_kl = 0;
  if (!flags.layers_only) {
    ASSIGN_OR_RETURN(const KvComparison c, Compare(set, flags, stop, show));
    mean_kl = c.mean_kl();
    const double base = c.base.perplexity(), other = c.other.perplexity();
    text += fmt::format("against {}, {} positions\nperplexity   {:.4f}, there {:.4f}: {:+.3f} %\nKL           {:.6f} nats on average, {:.4f} at most\n"
                        "same top     {:.2f} %\n",
                        flags.against, c.positions, other, base, 100 * (other / base - 1), mean_kl, c.kl_largest,
                        100 * c.same_top_share());
    json["positions"] = c.positions;
    json["perplexity"] = other;
    json["perplexity_against"] = base;
    json["mean_kl"] = mean_kl;
    json["largest_kl"] = c.kl_largest;
    json["same_top"] = c.same_top_share();
  }
  if (show) PrintNote("\r\x1b[K");
  RETURN_IF_ERROR(output->Write(flags.json ? json.dump(2) + "\n" : text));
  if (flags.max_kl > 0 && mean_kl > flags.max_kl) {
    return Exhausted("--max-kl {}: the mean KL divergence is {:.6f}", flags.max_kl, mean_kl);
  }
  return Status::Ok();
}

int Run(Args args, FlagSet* set, QualityFlags* flags, bool calibrate) {
  Output output;
  if (const Status status = set->Parse(args); !status.ok()) return ExitUsage(status);
  if (set->help_wanted()) return ExitWith(output.Write(set->Help()), output);
  if (flags->model.options.kv.budget != 0 && !set->Given("--kv-type")) flags->model.options.kv.type = "auto";
  if (const Status status = flags->model.Resolve(); !status.ok()) return ExitUsage(status);
  if (flags->tokens.empty()) {
    if (const Status status = flags->text.Resolve(*set); !status.ok()) return ExitUsage(status);
  }
  if (calibrate && flags->out.empty()) return ExitUsage(InvalidArgument("no output given: -o OUT.safetensors"));
  if (flags->layers_only && flags->max_kl > 0) return ExitUsage(InvalidArgument("--max-kl says nothing with --layers-only"));
  if (const int code = flags->model.Fetch(); code != kExitOk) return code;
  if (calibrate) {
    auto inputs = flags->model.Inputs();
    inputs.push_back(flags->tokens.empty() ? flags->text.Input(*set) : TokenFile(flags->tokens));
    if (const Status status = CheckOutput("-o", flags->out, inputs); !status.ok()) return ExitUsage(status);
  }
  const Status status = calibrate ? Calibrate(*set, *flags) : Report(*set, *flags, &output);
  return status.code() == StatusCode::kCancelled && !output.closed() ? kExitInterrupted : ExitWith(status, output);
}

void DeclareCommon(FlagSet* set, QualityFlags* flags) {
  flags->model.options.context = 512;
  flags->text.Declare(set);
  set->String("--tokens", &flags->tokens, "1,2,3|FILE", "instead of a text: ids, FILE.json or FILE.safetensors:NAME");
  set->Int("--chunks", &flags->chunks, 0, INT32_MAX, "N", "only the first N chunks of -c tokens (0: all)");
}

}  // namespace

int KvCalibrateCommand(Args args) {
  QualityFlags flags;
  FlagSet set("kv calibrate -m FILE|FOLDER -f TEXT -o OUT.safetensors",
              "Measures the mean of every channel of the model's keys over a text. With --kv-calibration a quantised KV\n"
              "cache takes it off before it rounds: exactly free, since attention sees differences of keys only. And predicts\n"
              "what every type costs every layer, by which --kv-budget picks types.");
  DeclareCommon(&set, &flags);
  set.Int("--sample-every", &flags.sample_every, 1, 1 << 20, "N", "errors of types: every N-th position is looked at (default 64)");
  set.String("-o,--output-file", &flags.out, "OUT.safetensors", "the file to write");
  flags.model.Declare(&set);
  return Run(args, &set, &flags, /*calibrate=*/true);
}

int KvReportCommand(Args args) {
  QualityFlags flags;
  flags.model.options.kv.type = "k6v8";
  FlagSet set("kv report -m FILE|FOLDER -f TEXT --kv-type TYPE",
              "What a quantised KV cache costs: the error of each layer's attention, predicted from the codes' steps and\n"
              "measured; then perplexity, KL divergence and how often the best token stays the same.");
  DeclareCommon(&set, &flags);
  set.Choice("--against", &flags.against, {"f32", "f16", "bf16"}, "what it is compared with (default bf16)");
  set.Int("--sample-every", &flags.sample_every, 1, 1 << 20, "N", "layers: every N-th position is looked at (default 64)");
  set.Switch("--layers-only", &flags.layers_only, "only the layers' errors");
  set.Float("--max-kl", &flags.max_kl, 0, 1e9, "NATS", "fails when the mean KL divergence is larger (0: never)");
  set.Switch("--json", &flags.json, "as JSON");
  flags.model.Declare(&set);
  return Run(args, &set, &flags, /*calibrate=*/false);
}

}  // namespace cachalot
