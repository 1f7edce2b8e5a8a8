// cachalot tokenize and detokenize: a model's tokenizer by itself; no weight is loaded.
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "runtime/runtime.h"
#include "tasks/token_input.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeFlags {
  ModelFlags model;
  PromptFlags prompt;
  std::string ids_text;            // detokenize
  std::vector<int32_t> ids_given;  // what it says
  bool from_input() const { return ids_text.empty() || ids_text == "-"; }
  bool ids = false;
  bool json = false;
  bool no_bos = false;
  bool no_parse_special = false;
  bool with_special = false;
};

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<ModelBundle> OpenTokenizer(const TokenizeFlags& flags) {
  ASSIGN_OR_RETURN(ModelBundle bundle, PlanModel(flags.model.options));
  if (bundle.tokenizer == nullptr) return bundle.tokenizer_error;
  return bundle;
}

Status Tokenize(const FlagSet& set, const TokenizeFlags& flags, Output* output) {
  ASSIGN_OR_RETURN(const ModelBundle bundle, OpenTokenizer(flags));
  ASSIGN_OR_RETURN(const std::string text, flags.prompt.Read(set, PromptFlags::Use::kExactText));
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                   bundle.tokenizer->Encode(
                       text, {.add_special = !flags.no_bos, .parse_special = !flags.no_parse_special}));
  if (flags.json) {
    Json tokens = Json::array();
    for (const int32_t id : ids) tokens.push_back(std::string(bundle.tokenizer->TokenBytes(id)));
    return output->Write(DumpJson({{"tokens", ids}, {"texts", tokens}}));
  }
  std::string lines;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (flags.ids)
      lines += fmt::format("{}{}", i == 0 ? "" : ",", ids[i]);
    else
      lines += fmt::format("{:>7} {}", ids[i], DumpJson(std::string(bundle.tokenizer->TokenBytes(ids[i]))));
  }
  return output->Write(flags.ids ? lines + "\n" : lines);
}

Status Detokenize(const TokenizeFlags& flags, Output* output) {
  ASSIGN_OR_RETURN(const ModelBundle bundle, OpenTokenizer(flags));
  std::vector<int32_t> ids = flags.ids_given;
  if (flags.from_input()) {
    ASSIGN_OR_RETURN(const std::string source, ReadStandardInput(int64_t{1} << 30));
    ASSIGN_OR_RETURN(ids, ReadTokenIds(source));
  }
  for (const int32_t id : ids) {
    if (id >= bundle.tokenizer->vocab_size()) {
      return InvalidArgument("token id {}: the vocabulary has {}", id, bundle.tokenizer->vocab_size());
    }
  }
  const std::string text = bundle.tokenizer->Decode(ids, !flags.with_special);
  return output->Write(flags.json ? DumpJson({{"text", text}}) : text);
}

}  // namespace

int TokenizeCommand(Args args) {
  TokenizeFlags flags;
  FlagSet set("tokenize -m FILE|FOLDER -p TEXT", "Text to token ids.");
  flags.prompt.Declare(&set);
  set.Switch("--ids", &flags.ids, "only the ids, on one line");
  set.Switch("--json", &flags.json, "as JSON: {\"tokens\": [ids], \"texts\": [texts]}");
  set.Switch("--no-bos", &flags.no_bos, "without BOS and EOS");
  set.Switch("--no-parse-special", &flags.no_parse_special, "the text of a control token stays text");
  flags.model.Declare(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (const Status status = flags.prompt.Resolve(set); !status.ok()) return ExitUsage(status);
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  return ExitWith(Tokenize(set, flags, &output), output);
}

int DetokenizeCommand(Args args) {
  TokenizeFlags flags;
  FlagSet set("detokenize -m FILE|FOLDER --ids 1,2,3", "Token ids to text, exactly: no line end is added.");
  set.String("--ids,--tokens", &flags.ids_text, "1,2,3|FILE",
             "ids, FILE.json or FILE.safetensors:NAME\n('-' or nothing: a list from standard input)");
  set.Switch("--special", &flags.with_special, "show control tokens too");
  set.Switch("--json", &flags.json, "as JSON: {\"text\": …}");
  flags.model.Declare(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (!flags.from_input()) {
    auto ids = ReadTokenIds(flags.ids_text);
    if (ids.status().code() == StatusCode::kInvalidArgument)
      return ExitUsage(ids.status().WithContext("--ids"));
    if (!ids.ok()) return ExitWith(ids.status(), output);
    flags.ids_given = std::move(*ids);
  }
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  return ExitWith(Detokenize(flags, &output), output);
}

}  // namespace cachalot
