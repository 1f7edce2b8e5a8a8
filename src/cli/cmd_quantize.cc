// cachalot quantize: a GGUF file in other types.
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "tasks/quantize.h"

namespace cachalot {
namespace {

std::string TypeList() {
  std::string text;
  for (const QuantizeRecipe& recipe : AllQuantizeRecipes()) {
    text += fmt::format("  {:<8}{}\n", recipe.name, recipe.summary);
  }
  return text;
}

std::string Listing(const QuantizeReport& report) {
  std::string text;
  for (const QuantizedTensor& tensor : report.tensors) {
    text += fmt::format("{:<40} {:>6} → {:<6}{} {:>10.2f} MB\n", tensor.name, DTypeName(tensor.from),
                        DTypeName(tensor.to), tensor.weighted ? " *" : "  ",
                        static_cast<double>(tensor.to_bytes) / 1e6);
  }
  return text;
}

std::string Summary(const QuantizeReport& report) {
  std::map<DType, int64_t> bytes;
  for (const QuantizedTensor& tensor : report.tensors) bytes[tensor.to] += tensor.to_bytes;
  std::string text = fmt::format("{:.1f} MB → {:.1f} MB:", static_cast<double>(report.from_bytes) / 1e6,
                                 static_cast<double>(report.to_bytes) / 1e6);
  for (const auto& [type, sum] : bytes) {
    text += fmt::format(" {} {:.1f}", DTypeName(type), static_cast<double>(sum) / 1e6);
  }
  return text + "\n";
}

void Warn(const QuantizeReport& report) {
  for (const std::string& warning : report.warnings) PrintNote("warning: " + warning + "\n");
}

Result<QuantizeReport> Run(const QuantizeRequest& request) {
  const StopOnInterrupt stop;
  const bool show = ::isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  double last_shown = 0;
  auto report = Quantize(
      request,
      [&](int64_t done, int64_t total) {
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (show && seconds - last_shown > 0.2) {
          last_shown = seconds;
          PrintNote(fmt::format("\r{:.1f} of {:.1f} MB, {:.0f} s   ", static_cast<double>(done) / 1e6,
                                static_cast<double>(total) / 1e6, seconds));
        }
        return !stop.interrupted();
      },
      Warn);
  if (show) PrintNote("\r\x1b[K");
  return report;
}

// A type that a GGUF file can have and we can write, as "--flag TYPE"; -1 when not given.
Status ParseType(const char* flag, const std::string& text, int32_t* type) {
  if (text.empty()) return Status::Ok();
  const auto parsed = ParseWritableType(text);
  if (!parsed.ok()) return parsed.status().WithContext(flag);
  *type = static_cast<int32_t>(*parsed);
  return Status::Ok();
}

}  // namespace

int QuantizeCommand(Args args) {
  QuantizeRequest request;
  std::string type, output_type, embedding_type;
  std::vector<std::string> rules;
  bool dry_run = false;
  FlagSet set("quantize IN OUT.gguf TYPE",
              "Writes a GGUF file in other types, from one or from a Hugging Face folder. The names with a letter behind are mixtures: most tensors "
              "in the type "
              "named,\nsome in a better one. TYPE and its bits a weight:\n" +
                  TypeList());
  set.Positional("IN", &request.in, "the model: a GGUF file (any of a split), or a folder with config.json\nand safetensors files");
  set.Positional("OUT.gguf", &request.out, "the file to write");
  set.Positional("TYPE", &type, "see above");
  set.String("--imatrix", &request.importance, "FILE",
             "importance matrix (GGUF or .dat): what matters is kept closer");
  set.Switch("--pure", &request.choices.pure, "no mixture: the same type for all tensors that are quantised");
  set.Strings("--tensor-type", &rules, "REGEX=TYPE",
              "a type for the tensors whose names it finds (may be repeated)");
  set.String("--output-tensor-type", &output_type, "TYPE", "for output.weight");
  set.String("--token-embedding-type", &embedding_type, "TYPE", "for token_embd.weight");
  set.Switch("--leave-output-tensor", &request.choices.leave_output, "output.weight stays as it is");
  set.Switch("--allow-requantize", &request.allow_requantize, "also tensors that are quantised already");
  set.Int("-t,--threads", &request.num_threads, 0, 1024, "N", "threads (0: physical cores)");
  set.Switch("--dry-run", &dry_run, "print what each tensor would become, and write nothing");
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (type.empty()) return ExitUsage(InvalidArgument("IN, OUT.gguf and TYPE are needed (see --help)"));
  const auto recipe = FindQuantizeRecipe(type);
  if (!recipe.ok()) return ExitUsage(recipe.status());
  request.choices.recipe = *recipe;
  for (const std::string& text : rules) {
    auto rule = ParseTensorTypeRule(text);
    if (!rule.ok()) return ExitUsage(rule.status().WithContext("--tensor-type"));
    request.choices.rules.push_back(std::move(*rule));
  }
  Status status = ParseType("--output-tensor-type", output_type, &request.choices.output_type);
  if (status.ok())
    status = ParseType("--token-embedding-type", embedding_type, &request.choices.embedding_type);
  if (!status.ok()) return ExitUsage(status);
  if (request.choices.leave_output && request.choices.output_type >= 0) {
    return ExitUsage(InvalidArgument("--leave-output-tensor and --output-tensor-type: only one of them"));
  }

  auto report = dry_run ? PlanQuantize(request) : Run(request);
  if (report.status().code() == StatusCode::kCancelled) return kExitInterrupted;
  if (!report.ok()) return ExitWith(report.status(), output);
  if (dry_run) {
    Warn(*report);
    return ExitWith(output.Write(Listing(*report) + Summary(*report)), output);
  }
  PrintNote(request.out + ": " + Summary(*report));
  return kExitOk;
}

}  // namespace cachalot
