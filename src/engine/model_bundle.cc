#include "engine/model_bundle.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/available_memory.h"
#include "engine/gpu_plan.h"
#include "engine/kv_gate.h"
#include "engine/kv_identity.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/text.h"
#include "model/arch/architecture.h"
#include "runtime/cuda_runtime.h"
#include "runtime/runtime.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "weights/dummy/dummy_source.h"
#include "weights/dummy/dummy_vocab.h"
#include "weights/file_source.h"

namespace cachalot {
namespace {

constexpr int32_t kDefaultContext = 4096;
constexpr int32_t kMaxSeqs = 1 << 16;
constexpr int32_t kMaxStepTokens = 1 << 20;

// What a path turned out to be.
struct OpenedFiles {
  SourceNaming naming = SourceNaming::kHuggingFace;
  std::shared_ptr<const GgufFile> gguf;
};

// Weights quantised by other tools come with a quantization_config; we read DeepSeek's FP8 with 128x128 blocks.
Status CheckQuantization(const HfConfig& config) {
  if (!config.Has("quantization_config")) return Status::Ok();
  ASSIGN_OR_RETURN(const HfConfig quantization, config.Object("quantization_config"));
  ASSIGN_OR_RETURN(const std::string method, quantization.StringOr("quant_method", ""));
  if (method != "fp8") return Unsupported("{}: quant_method '{}': only fp8 is known", quantization.place(), Printable(method));
  ASSIGN_OR_RETURN(const auto block, quantization.IntList("weight_block_size", 1, 1 << 20));
  if (block != std::vector<int64_t>{kFp8BlockSize, kFp8BlockSize}) {
    return Unsupported("{}: weight_block_size must be [128, 128]", quantization.place());
  }
  return Status::Ok();
}

Status ReadGenerationDefaults(const HfConfig& config, GenerationDefaults* defaults) {
  ASSIGN_OR_RETURN(const bool do_sample, config.BoolOr("do_sample", config.Has("temperature")));
  if (do_sample) {
    ASSIGN_OR_RETURN(const double temperature, config.FloatOr("temperature", -1.0, -1.0, 100.0));
    ASSIGN_OR_RETURN(const int64_t top_k, config.IntOr("top_k", -1, -1, INT32_MAX));
    ASSIGN_OR_RETURN(const double top_p, config.FloatOr("top_p", -1.0, -1.0, 1.0));
    ASSIGN_OR_RETURN(const double min_p, config.FloatOr("min_p", -1.0, -1.0, 1.0));
    defaults->temperature = static_cast<float>(temperature);
    defaults->top_k = static_cast<int32_t>(top_k);
    defaults->top_p = static_cast<float>(top_p);
    defaults->min_p = static_cast<float>(min_p);
  }
  ASSIGN_OR_RETURN(const double repetition, config.FloatOr("repetition_penalty", -1.0, -1.0, 100.0));
  defaults->repetition_penalty = static_cast<float>(repetition);
  return Status::Ok();
}

Status ReadGenerationDefaults(const GgufFile& file, GenerationDefaults* defaults) {
  ASSIGN_OR_RETURN(const double temperature, file.FloatOr("general.sampling.temp", -1.0, -1.0, 100.0));
  ASSIGN_OR_RETURN(const int64_t top_k, file.IntOr("general.sampling.top_k", -1, -1, INT32_MAX));
  ASSIGN_OR_RETURN(const double top_p, file.FloatOr("general.sampling.top_p", -1.0, -1.0, 1.0));
  ASSIGN_OR_RETURN(const double min_p, file.FloatOr("general.sampling.min_p", -1.0, -1.0, 1.0));
  ASSIGN_OR_RETURN(const double repetition, file.FloatOr("general.sampling.penalty_repeat", -1.0, -1.0, 100.0));
  *defaults = {static_cast<float>(temperature), static_cast<int32_t>(top_k), static_cast<float>(top_p),
               static_cast<float>(min_p), static_cast<float>(repetition)};
  return Status::Ok();
}

void SetTokenizer(Result<std::unique_ptr<Tokenizer>> tokenizer, ModelBundle* bundle) {
  if (!tokenizer.ok()) {
    bundle->tokenizer_error = tokenizer.status();
    return;
  }
  bundle->tokenizer = std::move(tokenizer).value();
  const std::string& own = bundle->tokenizer->chat_template();
  bundle->has_own_template = !own.empty();
  auto parsed = ChatTemplate::Parse(own.empty() ? ChatMlTemplate() : std::string_view(own), bundle->tokenizer->bos_text(),
                                    bundle->tokenizer->eos_text());
  if (parsed.ok()) bundle->chat_template = std::move(parsed).value();
  else bundle->template_error = parsed.status();
  if (bundle->chat_template != nullptr) bundle->tool_syntax = bundle->chat_template->caps().tool_syntax;
}

Result<OpenedFiles> OpenFolder(const ModelOptions& options, ModelBundle* bundle) {
  ASSIGN_OR_RETURN(const HfConfig config, HfConfig::Load(options.path));
  ASSIGN_OR_RETURN(bundle->spec, SpecFromHf(config));
  RETURN_IF_ERROR(CheckQuantization(config));
  ASSIGN_OR_RETURN(auto folder, SafetensorsFolder::Open(options.path));
  ASSIGN_OR_RETURN(bundle->source, MakeSafetensorsSource(std::move(folder), {.use_mmap = options.use_mmap}));
  if (FileExists(options.path + "/tokenizer.json")) {
    SetTokenizer(Tokenizer::FromFolder(options.path), bundle);
  } else {
    bundle->tokenizer_error = NotFound("{}: there is no tokenizer.json", options.path);
  }
  const std::string generation = options.path + "/generation_config.json";
  if (FileExists(generation)) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(generation, 1 << 20));
    ASSIGN_OR_RETURN(const HfConfig parsed, HfConfig::Parse(text, generation));
    RETURN_IF_ERROR(ReadGenerationDefaults(parsed, &bundle->generation));
  }
  return OpenedFiles{.naming = SourceNaming::kHuggingFace, .gguf = nullptr};
}

