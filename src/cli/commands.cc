#include "cli/commands.h"

#include <array>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "cli/console.h"
#include "cli/nearest.h"

namespace cachalot {
namespace {

constexpr std::array kCommands = {
    Command{"run", "answer one prompt (also without a subcommand: cachalot -m FILE -p TEXT)", RunCommand},
    Command{"chat", "talk to a model in the terminal", ChatCommand},
    Command{"serve", "serve a model over HTTP: OpenAI's API, and a page to chat with it", ServeCommand},
    Command{"inspect", "what a model is, and the memory it will need", InspectCommand},
    Command{"tokenize", "text to token ids", TokenizeCommand},
    Command{"detokenize", "token ids to text", DetokenizeCommand},
    Command{"eval", "measure a model: eval ppl, perplexity of a text", EvalCommand},
    Command{"logits", "logits and greedy continuation of given tokens, as safetensors", LogitsCommand},
    Command{"bench", "speed of prompts and generation; bench serve: of a server under load", BenchCommand},
    Command{"replay", "run recorded requests again and compare the answers", ReplayCommand},
    Command{"kv", "the KV cache: kv simulate, cache policies on recorded requests; kv calibrate and\n              kv report, quantised keys and values", KvCommand},
    Command{"quantize", "write a GGUF file in other types", QuantizeCommand},
    Command{"imatrix", "measure which weights matter, for quantize --imatrix", ImatrixCommand},
    Command{"pull", "fetch a model from the hub", PullCommand},
    Command{"dummy", "write a model with generated weights", DummyCommand},
};

std::string Help() {
  std::string text =
      "usage: cachalot COMMAND …\n"
      "Runs language models from GGUF files and Hugging Face folders.\n\n";
  for (const auto& command : kCommands) text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  text +=
      "\ncachalot COMMAND --help tells more; cachalot --version tells the version.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted.\n";
  return text;
}

}  // namespace

std::span<const Command> AllCommands() {
  return kCommands;
}

int Dispatch(Args args) {
  Output output;
  if (args.empty()) {
    PrintNote(Help());
    return kExitUsage;
  }
  const std::string& first = args[0];
  if (first == "--help" || first == "-h" || first == "help") return ExitWith(output.Write(Help()), output);
  if (first == "--version") return ExitWith(output.Write("cachalot " CACHALOT_VERSION "\n"), output);
  for (const auto& command : kCommands) {
    if (first == command.name) return command.run(args.subspan(1));
  }
  if (first.starts_with('-')) return RunCommand(args);
  if (FileExists(first))
    return ExitUsage(InvalidArgument("'{}' is no command; did you mean 'run -m {}'?", first, first));
  std::vector<std::string> names;
  for (const auto& command : kCommands) names.push_back(command.name);
  return ExitUsage(InvalidArgument("unknown command '{}'{}", first, NearestHint(first, names)));
}

}  // namespace cachalot
