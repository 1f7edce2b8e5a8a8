// cachalot inspect: what a model is and what memory it will take, from its files' directories alone.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "runtime/runtime.h"
#include "tasks/model_files.h"
#include "tensor/tensor_view.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  ModelFlags model;
  bool tensors = false;
  bool metadata = false;
  bool json = false;
};

std::string Bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} KiB", value / (1 << 10));
}

int32_t ContextOf(const ModelOptions& options, const ModelSpec& spec) {
  return options.context > 0 ? options.context : std::min(spec.max_context, 4096);
}

Json HyperParameters(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  Json json = {{"architecture", spec.architecture}, {"layers", spec.num_layers},
               {"hidden_size", spec.hidden_size},   {"intermediate", spec.intermediate},
               {"vocab_size", spec.vocab_size},     {"max_context", spec.max_context},
               {"q_heads", attention.num_q_heads}};
  if (attention.kind == AttentionKind::kMla) {
    json.update({{"attention", "MLA"},
                 {"q_lora_rank", attention.q_lora_rank},
                 {"kv_lora_rank", attention.kv_lora_rank},
                 {"nope_dim", attention.nope_dim},
                 {"rope_dim", attention.rope_dim},
                 {"v_dim", attention.v_dim}});
  } else {
    json.update({{"attention", "GQA"},
                 {"kv_heads", attention.num_kv_heads},
                 {"head_dim", attention.head_dim},
                 {"qkv_bias", attention.qkv_bias},
                 {"qk_norm", attention.qk_norm}});
    const auto windowed =
        std::find_if(spec.layers.begin(), spec.layers.end(), [](auto& layer) { return layer.window > 0; });
    if (windowed != spec.layers.end()) json["window"] = windowed->window;
  }
  if (spec.moe.num_experts > 0) {
    json.update({{"experts", spec.moe.num_experts},
                 {"experts_per_token", spec.moe.top_k},
                 {"expert_intermediate", spec.moe.intermediate},
                 {"shared_intermediate", spec.moe.shared_intermediate},
                 {"moe_layers", spec.num_moe_layers()}});
  }
  if (spec.num_mtp_layers > 0) json["mtp_layers"] = spec.num_mtp_layers;
  json["tied_embeddings"] = spec.tied_embeddings;
  json["norm_eps"] = std::stod(fmt::format("{}", spec.norm_eps));  // 1e-05 and not what a float makes of it
  return json;
}

Json TokenizerJsonOf(const ModelBundle& bundle) {
  if (bundle.tokenizer == nullptr) return {{"error", bundle.tokenizer_error.message()}};
  const Tokenizer& tokenizer = *bundle.tokenizer;
  Json json = {{"kind", tokenizer.description()},
               {"vocab_size", tokenizer.vocab_size()},
               {"bos_id", tokenizer.bos_id()},
               {"eos_id", tokenizer.eos_id()},
               {"stop_ids", std::vector<int32_t>(tokenizer.stop_ids().begin(), tokenizer.stop_ids().end())},
               {"add_bos", tokenizer.add_bos()},
               {"chat_template", bundle.has_own_template}};
  if (!bundle.template_error.ok()) json["chat_template_error"] = bundle.template_error.message();
  return json;
}

Json MemoryJson(const ModelBundle& bundle, const ModelOptions& options) {
  const MemoryPlan& memory = bundle.memory;
  return {{"context", ContextOf(options, bundle.spec)},
          {"parallel", options.max_seqs},
          {"weight_bytes", memory.weight_bytes},
          {"mapped_bytes", memory.borrowed_bytes},
          {"kv_bytes", memory.kv_bytes},
          {"workspace_bytes", memory.workspace_bytes},
          {"total_bytes", memory.total_bytes()},
          {"kv_tokens", memory.kv_tokens},
          {"gpu_layers", memory.gpu_layers},
          {"gpu_weight_bytes", memory.gpu_weight_bytes},
          {"gpu_kv_bytes", memory.gpu_kv_bytes},
          {"gpu_workspace_bytes", memory.gpu_workspace_bytes},
          {"gpu_graph_bytes", memory.gpu_graph_bytes},
          {"gpu_limit_bytes", memory.gpu_limit_bytes}};
}

Json ToJson(const InspectFlags& flags, const ModelBundle& bundle, const ModelFiles& files) {
  Json types = Json::array();
  for (const auto& type : files.types) {
    types.push_back({{"type", DTypeName(type.dtype)},
                     {"tensors", type.tensors},
                     {"values", type.values},
                     {"bytes", type.bytes}});
  }
  Json json = {{"model", flags.model.Place()},
               {"format", files.format},
               {"files", files.num_files},
               {"file_bytes", files.file_bytes},
               {"parameters", files.num_values()},
               {"hyper_parameters", HyperParameters(bundle.spec)},
               {"tokenizer", TokenizerJsonOf(bundle)},
               {"types", types},
               {"memory", MemoryJson(bundle, flags.model.options)}};
  if (flags.tensors) {
    Json list = Json::array();
    for (const auto& tensor : files.tensors) {
      list.push_back({{"name", tensor.name},
                      {"type", DTypeName(tensor.dtype)},
                      {"shape", tensor.dims},
                      {"bytes", tensor.bytes}});
    }
    json["tensors"] = std::move(list);
  }
  if (flags.metadata) {
    Json list = Json::object();
    for (const auto& field : files.metadata) list[field.key] = {{"type", field.type}, {"value", field.value}};
    json["metadata"] = std::move(list);
  }
  return json;
}

