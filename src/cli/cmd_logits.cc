// cachalot logits: what the model computes for given tokens, as a safetensors file: the instrument of the
// golden tests.
#include <algorithm>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "cli/session.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "runtime/runtime.h"
#include "tasks/output_check.h"
#include "tasks/token_input.h"

namespace cachalot {
namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string tokens;
  std::string out;
  int32_t first = 0;
  int32_t greedy = 0;
  int32_t chunk = 0;
  int32_t batch_with = 0;
  bool mtp = false;
  std::string mla = "auto";
};

struct Outcome {
  std::vector<float> logits;      // [T, V]
  std::vector<float> mtp_logits;  // [slots, V]
  std::vector<int64_t> greedy;
};

// Others to share the batch with: prompts of different lengths that go on generating.
Status SubmitOthers(const LogitsFlags& flags, int32_t max_context, int32_t vocab_size, Engine* engine,
                    Status* status) {
  for (int32_t i = 0; i < flags.batch_with; ++i) {
    Request request;
    const int32_t length = std::min(3 + 7 * i, std::max(1, max_context / 2));
    for (int32_t j = 0; j < length; ++j) request.prompt_ids.push_back((101 * i + 37 * j + 11) % vocab_size);
    request.max_tokens = std::min(64, max_context - length);
    request.ignore_eos = true;
    RETURN_IF_ERROR(engine
                        ->Submit(std::move(request),
                                 [status](const RequestOutput& output) {
                                   if (!output.error.ok()) *status = output.error;
                                 })
                        .status());
  }
  return Status::Ok();
}

Result<Outcome> Compute(const LogitsFlags& flags, std::vector<int32_t> tokens, Session* session) {
  const ExecutorInfo& info = session->bundle().runtime->info();
  const auto wanted = tokens.size() * static_cast<size_t>(info.vocab_size);
  Outcome outcome;
  Status status;
  RETURN_IF_ERROR(SubmitOthers(flags, info.max_context, info.vocab_size, &session->engine(), &status));
  Request request;
  request.prompt_ids = std::move(tokens);
  request.max_tokens = flags.greedy;
  request.ignore_eos = true;
  request.all_logits = true;
  request.mtp_logits = flags.mtp;
  bool finished = false;
  outcome.logits.reserve(wanted);
  RETURN_IF_ERROR(session->engine()
                      .Submit(std::move(request),
                              [&](const RequestOutput& output) {
                                // After the prompt's positions come those of the generated tokens.
                                const size_t take =
                                    std::min(output.logits.size(), wanted - outcome.logits.size());
                                outcome.logits.insert(outcome.logits.end(), output.logits.begin(),
                                                      output.logits.begin() + static_cast<int64_t>(take));
                                outcome.mtp_logits.insert(outcome.mtp_logits.end(), output.mtp_logits.begin(),
                                                          output.mtp_logits.end());
                                outcome.greedy.insert(outcome.greedy.end(), output.token_ids.begin(),
                                                      output.token_ids.end());
                                if (!output.error.ok()) status = output.error;
                                finished = output.finished;
                              })
                      .status());
  while (!finished && status.ok()) RETURN_IF_ERROR(session->engine().Step());
  RETURN_IF_ERROR(status);
  if (outcome.logits.size() != wanted) {
    return Internal("{} logits came back, {} are wanted", outcome.logits.size(), wanted);
  }
  return outcome;
}

Status Save(const std::string& path, const Outcome& outcome, int64_t num_tokens, int64_t vocab_size) {
  SafetensorsWriter writer;
  const auto add = [&](const char* name, DType dtype, std::initializer_list<int64_t> dims) {
    return writer.AddTensor(name, dtype, std::span<const int64_t>(dims.begin(), dims.size()));
  };
  const auto num_slots = static_cast<int64_t>(outcome.mtp_logits.size()) / vocab_size;
  RETURN_IF_ERROR(add("logits", DType::kF32, {num_tokens, vocab_size}));
  RETURN_IF_ERROR(add("greedy", DType::kI64, {static_cast<int64_t>(outcome.greedy.size())}));
  if (num_slots > 0) RETURN_IF_ERROR(add("mtp_logits", DType::kF32, {num_slots, vocab_size}));
  return writer.WriteFile(path, [&](const SafetensorsTensor& tensor, ByteSink& sink) {
    if (tensor.name == "logits") return sink.Append(std::as_bytes(std::span(outcome.logits)));
    if (tensor.name == "greedy") return sink.Append(std::as_bytes(std::span(outcome.greedy)));
    return sink.Append(std::as_bytes(std::span(outcome.mtp_logits)));
  });
}