Result<OpenedFiles> OpenGguf(const ModelOptions& options, ModelBundle* bundle) {
  OpenedFiles opened{.naming = SourceNaming::kGguf, .gguf = nullptr};
  ASSIGN_OR_RETURN(opened.gguf, GgufFile::Open(options.path));
  ASSIGN_OR_RETURN(bundle->spec, SpecFromGguf(*opened.gguf));
  ASSIGN_OR_RETURN(bundle->source, MakeGgufSource(opened.gguf, {.use_mmap = options.use_mmap}));
  if (opened.gguf->Has("tokenizer.ggml.model")) {
    SetTokenizer(Tokenizer::FromGguf(*opened.gguf), bundle);
  } else {
    bundle->tokenizer_error = NotFound("{}: there is no tokenizer.ggml.model", options.path);
  }
  RETURN_IF_ERROR(ReadGenerationDefaults(*opened.gguf, &bundle->generation));
  return opened;
}

Result<OpenedFiles> OpenDummy(const ModelOptions& options, ModelBundle* bundle) {
  ASSIGN_OR_RETURN(const DummyModel model, ResolveDummy(options.dummy, options.dummy_layers, options.dummy_type));
  ASSIGN_OR_RETURN(DummyWeights weights, MakeDummySource(options.dummy, options.dummy_layers, options.dummy_type));
  ASSIGN_OR_RETURN(const HfConfig config, HfConfig::Parse(weights.config_json, "dummy " + options.dummy));
  ASSIGN_OR_RETURN(bundle->spec, SpecFromHf(config));
  bundle->source = std::move(weights.source);
  ASSIGN_OR_RETURN(const auto vocabulary, MakeDummyVocabFile(model.spec));
  SetTokenizer(Tokenizer::FromGguf(*vocabulary), bundle);
  return OpenedFiles{.naming = SourceNaming::kHuggingFace, .gguf = nullptr};
}

Result<OpenedFiles> OpenSource(const ModelOptions& options, ModelBundle* bundle) {
  if (!options.dummy.empty()) return OpenDummy(options, bundle);
  if (options.path.empty()) return InvalidArgument("no model: give a GGUF file or a folder");
  if (!FileExists(options.path)) return NotFound("{}: no such file or folder", options.path);
  return IsDirectory(options.path) ? OpenFolder(options, bundle) : OpenGguf(options, bundle);
}

Status CheckRange(const char* name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return Status::Ok();
  return InvalidArgument("{} {}: must be between {} and {}", name, value, min, max);
}

