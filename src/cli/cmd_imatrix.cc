// cachalot imatrix: an importance matrix from a text, for quantize --imatrix.
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "cli/ppl_run.h"
#include "cli/session.h"
#include "tasks/importance_collector.h"
#include "tasks/output_check.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

struct ImatrixFlags {
  ModelFlags model;
  PromptFlags text;
  std::string out;
  int32_t chunks = 0;
  bool parse_special = false;
};

Status Collect(const FlagSet& set, ImatrixFlags* flags) {
  ModelOptions& options = flags->model.options;
  options.device = "cpu";                  // where the products can be seen
  options.mla_form = MlaForm::kAbsorbed;   // which multiplies with k_b and v_b as the file has them
  options.max_seqs = 4;
  ImportanceCollector collector;
  const ScopedMatmulTap tap(&collector);
  ASSIGN_OR_RETURN(const auto session, Session::Open(options));
  ASSIGN_OR_RETURN(const Tokenizer* tokenizer, session->tokenizer());
  ASSIGN_OR_RETURN(const std::string text, flags->text.Read(set, PromptFlags::Use::kPrompt));
  ASSIGN_OR_RETURN(const auto tokens,
                   tokenizer->Encode(text, {.add_special = true, .parse_special = flags->parse_special}));
  ASSIGN_OR_RETURN(auto windows, CutChunks(tokens, options.context, tokenizer->add_bos() ? tokenizer->bos_id() : -1));
  if (flags->chunks > 0 && windows.size() > static_cast<size_t>(flags->chunks)) {
    windows.resize(static_cast<size_t>(flags->chunks));
  }
  const StopOnInterrupt stop;
  const bool show = ::isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  const auto totals =
      ScoreWindows(session->engine(), windows, options.max_seqs, [&](int64_t done, int64_t total, const PplTotals& so_far) {
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (show) {
          PrintNote(fmt::format("\r{} of {} chunks, perplexity {:.4f}, {:.0f} s left   ", done, total, so_far.perplexity(),
                                seconds / static_cast<double>(done) * static_cast<double>(total - done)));
        }
        return !stop.interrupted();
      });
  if (show) PrintNote("\r\x1b[K");
  RETURN_IF_ERROR(totals.status());
  const std::string dataset = flags->text.file.empty() ? "text" : std::filesystem::path(flags->text.file).filename().string();
  RETURN_IF_ERROR(WriteImportance(flags->out, collector, dataset, static_cast<int64_t>(windows.size()), options.context));
  PrintNote(fmt::format("{}: {} tensors over {} chunks of {} tokens, perplexity {:.4f}\n", flags->out,
                        collector.Take().size(), windows.size(), options.context, totals->perplexity()));
  return Status::Ok();
}

}  // namespace

int ImatrixCommand(Args args) {
  ImatrixFlags flags;
  flags.model.options.context = 512;
  FlagSet set("imatrix -m FILE|FOLDER -f TEXT -o OUT.gguf",
              "Measures which columns of the weights matter over a text: an importance matrix for quantize --imatrix\n"
              "(and for llama.cpp). The text should be like what the model will read, 50,000 tokens or more.");
  flags.text.Declare(&set);
  set.String("-o,--output-file", &flags.out, "OUT.gguf", "the file to write");
  set.Int("--chunks", &flags.chunks, 0, INT32_MAX, "N", "only the first N chunks of -c tokens (0: all)");
  set.Switch("--parse-special", &flags.parse_special, "the text's control tokens count as such");
  flags.model.Declare(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (flags.out.empty()) return ExitUsage(InvalidArgument("no output given: -o OUT.gguf"));
  if (const Status status = flags.text.Resolve(set); !status.ok()) return ExitUsage(status);
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  auto inputs = flags.model.Inputs();
  inputs.push_back(flags.text.Input(set));
  if (const Status status = CheckOutput("-o", flags.out, inputs); !status.ok()) return ExitUsage(status);
  const Status status = Collect(set, &flags);
  return status.code() == StatusCode::kCancelled ? kExitInterrupted : ExitWith(status, output);
}

}  // namespace cachalot
