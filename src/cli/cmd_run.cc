// cachalot run: one prompt, one answer, streamed to standard output.
#include <nlohmann/json.hpp>

#include "cli/answer_flags.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/conversation.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "cli/sampling_flags.h"
#include "cli/session.h"
#include "cli/session_flag.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  SamplingFlags sampling;
  AnswerFlags answer;
  SessionFlag session;
  std::string system;
  bool raw = false;
  bool stats = false;
  bool verbose = false;
};

std::string Quoted(std::string_view bytes) {
  return nlohmann::json(std::string(bytes)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void PrintLogprobs(const RequestOutput& output, const Tokenizer& tokenizer) {
  std::string text;
  for (size_t i = 0; i < output.token_ids.size() && i < output.logprobs.size(); ++i) {
    text += fmt::format("{:8.4f} {}", output.logprobs[i], Quoted(tokenizer.TokenBytes(output.token_ids[i])));
    if (i < output.top_logprobs.size()) {
      for (const auto& top : output.top_logprobs[i]) {
        text += fmt::format("  {} {:.4f}", Quoted(tokenizer.TokenBytes(top.token_id)), top.logprob);
      }
    }
    text += "\n";
  }
  PrintNote(text);
}

Status Run(const FlagSet& parsed, RunFlags* flags, Output* output, bool* interrupted) {
  ASSIGN_OR_RETURN(const std::string text, flags->prompt.Read(parsed, PromptFlags::Use::kPrompt));
  flags->model.options.names_every_byte = flags->session.given();
  ASSIGN_OR_RETURN(const auto session, Session::Open(flags->model.options));
  const ModelBundle& bundle = session->bundle();
  flags->sampling.TakeDefaults(parsed, bundle.generation);
  Request request = flags->sampling.MakeRequest();
  const bool chat = !flags->raw && bundle.has_own_template;
  if (!chat && !flags->system.empty()) {
    return InvalidArgument(
        "--system: {}", flags->raw ? "--raw leaves the chat template out" : "the model has no chat template");
  }
  if (!chat && flags->session.given()) {
    return InvalidArgument("--session: {}", flags->raw ? "--raw leaves the chat template out" : "the model has no chat template");
  }
  if (!chat && !flags->answer.tools_file.empty()) return InvalidArgument("--tools: the model has no chat template");
  AnswerFormat format{.split_reasoning = false};
  Conversation conversation;
  if (chat) {
    RETURN_IF_ERROR(flags->answer.Apply(session.get()));
    if (flags->session.given()) {
      ASSIGN_OR_RETURN(conversation, flags->session.Load(session.get()));
    }
    if (!flags->system.empty()) conversation.SetSystem(flags->system);
    conversation.AddUser(text);
    ASSIGN_OR_RETURN(Session::ChatPrompt prompt, session->MakeChatPrompt(conversation.Json()));
    format = prompt.format;
    prompt.MoveTo(&request);
  } else {
    ASSIGN_OR_RETURN(request.prompt_ids, session->TextPrompt(text));
  }
  AnswerPrinter printer(output, format, flags->answer.mode(), UseColor(flags->model.color, 1));
  request.max_tokens = flags->sampling.max_tokens;
  std::vector<int32_t> tokens = request.prompt_ids;

  double first_token = 0.0;
  const StopOnInterrupt stop;
  const auto answer = session->Generate(
      std::move(request),
      [&](const RequestOutput& step) -> Status {
        if (first_token == 0.0 && !step.token_ids.empty()) first_token = SecondsSinceStart();
        tokens.insert(tokens.end(), step.token_ids.begin(), step.token_ids.end());
        if (flags->sampling.logprobs >= 0) PrintLogprobs(step, *bundle.tokenizer);
        return printer.Push(step.text);
      },
      stop);
  if (answer.ok()) RETURN_IF_ERROR(printer.Finish());
  RETURN_IF_ERROR(answer.status());
  *interrupted = answer->interrupted;
  if (flags->session.given()) {
    conversation.SetAnswer(printer.answer());
    RETURN_IF_ERROR(flags->session.Save(session.get(), conversation, tokens));
  }
  if (answer->reason == FinishReason::kLength && flags->sampling.max_tokens < 0) {
    PrintNote("(the context is full: -c makes it larger)\n");
  }
  if (flags->stats || flags->verbose) {
    PrintNote(fmt::format(
        "\nload      {:.2f} s\nfirst token {:.2f} s after the start\n{}seed      {}\nended     {}\n",
        session->load_seconds(), first_token, StatsText(answer->stats), flags->sampling.seed,
        FinishReasonName(answer->reason)));
  }
  return Status::Ok();
}

}  // namespace

int RunCommand(Args args) {
  RunFlags flags;
  FlagSet set("run -m FILE|FOLDER -p TEXT",
              "Answers one prompt. The text goes to standard output, all else to standard error.");
  flags.prompt.Declare(&set);
  set.String("-sys,--system,--system-prompt", &flags.system, "TEXT", "system message");
  set.Switch("--raw,--no-chat,-no-cnv", &flags.raw, "continue the text as it is, without the chat template");
  flags.sampling.Declare(&set);
  flags.answer.Declare(&set);
  flags.session.Declare(&set);
  flags.model.Declare(&set);
  flags.model.DeclareKvTiers(&set);
  flags.model.DeclareTrace(&set);
  set.Switch("--stats", &flags.stats, "times and speeds on standard error");
  set.Switch("-v,--verbose", &flags.verbose, "--stats and --log-level info");
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (flags.verbose && !set.Given("--log-level")) flags.model.log_level = "info";
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (const Status status = flags.sampling.Resolve(); !status.ok()) return ExitUsage(status);
  if (flags.raw && !flags.answer.tools_file.empty()) {
    return ExitUsage(InvalidArgument("--tools: --raw leaves the chat template out"));
  }
  if (const Status status = flags.prompt.Resolve(set); !status.ok()) return ExitUsage(status);
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  auto inputs = flags.model.Inputs();
  inputs.insert(inputs.end(), {flags.prompt.Input(set), flags.answer.tools_file});
  if (const Status status = flags.session.Check(inputs); !status.ok()) return ExitUsage(status);
  bool interrupted = false;
  const Status status = Run(set, &flags, &output, &interrupted);
  return interrupted ? kExitInterrupted : ExitWith(status, output);
}

}  // namespace cachalot
