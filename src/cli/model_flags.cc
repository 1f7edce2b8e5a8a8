#include "cli/model_flags.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/file.h"
#include "base/log.h"
#include "cli/console.h"
#include "spec/draft_source.h"
#include "tasks/output_check.h"
#include "weights/dummy/dummy_source.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;
constexpr int32_t kMaxTokens = 1 << 30;
constexpr char kDeepSeekKvType[] = "k6v8";
constexpr int32_t kMaxSinks = 1 << 16;
constexpr int64_t kDefaultKvDiskBytes = int64_t{8} << 30;

}  // namespace

void ModelFlags::Declare(FlagSet* flags, Extent extent) {
  flags->Section("Model");
  flags->String("-m,--model", &options.path, "FILE|FOLDER", "GGUF file, or Hugging Face folder");
  hub.Declare(flags, HubFlags::kAll);
  flags->String("--dummy", &options.dummy, "SPEC",
                "instead of -m: generated weights (see cachalot dummy --help)");
  flags->Int("--dummy-layers", &options.dummy_layers, 0, 1000, "N", "layers of the dummy (0: all)");
  flags->String("--dummy-type", &options.dummy_type, "TYPE", "type of its weights: f32, bf16, q8_0, q4_0, …");
  flags->Int("-c,--ctx-size", &options.context, 0, kMaxTokens, "N",
             "tokens of one sequence (0: the model's own, at most 4096)");
  if (extent == kAll) {
    flags->Int("-t,--threads", &options.num_threads, 0, 1024, "N", "threads (0: physical cores)");
    flags->Int("-b,--batch-size", &options.max_step_tokens, 1, 1 << 20, "N",
               fmt::format("tokens in one step at most (default {})", options.max_step_tokens));
  }
  flags->Choice(
      "--kv-type", &options.kv.type, KvTypeNames(),
      fmt::format("type of the KV cache (default {}); k6v8: keys of 6 bits, values\nof 8, and so on", options.kv.type == "auto" ? "f16" : options.kv.type));
  flags->String("--kv-layers", &options.kv.layers, "N-M=TYPE,…", "another type for some layers, such as 0-1=f16,29=k8v8");
  flags->Choice("--kv-group", &options.kv.group, {"auto", "head", "32", "64", "128"},
                "values of a quantised key that share a scale (default: the type's)");
  flags->Choice("--kv-rotate", &options.kv.rotate, {"auto", "on", "off"},
                "Hadamard rotation of quantised keys (default: the type's)");
  flags->Int("--kv-sinks", &options.kv.sinks, 0, kMaxSinks, "N",
             fmt::format("first tokens that stay exact in a quantised cache, up to whole blocks\n(default {}, with layers on a GPU 0)", kDefaultSinks));
  flags->Path("--kv-calibration", &options.kv.calibration, "FILE",
              "means that are taken off the keys first (cachalot kv calibrate)");
  flags->Float("--kv-budget", &options.kv.budget, 0, 16, "BITS",
               "instead of --kv-type: so many bits a value on average; which layer gets\nwhich type is said by what --kv-calibration FILE measured");
  flags->Float("--kv-max-kl", &options.kv_gate.max_kl, 0, 1e9, "NATS",
               "refuses a quantised cache whose mean KL divergence from BF16, measured\non a short text at the start, is larger (0: does not measure)");
  std::vector<std::string> fallbacks = KvTypeNames();
  fallbacks.insert(fallbacks.begin(), "refuse");
  flags->Choice("--kv-fallback", &options.kv_gate.fallback, fallbacks,
                "or goes on with another type then; auto: the next more exact one\nthat passes (default refuse)");
  flags->String("--kv-max-kl-text", &options.kv_gate.text, "FILE", "the text; 512 tokens of it are read (default: one of the program's)");
  flags->Switch("--enable-deepseek-kv", &deepseek_kv_,
                "--kv-type k6v8: blocks that libcachalot_flashinfer.so unpacks");
  flags->String("-ctk,--cache-type-k", &cache_type_k_, "TYPE", "");
  flags->String("-ctv,--cache-type-v", &cache_type_v_, "TYPE", "");
  flags->Choice("--isa", &options.isa, {"auto", "ref", "avx2", "avx512", "amx"}, "instruction set of the kernels");
  flags->Choice("-dev,--device", &options.device, {"auto", "cpu", "cuda"},
                "where the model runs (default auto: on a GPU if there is one, as\nmany layers as its memory holds)");
  flags->String("-ngl,--gpu-layers,--n-gpu-layers", &gpu_layers_, "N",
                "the last N layers on the GPU, or all (default auto: as many as fit)");
  flags->Float("--gpu-memory-utilization", &options.gpu_memory_utilization, 0.01, 1.0, "SHARE",
               "of the card's memory that may be in use (default 0.9)");
  flags->Bytes("--gpu-memory", &options.gpu_memory, "SIZE", "instead: how much may be used, such as 12GiB");
  flags->Switch("--gpu-exact", &options.gpu_exact, "F32 arithmetic on the GPU: slow, for comparisons");
  flags->Switch("--no-graphs", &no_graphs_, "launch the GPU's ops one by one");
  flags->Switch("--deterministic", &options.deterministic,
                "one form of every computation, whatever the batch and chunks:\nthe same bits each time");
  flags->Switch("--no-mmap", &no_mmap_, "read the file instead of mapping it");
  flags->Switch("--mlock", &options.mlock, "lock the model in memory");
  flags->Choice("-fa,--flash-attn", &flash_attention_, {"on", "off", "auto"},
                "attention is always fused here: 'off' is refused", "on");
  flags->Choice("--spec", &drafts_, {"none", "ngram", "mtp", "draft"},
                "guess tokens ahead and verify them together: look them up in the text\nso far, by the model's MTP layer, or by a draft model (-md)");
  flags->Int("--draft-max,--draft,--draft-n", &draft_max_, 1, kMaxDrafts, "N",
             fmt::format("tokens guessed at a time, at most; fewer or none where that would\nnot pay (1 to {}, default {})", kMaxDrafts, options.max_drafts));
  flags->String("-md,--model-draft", &options.draft_path, "FILE|FOLDER", "the draft model of --spec draft; same vocabulary");
  flags->Int("--draft-head-tokens", &options.draft_head_tokens, 0, 1 << 24, "N",
             "MTP guesses only tokens below N (default 0: any), and reads so much\nless; those of a BPE vocabulary are the more frequent ones");
  flags->Switch("--draft-always", &draft_always_, "guess --draft-max tokens in every step, paying or not");
  flags->Float("--spec-accept-fixed", &options.draft_accept_fixed, 0.0, 1.0, "P",
               "for benchmarks only: guesses count as right with this probability,\nso the text means nothing");
  flags->Choice("--log-level", &log_level, {"trace", "debug", "info", "warn", "error", "off"},
                "how much is told on standard error (default warn)");
  flags->Choice("--color", &color, {"auto", "always", "never"}, "colour in a terminal");
}