Status Logits(LogitsFlags* flags, std::vector<int32_t> tokens) {
  if (flags->first > 0 && static_cast<size_t>(flags->first) < tokens.size()) {
    tokens.resize(static_cast<size_t>(flags->first));
  }
  if (tokens.empty()) return InvalidArgument("--tokens: no tokens");
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  ModelOptions& options = flags->model.options;
  if (options.context == 0) options.context = static_cast<int32_t>(num_tokens + flags->greedy);
  const auto chunk = flags->chunk > 0 ? flags->chunk : static_cast<int32_t>(num_tokens);
  options.max_seqs = 1 + flags->batch_with;
  options.max_step_tokens = chunk + flags->batch_with * 64;
  options.max_logit_rows = chunk;
  options.load_mtp = flags->mtp;
  options.mla_form = flags->mla == "absorbed"   ? MlaForm::kAbsorbed
                     : flags->mla == "expanded" ? MlaForm::kExpanded
                                                : MlaForm::kByCost;
  ASSIGN_OR_RETURN(const auto session, Session::Open(options, chunk));
  ASSIGN_OR_RETURN(const Outcome outcome, Compute(*flags, std::move(tokens), session.get()));
  return Save(flags->out, outcome, num_tokens, session->bundle().runtime->info().vocab_size);
}

}  // namespace

int LogitsCommand(Args args) {
  LogitsFlags flags;
  flags.model.options.kv.type = "f32";
  FlagSet set("logits -m FILE|FOLDER --tokens 1,2,3 --out OUT.safetensors",
              "Writes `logits` f32 [T, V] of all positions, `greedy` i64 [N] and, with --mtp, `mtp_logits` "
              "f32 [slots, V].");
  set.String("--tokens", &flags.tokens, "1,2,3|FILE", "ids, FILE.json or FILE.safetensors:NAME");
  set.String("-o,--out", &flags.out, "FILE", "safetensors file to write");
  set.Int("--first", &flags.first, 0, INT32_MAX, "N", "only the first N tokens (0: all)");
  set.Int("--greedy", &flags.greedy, 0, 1 << 24, "N", "continue with the N best tokens");
  set.Int("--chunk", &flags.chunk, 0, 1 << 20, "K", "tokens computed in one step (0: all)");
  set.Int("--batch-with", &flags.batch_with, 0, 1024, "N", "N other sequences run beside it");
  set.Switch("--mtp", &flags.mtp, "run the multi-token-prediction layer too");
  set.Choice("--mla", &flags.mla, {"auto", "absorbed", "expanded"},
             "the form of latent attention (auto: the cheaper one)");
  flags.model.Declare(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (flags.tokens.empty()) return ExitUsage(InvalidArgument("no tokens given: --tokens 1,2,3 or a file"));
  if (flags.out.empty()) return ExitUsage(InvalidArgument("no output given: --out OUT.safetensors"));
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  auto inputs = flags.model.Inputs();
  inputs.push_back(TokenFile(flags.tokens));
  if (const Status status = CheckOutput("--out", flags.out, inputs); !status.ok()) return ExitUsage(status);
  auto tokens = ReadTokenIds(flags.tokens);
  if (tokens.status().code() == StatusCode::kInvalidArgument)
    return ExitUsage(tokens.status().WithContext("--tokens"));
  if (!tokens.ok()) return ExitWith(tokens.status(), output);
  return ExitWith(Logits(&flags, std::move(*tokens)), output);
}

}  // namespace cachalot
