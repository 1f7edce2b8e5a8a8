// cachalot chat: a conversation in the terminal. Ctrl-C stops the answer, not the program.
#include <algorithm>
#include <optional>

#include "base/file.h"
#include "cli/answer_flags.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/conversation.h"
#include "cli/flag_set.h"
#include "cli/line_editor.h"
#include "cli/model_flags.h"
#include "cli/sampling_flags.h"
#include "cli/session.h"
#include "cli/session_flag.h"
#include "runtime/runtime.h"
#include "tasks/output_check.h"

namespace cachalot {
namespace {

constexpr char kChatHelp[] =
    "  /help           this list\n"
    "  /clear          forget the conversation\n"
    "  /system TEXT    set the system message (without TEXT: none)\n"
    "  /save FILE      write the conversation as JSON\n"
    "  /stats          times and speeds of the last answer, tokens in the context\n"
    "  /quit           end (also Ctrl-D)\n"
    "A line that ends with \\ goes on; \"\"\" begins and ends a text of several lines.\n"
    "Ctrl-C stops an answer; at an empty prompt, twice, it ends the program.\n";

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  AnswerFlags answer;
  SessionFlag session;
  std::string system;
  std::string prompt;

  // The files that are read, for CheckOutput.
  std::vector<std::string> Inputs() const {
    auto inputs = model.Inputs();
    inputs.push_back(answer.tools_file);
    return inputs;
  }
};

class Chat {
 public:
  Chat(ChatFlags* flags, Session* session, Output* output)
      : flags_(*flags), session_(*session), output_(*output), color_(UseColor(flags->model.color, 2)) {}

  // The conversation so far, if there is one.
  Status Begin() {
    if (flags_.session.given()) {
      ASSIGN_OR_RETURN(conversation_, flags_.session.Load(&session_));
    }
    if (!flags_.system.empty()) conversation_.SetSystem(flags_.system);
    if (conversation_.num_turns() > 0) Note(fmt::format("(goes on after {} turns)\n", conversation_.num_turns()));
    return Status::Ok();
  }
  Status Keep() {
    if (!flags_.session.given()) return Status::Ok();
    return flags_.session.Save(&session_, conversation_, tokens_);
  }

  // The exit code, or what ended the chat.
  Result<int> Loop() {
    if (editor_.is_terminal()) {
      editor_.TakeInterrupts(&stop_.emplace());
      Note(
          fmt::format("{}, context {} tokens. /help lists the commands.\n", flags_.model.Place(), Context()));
    }
    if (!flags_.prompt.empty()) RETURN_IF_ERROR(Ask(flags_.prompt));
    bool warned = false;
    for (;;) {
      std::string text;
      const LineEditor::Outcome outcome = ReadMessage(&text);
      if (outcome == LineEditor::Outcome::kEndOfFile) return kExitOk;
      if (outcome == LineEditor::Outcome::kInterrupted) {
        if (warned && text.empty()) return kExitInterrupted;
        warned = text.empty();
        if (warned) Note("(Ctrl-C once more, Ctrl-D or /quit ends)\n");
        continue;
      }
      warned = false;
      if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
      editor_.Remember(text);
      if (text.starts_with('/') && text.find('\n') == std::string::npos) {
        if (text == "/quit" || text == "/exit") return kExitOk;
        RETURN_IF_ERROR(Obey(text));
        continue;
      }
      RETURN_IF_ERROR(Ask(text));
    }
  }

 private:
  int32_t Context() const { return session_.bundle().runtime->info().max_context; }

  void Note(const std::string& text) const {
    const size_t end = text.find_last_not_of('\n') + 1;
    PrintNote(color_ ? "\x1b[2m" + text.substr(0, end) + "\x1b[0m" + text.substr(end) : text);
  }

  // One message: lines joined by a backslash at their end, or standing between """ and """.
  LineEditor::Outcome ReadMessage(std::string* text) {
    const std::string first = color_ ? "\x1b[1;32m> \x1b[0m" : "> ",
                      next = color_ ? "\x1b[32m. \x1b[0m" : ". ";
    constexpr std::string_view kFence = "\"\"\"";
    bool fenced = false;
    for (;;) {
      std::string line;
      const auto outcome = editor_.Read(text->empty() && !fenced ? first : next, &line);
      if (outcome == LineEditor::Outcome::kInterrupted) {
        *text += line;
        return outcome;
      }
      if (outcome == LineEditor::Outcome::kEndOfFile) {
        return text->empty() ? outcome : LineEditor::Outcome::kLine;
      }
      if (!fenced && text->empty() && line.starts_with(kFence)) {
        fenced = true;
        line.erase(0, kFence.size());
      }
      if (fenced) {
        const bool ends = line.ends_with(kFence);
        if (ends) line.resize(line.size() - kFence.size());
        *text += line;
        if (ends) return LineEditor::Outcome::kLine;
        *text += '\n';
        continue;
      }
      const bool goes_on = line.ends_with('\\');
      if (goes_on) line.back() = '\n';
      *text += line;
      if (!goes_on) return LineEditor::Outcome::kLine;
    }
  }