Result<RuntimeOptions> ResolveRuntime(const ModelOptions& options, const ModelSpec& spec) {
  RuntimeOptions runtime;
  ASSIGN_OR_RETURN(runtime.isa, ParseIsa(options.isa));
  RETURN_IF_ERROR(CheckRange("threads", options.num_threads, 0, 1024));
  runtime.num_threads = options.num_threads > 0 ? options.num_threads : NumPhysicalCores();
  runtime.deterministic = options.deterministic;
  RETURN_IF_ERROR(CheckRange("parallel sequences", options.max_seqs, 1, kMaxSeqs));
  runtime.max_seqs = options.max_seqs;
  RETURN_IF_ERROR(CheckRange("batch size", options.max_step_tokens, 1, kMaxStepTokens));
  runtime.max_step_tokens = std::max(options.max_step_tokens, options.max_seqs);
  if (options.context > spec.max_context) {
    return InvalidArgument("context {}: the model was made for at most {} tokens", options.context, spec.max_context);
  }
  RETURN_IF_ERROR(CheckRange("context", options.context, 0, spec.max_context));
  runtime.max_context = options.context > 0 ? options.context : std::min(spec.max_context, kDefaultContext);
  RETURN_IF_ERROR(CheckRange("logit rows", options.max_logit_rows, 1, kMaxStepTokens));
  runtime.max_logit_rows = std::min(options.max_logit_rows, runtime.max_step_tokens);
  RETURN_IF_ERROR(CheckRange("KV block tokens", options.block_tokens, 1, 4096));
  runtime.block_tokens = options.block_tokens;
  RETURN_IF_ERROR(CheckRange("KV tokens", options.kv_tokens, 0, int64_t{1} << 40));
  RETURN_IF_ERROR(CheckRange("swap tokens", options.swap_tokens, 0, int64_t{1} << 40));
  runtime.swap_tokens = options.swap_tokens;
  runtime.kv_tokens = options.kv_tokens > 0 ? options.kv_tokens : int64_t{runtime.max_seqs} * runtime.max_context;
  runtime.mla_form = options.mla_form;
  runtime.mla_piece_tokens = options.mla_piece_tokens;
  runtime.kv_slice_bytes = options.kv_slice_bytes;
  runtime.drafts = options.drafts;
  if (options.drafts != DraftKind::kNone) {
    RETURN_IF_ERROR(CheckRange("drafts", options.max_drafts, 1, kMaxDrafts));
    runtime.max_drafts = options.max_drafts;
    runtime.accept_fixed = options.draft_accept_fixed;
  }
  return runtime;
}

// The two models mean the same by a token, as far as both vocabularies go.
Status CheckVocabularies(const ModelBundle& main, const ModelBundle& draft) {
  if (main.tokenizer == nullptr || draft.tokenizer == nullptr) {
    // Ids without text: their number is all that can be compared.
    if (main.spec.vocab_size == draft.spec.vocab_size) return Status::Ok();
    return InvalidArgument("the draft model's vocabulary has {} tokens, the model's {}", draft.spec.vocab_size, main.spec.vocab_size);
  }
  const int32_t common = std::min(main.tokenizer->vocab_size(), draft.tokenizer->vocab_size());
  for (int32_t id = 0; id < common; ++id) {
    const std::string_view a = main.tokenizer->TokenBytes(id), b = draft.tokenizer->TokenBytes(id);
    if (a == b) continue;
    return InvalidArgument("the draft model's vocabulary is another: token {} is '{}' there and '{}' in the model", id,
                           Printable(b), Printable(a));
  }
  return Status::Ok();
}

// A second model, up to its weights.
struct PreparedDraft {
  ModelBundle bundle;  // spec, tokenizer, source
  ModelBuildOptions build;
};

Result<PreparedDraft> PrepareDraft(const ModelOptions& options, const ModelBundle& main, const ModelBuildOptions& build) {
  if (options.draft_path.empty()) return InvalidArgument("drafts by a model, and no draft model is given");
  PreparedDraft draft;
  ModelOptions own;
  own.path = options.draft_path;
  own.use_mmap = options.use_mmap;
  ASSIGN_OR_RETURN(const OpenedFiles opened, OpenSource(own, &draft.bundle));
  RETURN_IF_ERROR(CheckVocabularies(main, draft.bundle).WithContext(options.draft_path));
  if (draft.bundle.spec.max_context <= 2 * options.max_drafts) {
    return InvalidArgument("{}: a context of {} tokens is too short to draft {}", options.draft_path,
                           draft.bundle.spec.max_context, options.max_drafts);
  }
  draft.build = {.naming = opened.naming, .pack = build.pack};
  draft.build.pack.borrow = options.use_mmap && !options.mlock;
  return draft;
}