void ModelFlags::DeclareKvTiers(FlagSet* flags) {
  flags->Bytes("--kv-offloading-size", &options.kv_host_bytes, "SIZE",
               "of the host's memory, such as 64GiB: keeps what was computed of\nprompts there too, where it outlives its place on the GPU");
  flags->Path("--kv-disk", &options.kv_disk_dir, "DIR",
              "keeps what was computed of prompts there too, so that it outlives\nmemory and the process");
  flags->Bytes("--kv-disk-size", &options.kv_disk_bytes, "SIZE", "that it may take there (default 8GiB)");
}

void ModelFlags::DeclareTrace(FlagSet* flags) {
  flags->Path("--trace-streams", &options.trace_streams, "FILE",
              "what the GPU's streams and the host do, by events with times, for\nchrome://tracing and Perfetto (at most 256 MiB)");
}

Status ModelFlags::Resolve() {
  const int given = !options.path.empty() + !options.dummy.empty() + !hub.repo.empty();
  if (given == 0) return InvalidArgument("no model given: -m FILE|FOLDER, -hf ORG/REPO, or --dummy SPEC");
  if (given > 1) return InvalidArgument("-m, -hf and --dummy: only one model at a time");
  if (!hub.repo.empty()) RETURN_IF_ERROR(hub.Resolve());
  if (options.dummy.empty() && (options.dummy_layers != 0 || !options.dummy_type.empty())) {
    return InvalidArgument("--dummy-layers and --dummy-type say nothing without --dummy SPEC");
  }
  if (!options.dummy.empty()) {
    RETURN_IF_ERROR(ResolveDummy(options.dummy, options.dummy_layers, options.dummy_type).status());
  }
  if (flash_attention_ == "off") {
    return InvalidArgument(
        "--flash-attn off: there is no unfused attention here; leave the flag out, or give on or auto");
  }
  if (!cache_type_k_.empty() || !cache_type_v_.empty()) {
    // llama.cpp's default for the one that is not given.
    const std::string k = cache_type_k_.empty() ? "f16" : cache_type_k_;
    const std::string v = cache_type_v_.empty() ? "f16" : cache_type_v_;
    ASSIGN_OR_RETURN(options.kv.type, KvTypeOfPair(k, v));
  }
  if (deepseek_kv_) {
    if (options.kv.type != "auto" && options.kv.type != kDeepSeekKvType) {
      return InvalidArgument("--enable-deepseek-kv means --kv-type {}, but {} is asked for too", kDeepSeekKvType, options.kv.type);
    }
    options.kv.type = kDeepSeekKvType;
  }
  if (options.kv_gate.max_kl <= 0 && (options.kv_gate.fallback != "refuse" || !options.kv_gate.text.empty())) {
    return InvalidArgument("--kv-fallback and --kv-max-kl-text say nothing without --kv-max-kl NATS");
  }
  if (options.kv_disk_dir.empty() && options.kv_disk_bytes != 0) {
    return InvalidArgument("--kv-disk-size says nothing without --kv-disk DIR");
  }
  if (options.kv_disk_bytes == 0) options.kv_disk_bytes = kDefaultKvDiskBytes;
  if (!options.trace_streams.empty()) {
    if (options.device == "cpu") return InvalidArgument("--trace-streams: the device is the CPU, which has no streams");
    const auto inputs = Inputs();
    RETURN_IF_ERROR(CheckOutput("--trace-streams", options.trace_streams, inputs));
  }
  options.use_mmap = !no_mmap_;
  options.gpu_graphs = !no_graphs_;
  RETURN_IF_ERROR(ResolveGpuLayers());
  RETURN_IF_ERROR(ResolveDrafts());
  return SetLogLevel(log_level);
}