  Status Obey(const std::string& line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space);
    const std::string rest = space < line.size() ? line.substr(space + 1) : "";
    if (name == "/help") {
      PrintNote(kChatHelp);
    } else if (name == "/clear") {
      conversation_.Clear();
      Note("(forgotten)\n");
    } else if (name == "/system") {
      conversation_.SetSystem(rest);
      Note(rest.empty() ? "(no system message)\n" : "(system message set)\n");
    } else if (name == "/save") {
      if (rest.empty()) {
        Note("(/save FILE)\n");
        return Status::Ok();
      }
      auto inputs = flags_.Inputs();
      inputs.push_back(flags_.session.path);
      Status saved = CheckOutput("/save", rest, inputs);
      if (saved.ok()) saved = WriteFileAtomically(rest, conversation_.Json(2) + "\n");
      if (saved.ok())
        Note("(saved)\n");
      else
        PrintError(saved.message());
    } else if (name == "/stats") {
      PrintNote(fmt::format("load      {:.2f} s\n{}context   {} of {} tokens, {} turns\nseed      {}\n",
                            session_.load_seconds(), StatsText(stats_), context_used_, Context(),
                            conversation_.num_turns(), flags_.sampling.seed));
    } else {
      Note(fmt::format("(unknown command {}; /help lists them)\n", name));
    }
    return Status::Ok();
  }

  // What is wrong with one question is told and the chat goes on; what ends the chat is returned.
  Status Ask(const std::string& text) {
    conversation_.AddUser(text);
    // Room is kept for an answer: what -n asks for, but not more than a quarter of the context.
    const int32_t wanted = flags_.sampling.max_tokens;
    const int32_t reserve = wanted < 0 ? Context() / 4 : std::min(wanted, Context() / 4);
    Session::ChatPrompt prompt;
    const auto encode = [&](const std::string& json) -> Result<std::vector<int32_t>> {
      ASSIGN_OR_RETURN(prompt, session_.MakeChatPrompt(json));
      return prompt.ids;
    };
    auto fitted = conversation_.Fit(encode,
                                    std::max(Context() - std::max(reserve, 1), 1));
    if (!fitted.ok()) {
      conversation_.DropLast();
      PrintError(fitted.status().message());
      return Status::Ok();
    }
    if (fitted->dropped_turns > 0) {
      Note(fmt::format("(the context is full: the oldest {} turns are forgotten)\n", fitted->dropped_turns));
    }
    Request request = flags_.sampling.MakeRequest();
    prompt.MoveTo(&request);
    request.max_tokens = wanted;
    const auto prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
    std::vector<int32_t> tokens = request.prompt_ids;

    std::optional<StopOnInterrupt> own;
    const StopOnInterrupt& stop = stop_ ? *stop_ : own.emplace();
    AnswerPrinter printer(&output_, prompt.format, flags_.answer.mode(), UseColor(flags_.model.color, 1));
    auto answer = session_.Generate(
        std::move(request),
        [&](const RequestOutput& step) {
          tokens.insert(tokens.end(), step.token_ids.begin(), step.token_ids.end());
          return printer.Push(step.text);
        },
        stop);
    if (!answer.ok()) {
      if (output_.closed()) return answer.status();
      conversation_.DropLast();
      PrintError(answer.status().message());
      return Status::Ok();
    }
    RETURN_IF_ERROR(printer.Finish());
    if (answer->text.empty()) RETURN_IF_ERROR(output_.Write("\n"));
    if (answer->interrupted) Note("(stopped)\n");
    if (stop_ && stop_->interrupted()) stop_->Clear();
    if (answer->reason == FinishReason::kLength && wanted < 0) Note("(the context is full)\n");
    conversation_.SetAnswer(printer.answer());
    tokens_ = std::move(tokens);
    stats_ = answer->stats;
    context_used_ = prompt_tokens + answer->stats.generated_tokens;
    return Status::Ok();
  }

  const ChatFlags& flags_;
  Session& session_;
  Output& output_;
  const bool color_;
  std::optional<StopOnInterrupt> stop_;  // in a terminal: also just before an answer and just behind it Ctrl-C does not end the program
  LineEditor editor_;
  Conversation conversation_;
  std::vector<int32_t> tokens_;  // of the last prompt and its answer
  GenerationStats stats_;
  int64_t context_used_ = 0;
};

Result<int> RunChat(const FlagSet& parsed, ChatFlags* flags, Output* output) {
  flags->model.options.names_every_byte = flags->session.given();
  ASSIGN_OR_RETURN(const auto session, Session::Open(flags->model.options));
  RETURN_IF_ERROR(session->tokenizer().status());
  RETURN_IF_ERROR(flags->answer.Apply(session.get()));
  flags->sampling.TakeDefaults(parsed, session->bundle().generation);
  Chat chat(flags, session.get(), output);
  RETURN_IF_ERROR(chat.Begin());
  const Result<int> code = chat.Loop();
  const Status kept = chat.Keep();  // also of a chat that ended badly
  if (code.ok()) RETURN_IF_ERROR(kept);
  return code;
}

}  // namespace

int ChatCommand(Args args) {
  ChatFlags flags;
  FlagSet set("chat -m FILE|FOLDER", "A conversation in the terminal; /help there lists its commands.");
  set.String("-p,--prompt", &flags.prompt, "TEXT", "the first message");
  set.String("-sys,--system,--system-prompt", &flags.system, "TEXT", "system message");
  flags.sampling.Declare(&set);
  flags.answer.Declare(&set);
  flags.session.Declare(&set);
  flags.model.Declare(&set);
  flags.model.DeclareKvTiers(&set);
  flags.model.DeclareTrace(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (const Status status = flags.sampling.Resolve(); !status.ok()) return ExitUsage(status);
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  if (const Status status = flags.session.Check(flags.Inputs()); !status.ok()) return ExitUsage(status);
  const Result<int> code = RunChat(set, &flags, &output);
  return code.ok() ? *code : ExitWith(code.status(), output);
}

}  // namespace cachalot