struct Prepared {
  ModelBundle bundle;
  std::optional<PreparedDraft> draft;
  RuntimeOptions runtime;
  ModelBuildOptions build;
  std::optional<GpuPlan> gpu;  // some layers are on the GPU
};

// What the runtime takes, by its options as they are now.
void PlanRuntime(const ModelSpec& spec, Prepared* prepared) {
  const Runtime::Memory runtime =
      Runtime::PlanMemory(spec, prepared->build.load_mtp, prepared->runtime, prepared->draft ? &prepared->draft->bundle.spec : nullptr);
  MemoryPlan& memory = prepared->bundle.memory;
  memory.kv_bytes = runtime.kv_bytes;
  memory.workspace_bytes = runtime.workspace_bytes;
  memory.kv_tokens = prepared->runtime.kv_tokens;
}

// Everything before the weights.
Result<Prepared> Prepare(const ModelOptions& options) {
  Prepared prepared;
  ModelBundle& bundle = prepared.bundle;
  ASSIGN_OR_RETURN(const OpenedFiles opened, OpenSource(options, &bundle));
  const bool load_mtp = options.load_mtp || options.drafts == DraftKind::kMtp;
  if (load_mtp && bundle.spec.num_mtp_layers == 0) {
    return InvalidArgument("{}: the model has no MTP layer", bundle.source->place());
  }
  if (options.load_mtp && options.drafts == DraftKind::kMtp) {
    return InvalidArgument("MTP drafts and MTP logits: only one of them");
  }
  ASSIGN_OR_RETURN(prepared.runtime, ResolveRuntime(options, bundle.spec));
  ASSIGN_OR_RETURN(bundle.kv, ChooseKv(options.kv, bundle.spec));
  // Sinks have their price on a GPU, so only where they are asked for.
  if (bundle.kv.types.any_quantised() && options.kv.sinks > 0) {
    bundle.kv.types.sink_tokens = SinkTokens(options.kv.sinks, prepared.runtime.block_tokens);
  }
  prepared.runtime.kv_dtype = bundle.kv.plain;
  prepared.runtime.kv_types = bundle.kv.types;
  prepared.build = {.naming = opened.naming,
                    .pack = {.isa = prepared.runtime.isa, .borrow = options.dummy.empty() && options.use_mmap && !options.mlock},
                    .load_mtp = load_mtp,
                    .draft_head_tokens = options.draft_head_tokens,
                    .kv_types = bundle.kv.types,
                    .key_means = bundle.kv.key_means};
  ASSIGN_OR_RETURN(prepared.gpu, PlanGpu(options, bundle.spec, *bundle.source, prepared.build, prepared.runtime));
  MemoryPlan& memory = bundle.memory;
  if (prepared.gpu && options.drafts == DraftKind::kModel) {
    return Unsupported("a draft model runs on the CPU only, and {} layers of this model would be on the GPU (--device cpu "
                       "keeps it off)", prepared.gpu->num_layers);
  }
  if (prepared.gpu && options.drafts == DraftKind::kMtp && prepared.gpu->num_layers < bundle.spec.num_layers) {
    return Unsupported("MTP drafts need all layers in one place, and {} of {} layers would be on the GPU (--device cpu keeps "
                       "it off)", prepared.gpu->num_layers, bundle.spec.num_layers);
  }
  if (!prepared.gpu && bundle.kv.types.any_quantised() && options.kv.sinks < 0) {
    bundle.kv.types.sink_tokens = SinkTokens(kDefaultSinks, prepared.runtime.block_tokens);
    prepared.runtime.kv_types = prepared.build.kv_types = bundle.kv.types;
  }
  if (prepared.gpu) {
    prepared.build.num_cuda_layers = prepared.gpu->num_layers;
    prepared.build.rough_drafts = RoughDrafts(options);
    prepared.runtime = prepared.gpu->options.base;
    memory = prepared.gpu->memory;
    memory.kv_bytes += options.kv_host_bytes;
    return prepared;
  }
  if (options.kv_host_bytes > 0) {
    return InvalidArgument("--kv-offloading-size: all layers are on the CPU, where the KV cache is in the host's memory already");
  }
  ASSIGN_OR_RETURN(const auto planned, Model::Plan(bundle.spec, *bundle.source, prepared.build));
  memory.weight_bytes = planned->weight_bytes().owned;
  memory.borrowed_bytes = planned->weight_bytes().borrowed;
  if (options.drafts == DraftKind::kModel) {
    ASSIGN_OR_RETURN(prepared.draft, PrepareDraft(options, bundle, prepared.build));
    const ModelBundle& draft = prepared.draft->bundle;
    ASSIGN_OR_RETURN(const auto planned_draft, Model::Plan(draft.spec, *draft.source, prepared.draft->build));
    memory.weight_bytes += planned_draft->weight_bytes().owned;
    memory.borrowed_bytes += planned_draft->weight_bytes().borrowed;
  }
  PlanRuntime(bundle.spec, &prepared);
  return prepared;
}