int ModelFlags::Fetch() {
  if (hub.repo.empty() || !options.path.empty()) return kExitOk;
  const auto model = hub.Pull();
  if (model.status().code() == StatusCode::kCancelled) return kExitInterrupted;
  if (!model.ok()) return ExitWith(model.status(), Output());
  options.path = model->path;
  return kExitOk;
}

Status ModelFlags::ResolveGpuLayers() {
  if (gpu_layers_ == "auto" || gpu_layers_ == "-1") return Status::Ok();
  if (gpu_layers_ == "all") {
    options.gpu_layers = INT32_MAX;
    return Status::Ok();
  }
  int32_t layers = 0;
  const auto [end, error] = std::from_chars(gpu_layers_.data(), gpu_layers_.data() + gpu_layers_.size(), layers);
  if (error != std::errc() || end != gpu_layers_.data() + gpu_layers_.size() || layers < 0) {
    return InvalidArgument("-ngl {}: must be a number of layers, auto or all", gpu_layers_);
  }
  if (layers > 0 && options.device == "cpu") return InvalidArgument("-ngl {}: the device is the CPU", gpu_layers_);
  options.gpu_layers = layers;
  return Status::Ok();
}

Status ModelFlags::ResolveDrafts() {
  for (const DraftKind kind : {DraftKind::kNone, DraftKind::kNgram, DraftKind::kMtp, DraftKind::kModel}) {
    if (drafts_ == DraftKindName(kind)) options.drafts = kind;
  }
  if ((options.drafts == DraftKind::kModel) == options.draft_path.empty()) {
    return InvalidArgument("--spec draft and -md FILE go together");
  }
  if (options.drafts == DraftKind::kNone && (draft_always_ || options.draft_accept_fixed >= 0)) {
    return InvalidArgument("--draft-always and --spec-accept-fixed say nothing without --spec");
  }
  if (options.drafts == DraftKind::kNone && draft_max_ > 0) return InvalidArgument("--draft-max says nothing without --spec");
  if (draft_max_ > 0) options.max_drafts = draft_max_;
  if (options.drafts != DraftKind::kMtp && options.draft_head_tokens > 0) {
    return InvalidArgument("--draft-head-tokens says nothing without --spec mtp");
  }
  options.adaptive_drafts = !draft_always_;
  return Status::Ok();
}

std::vector<std::string> ModelFlags::Inputs() const {
  return {options.path, options.draft_path, options.kv.calibration, options.kv_gate.text};
}

std::string ModelFlags::Place() const {
  if (!hub.repo.empty()) return hub.repo;
  return options.dummy.empty() ? options.path : "dummy " + options.dummy;
}

void PromptFlags::Declare(FlagSet* flags) {
  flags->Section("Input");
  flags->String("-p,--prompt", &prompt, "TEXT", "the text ('-': from standard input)");
  flags->String("-f,--file", &file, "FILE", "the text from a file");
}

Status PromptFlags::Resolve(const FlagSet& flags) const {
  const bool given = flags.Given("--prompt");
  if (given && !file.empty()) return InvalidArgument("-p and -f: only one of them");
  if (!given && file.empty() && ::isatty(STDIN_FILENO)) {
    return InvalidArgument("no text given: -p TEXT, -f FILE, or standard input");
  }
  return Status::Ok();
}

std::string PromptFlags::Input(const FlagSet& flags) const {
  if (!file.empty()) return file;
  return flags.Given("--prompt") && prompt != "-" ? "" : "/dev/stdin";
}

Result<std::string> PromptFlags::Read(const FlagSet& flags, Use use) const {
  const bool from_file = !file.empty();
  if (!from_file && flags.Given("--prompt") && prompt != "-") return prompt;
  ASSIGN_OR_RETURN(std::string text,
                   from_file ? ReadTextFile(file, kMaxTextBytes) : ReadStandardInput(kMaxTextBytes));
  if (use == Use::kPrompt && text.ends_with('\n')) text.pop_back();
  return text;
}

Result<std::string> ReadStandardInput(int64_t max_bytes) {
  std::string text;
  char piece[1 << 16];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, piece, sizeof(piece));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Internal("reading standard input: {}", std::strerror(errno));
    if (n == 0) return text;
    text.append(piece, static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return InvalidArgument("standard input has more than {} bytes", max_bytes);
    }
  }
}

}  // namespace cachalot