// "key value" lines; text without JSON's quotes.
void AddLines(const Json& object, std::string* text) {
  for (const auto& [key, value] : object.items()) {
    *text += fmt::format("  {:<22}{}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

std::string ToText(const InspectFlags& flags, const ModelBundle& bundle, const ModelFiles& files) {
  std::string text =
      fmt::format("{}: {}, {} in {} file{}, {:.2f} billion parameters\n", flags.model.Place(), files.format,
                  Bytes(files.file_bytes), files.num_files, files.num_files == 1 ? "" : "s",
                  static_cast<double>(files.num_values()) / 1e9);
  text += "\nmodel\n";
  AddLines(HyperParameters(bundle.spec), &text);
  text += "\ntokenizer\n";
  AddLines(TokenizerJsonOf(bundle), &text);
  text += fmt::format("\n{} tensors\n", files.tensors.size());
  for (const auto& type : files.types) {
    text += fmt::format("  {:<10}{:>7} tensors {:>16} values {:>12}\n", DTypeName(type.dtype), type.tensors,
                        type.values, Bytes(type.bytes));
  }
  const MemoryPlan& memory = bundle.memory;
  text += fmt::format("\nmemory at context {}, {} sequence{}, KV {}\n",
                      ContextOf(flags.model.options, bundle.spec), flags.model.options.max_seqs,
                      flags.model.options.max_seqs == 1 ? "" : "s",
                      flags.model.options.kv.type == "auto" ? "f16" : flags.model.options.kv.type);
  const std::pair<const char*, int64_t> parts[] = {{"weights, own copy", memory.weight_bytes},
                                                   {"weights, in the file", memory.borrowed_bytes},
                                                   {"KV cache", memory.kv_bytes},
                                                   {"workspace", memory.workspace_bytes},
                                                   {"together", memory.total_bytes()}};
  for (const auto& [name, bytes] : parts)
    text += fmt::format("  {:<22}{:>12} {:>18}\n", name, Bytes(bytes), bytes);
  if (memory.gpu_layers > 0) {
    text += fmt::format("on the GPU, {} of {} layers, {} KV tokens\n", memory.gpu_layers, bundle.spec.num_layers, memory.kv_tokens);
    const std::pair<const char*, int64_t> gpu_parts[] = {{"weights", memory.gpu_weight_bytes},
                                                         {"KV cache", memory.gpu_kv_bytes},
                                                         {"activations, state", memory.gpu_workspace_bytes},
                                                         {"graphs, driver", memory.gpu_graph_bytes},
                                                         {"together", memory.gpu_bytes()},
                                                         {"limit", memory.gpu_limit_bytes}};
    for (const auto& [name, bytes] : gpu_parts) text += fmt::format("  {:<22}{:>12} {:>18}\n", name, Bytes(bytes), bytes);
  }
  if (flags.tensors) {
    text += "\n";
    for (const auto& tensor : files.tensors) {
      text +=
          fmt::format("{:<52} {:<8} {:>22} {:>14}\n", tensor.name, DTypeName(tensor.dtype),
                      ShapeString(tensor.dims.data(), static_cast<int>(tensor.dims.size())), tensor.bytes);
    }
  }
  if (flags.metadata) {
    text += "\n";
    for (const auto& field : files.metadata)
      text += fmt::format("{:<44} {:<16} {}\n", field.key, field.type, field.value);
  }
  return text;
}

Status Inspect(const InspectFlags& flags, Output* output) {
  const ModelOptions& options = flags.model.options;
  ASSIGN_OR_RETURN(const ModelBundle bundle, PlanModel(options));
  ASSIGN_OR_RETURN(const ModelFiles files,
                   options.dummy.empty()
                       ? ListModelFiles(options.path)
                       : ListDummyFiles(options.dummy, options.dummy_layers, options.dummy_type));
  if (flags.json) {
    return output->Write(ToJson(flags, bundle, files).dump(2, ' ', false, Json::error_handler_t::replace) +
                         "\n");
  }
  return output->Write(ToText(flags, bundle, files));
}

}  // namespace

int InspectCommand(Args args) {
  InspectFlags flags;
  FlagSet set("inspect -m FILE|FOLDER [-c N]",
              "What a model is, and the exact memory it will need, without loading its weights.");
  std::string positional;
  set.Positional("FILE|FOLDER", &positional, "the same as -m");
  set.Switch("--tensors", &flags.tensors, "list every tensor: name, type, shape (slowest first), bytes");
  set.Switch("--metadata", &flags.metadata, "list the file's metadata, or config.json");
  set.Switch("--json", &flags.json, "as JSON");
  set.Int("-np,--parallel", &flags.model.options.max_seqs, 1, 1 << 16, "N", "sequences at the same time");
  flags.model.Declare(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (flags.model.options.path.empty()) flags.model.options.path = positional;
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  return ExitWith(Inspect(flags, &output), output);
}

}  // namespace cachalot