// Blocks that leave the process are named by all that their bits depend on.
Result<std::string> IdentityOf(const ModelOptions& options, const Prepared& prepared) {
  const bool leave = !options.kv_disk_dir.empty() || options.names_every_byte;
  const bool generated = !options.dummy.empty();
  const WeightsSeen seen = generated || (!leave && !options.use_mmap) ? WeightsSeen::kSmall
                           : leave                                    ? WeightsSeen::kAll
                                                                      : WeightsSeen::kBeginnings;
  ASSIGN_OR_RETURN(std::string identity, KvIdentity(prepared.bundle.spec.architecture, *prepared.bundle.source, seen,
                                                    prepared.bundle.kv.Name(), prepared.runtime.block_tokens));
  if (!leave) return identity;
  const auto* gpu = prepared.gpu ? &*prepared.gpu : nullptr;
  ASSIGN_OR_RETURN(const std::string origin, KvOrigin(options.path, gpu != nullptr ? CudaLibraryPath(*gpu->backend) : ""));
  const RuntimeOptions& runtime = prepared.runtime;
  const std::string card = gpu == nullptr ? "" : fmt::format("-{}-{}-layers{}", gpu->card, gpu->num_layers, gpu->options.exact ? "-exact" : "");
  return fmt::format("{}-{}{}-{}-{}{}{}", identity, IsaName(runtime.isa), runtime.deterministic ? "-deterministic" : "",
                     static_cast<int>(runtime.mla_form), origin, card,
                     generated ? fmt::format("-{}-{}-{}", options.dummy, options.dummy_layers, options.dummy_type) : "");
}

// Loads the model with its GPU layers; called again if the device is lost, so it takes what outlives this function.
Result<CudaModel> LoadCudaModel(const GpuPlan& gpu, const ModelSpec& spec, const TensorSource& source, ModelBuildOptions build) {
  ASSIGN_OR_RETURN(auto uploader, CudaUploader::Create(gpu.backend, gpu.memory.gpu_weight_bytes, build.pack.pool));
  build.uploader = uploader.get();
  build.cuda_exact = gpu.options.exact;
  CudaModel loaded;
  ASSIGN_OR_RETURN(loaded.model, Model::Load(spec, source, build));
  ASSIGN_OR_RETURN(loaded.arena, uploader->Finish());
  return loaded;
}

