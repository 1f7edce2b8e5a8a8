// cachalot pull: fetches a model and says where it lies.
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/hub_flags.h"

namespace cachalot {

int PullCommand(Args args) {
  HubFlags flags;
  FlagSet set("pull ORG/REPO[:QUANT]",
              "Fetches a model from the hub (HF_ENDPOINT, HF_TOKEN and HF_HOME are heeded) and prints its path.\n"
              "What was interrupted goes on where it stopped; every file is checked.");
  set.Positional("ORG/REPO[:QUANT]", &flags.repo,
                 "a repository with GGUF files (QUANT: Q4_K_M, else Q8_0, else the\nfirst), or with a safetensors model; @REVISION before the quant");
  flags.Declare(&set, HubFlags::kWithoutRepo);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (flags.repo.empty()) return ExitUsage(InvalidArgument("ORG/REPO[:QUANT] is needed (see --help)"));
  if (const Status status = flags.Resolve(); !status.ok()) return ExitUsage(status);
  const auto model = flags.Pull();
  if (model.status().code() == StatusCode::kCancelled) return kExitInterrupted;
  if (!model.ok()) return ExitWith(model.status(), output);
  return ExitWith(output.Write(model->path + "\n"), output);
}

}  // namespace cachalot
