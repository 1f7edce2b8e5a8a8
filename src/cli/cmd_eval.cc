// cachalot eval ppl: perplexity of a text, by llama.cpp's protocol or by windows in which every token is
// scored.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "cli/nearest.h"
#include "cli/ppl_run.h"
#include "cli/session.h"
#include "tasks/token_input.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

struct PplFlags {
  ModelFlags model;
  PromptFlags text;
  std::string tokens;
  int32_t window = 0;
  bool bos = false;
  int64_t limit_tokens = 0;
  int32_t parallel = 4;
  bool json = false;
};

Result<std::vector<int32_t>> ReadTokens(const FlagSet& set, const PplFlags& flags, const Session& session) {
  std::vector<int32_t> tokens;
  if (!flags.tokens.empty()) {
    ASSIGN_OR_RETURN(tokens, ReadTokenIds(flags.tokens));
  } else {
    ASSIGN_OR_RETURN(const Tokenizer* tokenizer, session.tokenizer());
    // Chunks are cut from the text as llama.cpp would begin and end it; windows get their BOS later.
    const bool chunks = flags.window == 0;
    ASSIGN_OR_RETURN(const std::string text,
                     flags.text.Read(set, chunks ? PromptFlags::Use::kPrompt : PromptFlags::Use::kExactText));
    ASSIGN_OR_RETURN(tokens, tokenizer->Encode(text, {.add_special = chunks, .parse_special = false}));
  }
  if (flags.limit_tokens > 0 && static_cast<int64_t>(tokens.size()) > flags.limit_tokens) {
    tokens.resize(static_cast<size_t>(flags.limit_tokens));
  }
  return tokens;
}

Status Evaluate(const FlagSet& set, PplFlags* flags, Output* output) {
  const int32_t context = flags->window > 0 ? flags->window : flags->model.options.context;
  flags->model.options.context = context;
  flags->model.options.max_seqs = flags->parallel;
  ASSIGN_OR_RETURN(const auto session, Session::Open(flags->model.options));
  ASSIGN_OR_RETURN(const auto tokens, ReadTokens(set, *flags, *session));
  const Tokenizer* tokenizer = session->bundle().tokenizer.get();
  const int32_t bos = tokenizer == nullptr ? -1 : tokenizer->bos_id();
  const bool adds_bos = tokenizer != nullptr && tokenizer->add_bos();
  ASSIGN_OR_RETURN(const auto windows, flags->window > 0 ? CutWindows(tokens, context, bos)
                                                         : CutChunks(tokens, context, adds_bos ? bos : -1));

  const StopOnInterrupt stop;
  const bool show = ::isatty(STDERR_FILENO) != 0 && !flags->json;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto totals = ScoreWindows(
      session->engine(), windows, flags->parallel, [&](int64_t done, int64_t total, const PplTotals& so_far) {
        if (show) {
          PrintNote(fmt::format("\r{} of {} windows, perplexity {:.4f}, {:.0f} s left   ", done, total,
                                so_far.perplexity(),
                                seconds() / static_cast<double>(done) * static_cast<double>(total - done)));
        }
        return !stop.interrupted();
      });
  if (show) PrintNote("\r\x1b[K");
  RETURN_IF_ERROR(totals.status());

  const double took = seconds();
  const double speed = static_cast<double>(windows.size()) * context / took;
  const double error = totals->nll_error() * totals->perplexity();
  if (flags->json) {
    const nlohmann::ordered_json json = {{"model", flags->model.Place()},
                                         {"protocol", flags->window > 0 ? "windows" : "chunks"},
                                         {"context", context},
                                         {"windows", windows.size()},
                                         {"tokens", totals->count()},
                                         {"nll", totals->mean_nll()},
                                         {"nll_error", totals->nll_error()},
                                         {"perplexity", totals->perplexity()},
                                         {"perplexity_error", error},
                                         {"seconds", took},
                                         {"tokens_per_second", speed}};
    return output->Write(json.dump(2) + "\n");
  }
  return output->Write(
      fmt::format("perplexity {:.4f} +/- {:.4f}\nmean NLL   {:.6f} +/- {:.6f}\n{} tokens scored in {} {} of "
                  "{}, {:.1f} s, {:.0f} tokens/s\n",
                  totals->perplexity(), error, totals->mean_nll(), totals->nll_error(), totals->count(),
                  windows.size(), flags->window > 0 ? "windows" : "chunks", context, took, speed));
}

int PplCommand(Args args) {
  PplFlags flags;
  flags.model.options.context = 512;
  FlagSet set("eval ppl -m FILE|FOLDER -f TEXT -c N",
              "Perplexity of a text. Without --window as llama-perplexity measures it: chunks of N tokens, "
              "the second\n"
              "half of each is scored. With --window N --bos: pieces of N-1 tokens with BOS before each, "
              "every token is\n"
              "scored.");
  flags.text.Declare(&set);
  set.String("--tokens", &flags.tokens, "1,2,3|FILE",
             "instead of a text: ids, FILE.json or FILE.safetensors:NAME");
  set.Int("--window", &flags.window, 2, 1 << 30, "N", "windows of N tokens, BOS counted");
  set.Switch("--bos", &flags.bos, "said with --window: each begins with BOS");
  set.Int("--limit-tokens", &flags.limit_tokens, 0, INT64_MAX, "N", "only the first N tokens (0: all)");
  set.Int("-np,--parallel", &flags.parallel, 1, 1024, "N", "windows computed at the same time (default 4)");
  set.Switch("--json", &flags.json, "as JSON");
  flags.model.Declare(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (flags.bos != (flags.window > 0)) {
    return ExitUsage(InvalidArgument("--window N and --bos belong together: every window begins with BOS"));
  }
  if (flags.window > 0 && set.Given("--ctx-size")) {
    return ExitUsage(InvalidArgument("-c and --window: only one of them"));
  }
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (flags.tokens.empty()) {
    if (const Status status = flags.text.Resolve(set); !status.ok()) return ExitUsage(status);
  }
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  const Status status = Evaluate(set, &flags, &output);
  return status.code() == StatusCode::kCancelled && !output.closed() ? kExitInterrupted
                                                                     : ExitWith(status, output);
}

}  // namespace

int EvalCommand(Args args) {
  const std::string measures[] = {"ppl"};
  if (!args.empty() && args[0] == measures[0]) return PplCommand(args.subspan(1));
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    PrintNote("usage: cachalot eval ppl … (see cachalot eval ppl --help)\n");
    return args.empty() ? kExitUsage : kExitOk;
  }
  return ExitUsage(InvalidArgument("unknown measure '{}'{}", args[0], NearestHint(args[0], measures)));
}

}  // namespace cachalot