// The model's KV types may be others afterwards.
Status PassKvGate(const ModelOptions& options, Prepared* prepared, std::unique_ptr<Model>* model, std::unique_ptr<ThreadPool>* pool) {
  ModelBundle& bundle = prepared->bundle;
  if (bundle.tokenizer == nullptr) return bundle.tokenizer_error.WithContext("--kv-max-kl measures on a text");
  KvGateModel gate = {std::move(*model), std::move(*pool)};
  ASSIGN_OR_RETURN(bundle.kv, GateKv(options.kv_gate, options.kv, bundle.kv, prepared->runtime, *bundle.tokenizer, &gate));
  *model = std::move(gate.model);
  *pool = std::move(gate.pool);
  prepared->runtime.kv_dtype = bundle.kv.plain;
  prepared->runtime.kv_types = bundle.kv.types;
  const int64_t planned = bundle.memory.owned_bytes();
  PlanRuntime(bundle.spec, prepared);
  if (bundle.memory.owned_bytes() <= planned) return Status::Ok();
  // It fell back to a cache for which nobody has looked whether it fits.
  const int64_t needed = bundle.memory.kv_bytes + bundle.memory.workspace_bytes, available = AvailableMemoryBytes();
  if (needed <= available) return Status::Ok();
  return Exhausted("--kv-max-kl {}: --kv-type {} costs more; a KV cache of {} for {} tokens takes {:.2f} GiB with its workspace, and {:.2f} GiB are available",
                   options.kv_gate.max_kl, options.kv.type, bundle.kv.Name(), bundle.memory.kv_tokens, GiB(needed), GiB(available));
}

}  // namespace

ModelBundle::ModelBundle() = default;
ModelBundle::~ModelBundle() = default;
ModelBundle::ModelBundle(ModelBundle&&) noexcept = default;
ModelBundle& ModelBundle::operator=(ModelBundle&&) noexcept = default;

Result<ModelBundle> PlanModel(const ModelOptions& options) {
  ASSIGN_OR_RETURN(Prepared prepared, Prepare(options));
  return std::move(prepared.bundle);
}

Result<ModelBundle> OpenModel(const ModelOptions& options) {
  ASSIGN_OR_RETURN(Prepared prepared, Prepare(options));
  ModelBundle& bundle = prepared.bundle;
  if (!prepared.gpu && !options.trace_streams.empty()) {
    return Unsupported("--trace-streams shows what a GPU's streams do, and all layers of this model are on the CPU");
  }
  if (prepared.gpu && options.kv_gate.max_kl > 0 && bundle.kv.types.any_quantised()) {
    return Unsupported("--kv-max-kl measures on the CPU only, and {} layers of this model would be on the GPU (--device cpu keeps it "
                       "off)", prepared.gpu->num_layers);
  }
  auto pool = std::make_unique<ThreadPool>(prepared.runtime.num_threads);
  prepared.build.pack.pool = pool.get();
  if (prepared.gpu) {
    ASSIGN_OR_RETURN(prepared.runtime.kv_identity, IdentityOf(options, prepared));
    prepared.gpu->options.base.kv_identity = prepared.runtime.kv_identity;
    // The source stays: a lost device is loaded anew from it.
    auto load = [gpu = *prepared.gpu, spec = bundle.spec, source = bundle.source.get(), build = prepared.build] {
      return LoadCudaModel(gpu, spec, *source, build);
    };
    ASSIGN_OR_RETURN(auto runtime, CudaRuntime::Create(prepared.gpu->backend, std::move(load), std::move(pool), prepared.gpu->options));
    bundle.cuda_runtime = runtime.get();
    bundle.runtime = std::move(runtime);
  } else {
    ASSIGN_OR_RETURN(auto model, Model::Load(bundle.spec, *bundle.source, prepared.build));
    if (options.kv_gate.max_kl > 0 && bundle.kv.types.any_quantised()) {
      RETURN_IF_ERROR(PassKvGate(options, &prepared, &model, &pool));
    }
    ASSIGN_OR_RETURN(prepared.runtime.kv_identity, IdentityOf(options, prepared));
    std::unique_ptr<Model> draft_model;
    if (prepared.draft) {
      PreparedDraft& draft = *prepared.draft;
      draft.build.pack.pool = pool.get();
      ASSIGN_OR_RETURN(draft_model, Model::Load(draft.bundle.spec, *draft.bundle.source, draft.build));
      bundle.draft_source = std::move(draft.bundle.source);
    }
    ASSIGN_OR_RETURN(auto runtime, Runtime::Create(std::move(model), std::move(pool), prepared.runtime, std::move(draft_model)));
    bundle.cpu_runtime = runtime.get();
    bundle.runtime = std::move(runtime);
    if (bundle.memory.borrowed_bytes == 0) bundle.source.reset();
  }
  if (options.mlock && ::mlockall(MCL_CURRENT) != 0) {
    return Exhausted("locking the model in memory failed: {} (see `ulimit -l`)", std::strerror(errno));
  }
  return std::move(bundle);
}

}  // namespace cachalot
