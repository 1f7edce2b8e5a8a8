// cachalot dummy: writes a model with generated weights and a made-up vocabulary.
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/nearest.h"
#include "tasks/dummy_model.h"

namespace cachalot {
namespace {

std::string SpecList() {
  std::string text;
  size_t line = 0;
  for (const auto& spec : AllDummySpecs()) {
    const std::string name = spec.name;
    const bool wraps = text.size() - line + name.size() > 100;
    if (!text.empty()) text += wraps ? ",\n" : ", ";
    if (wraps) line = text.size();
    text += name;
  }
  return text;
}

Status Write(const DummyRequest& request) {
  const StopOnInterrupt stop;
  const bool show = ::isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  int64_t bytes = 0;
  double last_shown = 0;
  const auto report = WriteDummy(request, [&](int64_t done, int64_t total) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    bytes = done;
    if (show && seconds - last_shown > 0.2) {
      last_shown = seconds;
      PrintNote(fmt::format("\r{:.1f} of {:.1f} GB, {:.0f} MB/s   ", static_cast<double>(done) / 1e9,
                            static_cast<double>(total) / 1e9, static_cast<double>(done) / 1e6 / seconds));
    }
    return !stop.interrupted();
  });
  if (show) PrintNote("\r\x1b[K");
  RETURN_IF_ERROR(report.status());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  PrintNote(fmt::format("{}: {} with {} layers, {}, vocabulary {}, {:.1f} MB in {:.1f} s\n", request.out,
                        request.spec, report->layers, DTypeName(report->type), report->vocab_size,
                        static_cast<double>(bytes) / 1e6, seconds));
  return Status::Ok();
}

}  // namespace

int DummyCommand(Args args) {
  DummyRequest request;
  bool list = false;
  FlagSet set("dummy SPEC -o FILE.gguf|FOLDER",
              "Writes a model with generated weights and a vocabulary of made-up words. SPEC is one of\n" +
                  SpecList() + ".");
  set.Positional("SPEC", &request.spec, "which model's shape");
  set.Int("--layers", &request.layers, 0, 1000, "N", "layers (0: the model's own)");
  set.String("--type", &request.type, "TYPE",
             "f32, f16, bf16, q8_0, q4_0, q4_k and others (GGUF),\nfp8 (folder) (default: the model's own)");
  set.String("--vocab", &request.vocab, "FILE|FOLDER", "take the vocabulary from this GGUF file or folder");
  set.String("-o,--out", &request.out, "FILE|FOLDER", "FILE.gguf, or a folder for the Hugging Face layout");
  set.Switch("--list", &list, "print the names of the specs");
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (list) {
    std::string names;
    for (const auto& spec : AllDummySpecs()) names += std::string(spec.name) + "\n";
    return ExitWith(output.Write(names), output);
  }
  if (request.spec.empty()) return ExitUsage(InvalidArgument("no SPEC given (--list shows all)"));
  if (request.out.empty()) return ExitUsage(InvalidArgument("no output given: -o FILE.gguf or -o FOLDER"));
  if (!FindDummySpec(request.spec).ok()) {
    std::vector<std::string> names;
    for (const auto& spec : AllDummySpecs()) names.push_back(spec.name);
    return ExitUsage(InvalidArgument("unknown SPEC '{}'{} (--list shows all)", request.spec,
                                     NearestHint(request.spec, names)));
  }
  if (const auto model = ResolveDummy(request.spec, request.layers, request.type); !model.ok()) {
    return ExitUsage(model.status());
  }
  const Status status = Write(request);
  return status.code() == StatusCode::kCancelled ? kExitInterrupted : ExitWith(status, output);
}

}  // namespace cachalot
