#include "tasks/dummy_gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "formats/gguf_writer.h"
#include "quant/format.h"
#include "weights/dummy/dummy_values.h"

namespace cachalot {
namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;

const char* GgufArchitecture(DummyFamily family) {
  switch (family) {
    case DummyFamily::kLlama:
    case DummyFamily::kMistral:
    case DummyFamily::kMixtral:
      return "llama";
    case DummyFamily::kQwen2:
      return "qwen2";
    case DummyFamily::kQwen3:
      return "qwen3";
    case DummyFamily::kQwen3Moe:
      return "qwen3moe";
    case DummyFamily::kDeepSeekMoe:
      return "deepseek";
    case DummyFamily::kDeepSeekV2:
    case DummyFamily::kDeepSeekV3:
      return "deepseek2";
  }
  return "";
}

// llama.cpp's LLAMA_FTYPE numbers, which are for people only.
int FileType(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ8_0:
      return 7;
    case DType::kBF16:
      return 32;
    default:
      return -1;
  }
}

// How a tensor of the file is made of generated ones.
enum class Layout {
  kRows,    // one or more tensors behind each other, row by row
  kRotary,  // rows (head, half, i) become (head, i, half)
  kKeyB,    // kv_b's key rows of each head, transposed
  kValueB,  // kv_b's value rows of each head
};

struct FileTensor {
  std::string name;
  DType dtype = DType::kF32;
  Layout layout = Layout::kRows;
  std::vector<int64_t> dims;
  std::vector<const DummyTensor*> sources;
  std::vector<float> constants;  // instead of sources
};

void SetMetadata(const DummyModel& model, GgufWriter* writer) {
  const DummySpec& spec = model.spec;
  const std::string arch = GgufArchitecture(spec.family);
  const auto u32 = [&](const char* key, int64_t value) {
    writer->SetU32(arch + "." + key, static_cast<uint32_t>(value));
  };
  const auto f32 = [&](const char* key, double value) {
    writer->SetF32(arch + "." + key, static_cast<float>(value));
  };
  writer->SetString("general.architecture", arch);
  writer->SetString("general.type", "model");
  writer->SetString("general.name", fmt::format("dummy {}", spec.name));
  if (const int file_type = FileType(model.type); file_type >= 0) {
    writer->SetU32("general.file_type", static_cast<uint32_t>(file_type));
  }
  writer->SetU32("general.quantization_version", 2);
  u32("block_count", spec.layers);
  u32("context_length", spec.context);
  u32("embedding_length", spec.hidden);
  u32("feed_forward_length",
      spec.family == DummyFamily::kMixtral ? spec.moe_intermediate : spec.intermediate);
  u32("vocab_size", spec.vocab_size);
  u32("attention.head_count", spec.q_heads);
  f32("attention.layer_norm_rms_epsilon", spec.eps);
  f32("rope.freq_base", spec.theta);
  if (spec.mla()) {
    u32("attention.head_count_kv", 1);
    u32("attention.key_length", spec.kv_lora + spec.rope_dim);
    u32("attention.value_length", spec.kv_lora);
    u32("attention.key_length_mla", spec.nope_dim + spec.rope_dim);
    u32("attention.value_length_mla", spec.v_dim);
    u32("attention.q_lora_rank",
        spec.q_lora);  // 0 too: llama.cpp does without the key at V2-Lite's 27 layers only
    u32("attention.kv_lora_rank", spec.kv_lora);
    u32("rope.dimension_count", spec.rope_dim);
  } else {
    u32("attention.head_count_kv", spec.kv_heads);
    u32("attention.key_length", spec.head_dim);
    u32("attention.value_length", spec.head_dim);
    u32("rope.dimension_count", spec.head_dim);
  }
  if (spec.window > 0) u32("attention.sliding_window", spec.window);
  if (spec.yarn_factor > 0) {
    writer->SetString(arch + ".rope.scaling.type", "yarn");
    f32("rope.scaling.factor", spec.yarn_factor);
    u32("rope.scaling.original_context_length", spec.yarn_original_context);
    f32("rope.scaling.yarn_log_multiplier", 0.1 * spec.yarn_mscale);
  }
  if (spec.experts > 0) {
    u32("expert_count", spec.experts);
    u32("expert_used_count", spec.top_k);
    if (spec.family != DummyFamily::kMixtral) u32("expert_feed_forward_length", spec.moe_intermediate);
    if (spec.family == DummyFamily::kDeepSeekMoe || spec.mla()) {
      u32("leading_dense_block_count", spec.first_dense);
      u32("expert_shared_count", spec.shared_experts);
      f32("expert_weights_scale", spec.scaling);
      writer->SetBool(arch + ".expert_weights_norm", spec.normalize);
    }
    if (spec.mla()) u32("expert_gating_func", spec.family == DummyFamily::kDeepSeekV3 ? 2 : 1);
    if (spec.groups > 1) {
      u32("expert_group_count", spec.groups);
      u32("expert_group_used_count", spec.top_k_groups);
    }
  }
}

// Llama 3.1's frequency divisors, one for each rotated pair.
std::vector<float> Llama3Divisors(const DummySpec& spec) {
  constexpr double kOriginal = 8192, kLow = 1, kHigh = 4;
  std::vector<float> divisors;
  for (int32_t i = 0; i < spec.head_dim / 2; ++i) {
    const double wavelength = 2 * M_PI * std::pow(spec.theta, 2.0 * i / spec.head_dim);
    const double kept = std::clamp((kOriginal / wavelength - kLow) / (kHigh - kLow), 0.0, 1.0);
    divisors.push_back(static_cast<float>(1.0 / (kept + (1.0 - kept) / spec.llama3_factor)));
  }
  return divisors;
}

class Planner {
 public:
  Planner(const DummyModel& model, const std::vector<DummyTensor>& tensors)
      : model_(model), tensors_(tensors) {}

  std::vector<FileTensor> Plan() {
    for (const auto& tensor : tensors_) {
      if (tensor.layer >= model_.spec.layers) continue;  // converters leave the MTP layer out
      tensor.role == DummyRole::kKvB ? AddKvB(tensor) : AddTensor(tensor);
    }
    if (model_.spec.llama3_factor > 0) {
      FileTensor divisors;
      divisors.name = "rope_freqs.weight";
      divisors.constants = Llama3Divisors(model_.spec);
      divisors.dims = {static_cast<int64_t>(divisors.constants.size())};
      files_.push_back(std::move(divisors));
    }
    return std::move(files_);
  }

 private:
  void AddTensor(const DummyTensor& tensor) {
    const std::string name = Name(tensor.layer, GgufNameOf(tensor.role));
    const bool stacked = tensor.expert >= 0;
    if (stacked && tensor.expert > 0) {
      auto& stack = files_[stacks_.at(name)];
      stack.sources.push_back(&tensor);
      ++stack.dims[0];
      return;
    }
    FileTensor file;
    file.name = name;
    // As converters do: vectors and the router are F32.
    const bool keep = tensor.info.num_dims > 1 && tensor.role != DummyRole::kRouter;
    file.dtype = keep ? tensor.info.dtype : DType::kF32;
    if (stacked) file.dims.push_back(1);
    file.dims.insert(file.dims.end(), tensor.info.dims, tensor.info.dims + tensor.info.num_dims);
    file.sources.push_back(&tensor);
    if (Permutes() && (tensor.role == DummyRole::kQ || tensor.role == DummyRole::kK))
      file.layout = Layout::kRotary;
    if (stacked) stacks_[name] = files_.size();
    files_.push_back(std::move(file));
  }

  void AddKvB(const DummyTensor& tensor) {
    const DummySpec& spec = model_.spec;
    FileTensor key, value;
    key.name = Name(tensor.layer, "attn_k_b.weight");
    key.layout = Layout::kKeyB;
    key.dims = {spec.q_heads, spec.kv_lora, spec.nope_dim};
    // Blocks run along the other dimension than in kv_b.
    const bool fits = spec.nope_dim % GetDTypeInfo(tensor.info.dtype).block_size == 0;
    key.dtype = fits ? tensor.info.dtype : DType::kF16;
    value.name = Name(tensor.layer, "attn_v_b.weight");
    value.layout = Layout::kValueB;
    value.dims = {spec.q_heads, spec.v_dim, spec.kv_lora};
    value.dtype = tensor.info.dtype;
    key.sources = value.sources = {&tensor};
    files_.push_back(std::move(key));
    files_.push_back(std::move(value));
  }

  bool Permutes() const {
    const std::string_view arch = GgufArchitecture(model_.spec.family);
    return arch == "llama" || arch == "deepseek";
  }

  static std::string Name(int32_t layer, const char* suffix) {
    return layer < 0 ? suffix : fmt::format("blk.{}.{}", layer, suffix);
  }

  const DummyModel& model_;
  const std::vector<DummyTensor>& tensors_;
  std::vector<FileTensor> files_;
  std::map<std::string, size_t> stacks_;
};

// Streams one tensor after the other, each in chunks whose rows the threads share.
class Writer {
 public:
  Writer(const DummySpec& spec, int64_t total_bytes, const WriteProgress& progress)
      : spec_(spec), total_bytes_(total_bytes), progress_(progress), pool_(NumPhysicalCores()) {}

  Status Fill(const FileTensor& file, ByteSink& sink) {
    if (file.sources.empty()) return Put(sink, std::as_bytes(std::span(file.constants)));
    for (const auto* source : file.sources) RETURN_IF_ERROR(FillFrom(file, *source, sink));
    return Status::Ok();
  }

 private:
  // A unit is what is made at once: a row, or for k_b the whole matrix of a head.
  Status FillFrom(const FileTensor& file, const DummyTensor& source, ByteSink& sink) {
    const DummyRows rows(source);
    const int64_t cols = file.dims.back();
    int64_t num_units = source.num_rows(), unit_rows = 1;
    if (file.layout == Layout::kKeyB) num_units = spec_.q_heads, unit_rows = spec_.kv_lora;
    if (file.layout == Layout::kValueB) num_units = int64_t{spec_.q_heads} * spec_.v_dim;
    const int64_t unit_bytes = DTypeBytes(file.dtype, cols) * unit_rows;
    const int64_t chunk = std::max<int64_t>(1, kChunkBytes / unit_bytes);
    for (int64_t begin = 0; begin < num_units; begin += chunk) {
      const int64_t count = std::min(chunk, num_units - begin);
      chunk_.resize(static_cast<size_t>(count * unit_bytes));
      constexpr int64_t kPiecesAThread = 4;
      const int64_t num_pieces = std::min<int64_t>(count, pool_.num_threads() * kPiecesAThread);
      pool_.ParallelFor(num_pieces, [&](int64_t piece, int) {
        for (int64_t i = count * piece / num_pieces; i < count * (piece + 1) / num_pieces; ++i) {
          Unit(file, source, rows, begin + i, chunk_.data() + i * unit_bytes);
        }
      });
      RETURN_IF_ERROR(Put(sink, chunk_));
    }
    return Status::Ok();
  }

  void Unit(const FileTensor& file, const DummyTensor& source, const DummyRows& rows, int64_t unit,
            std::byte* out) const {
    switch (file.layout) {
      case Layout::kRows:
        return Row(file, source, rows, unit, out);
      case Layout::kRotary: {
        const int64_t half = spec_.head_dim / 2, head = unit / spec_.head_dim,
                      in_head = unit % spec_.head_dim;
        return Row(file, source, rows, head * spec_.head_dim + (in_head % 2) * half + in_head / 2, out);
      }
      case Layout::kValueB: {
        const int64_t head = unit / spec_.v_dim;
        return Row(file, source, rows,
                   head * (spec_.nope_dim + spec_.v_dim) + spec_.nope_dim + unit % spec_.v_dim, out);
      }
      case Layout::kKeyB:
        return KeyHead(file, source, rows, unit, out);
    }
  }

  void Row(const FileTensor& file, const DummyTensor& source, const DummyRows& rows, int64_t row,
           std::byte* out) const {
    if (file.dtype == source.info.dtype) return rows.Fill(row, 1, out);
    std::vector<std::byte> stored(static_cast<size_t>(rows.row_bytes()));
    rows.Fill(row, 1, stored.data());
    std::vector<float> values(static_cast<size_t>(source.num_cols()));
    FindQuantFormat(source.info.dtype)->decode(stored.data(), values.data(), source.num_cols());
    FindQuantFormat(file.dtype)->encode(values.data(), out, source.num_cols());
  }

  // [nope_dim, kv_lora] of kv_b to [kv_lora, nope_dim].
  void KeyHead(const FileTensor& file, const DummyTensor& source, const DummyRows& rows, int64_t head,
               std::byte* out) const {
    const int64_t nope = spec_.nope_dim, rank = spec_.kv_lora;
    std::vector<std::byte> stored(static_cast<size_t>(rows.row_bytes() * nope));
    rows.Fill(head * (nope + spec_.v_dim), nope, stored.data());
    std::vector<float> values(static_cast<size_t>(nope * rank)), turned(values.size());
    FindQuantFormat(source.info.dtype)->decode(stored.data(), values.data(), nope * rank);
    for (int64_t i = 0; i < nope; ++i) {
      for (int64_t j = 0; j < rank; ++j)
        turned[static_cast<size_t>(j * nope + i)] = values[static_cast<size_t>(i * rank + j)];
    }
    FindQuantFormat(file.dtype)->encode(turned.data(), out, nope * rank);
  }

  Status Put(ByteSink& sink, std::span<const std::byte> bytes) {
    RETURN_IF_ERROR(sink.Append(bytes));
    done_bytes_ += static_cast<int64_t>(bytes.size());
    if (progress_ && !progress_(done_bytes_, total_bytes_)) {
      return Cancelled("stopped after {} of {} bytes", done_bytes_, total_bytes_);
    }
    return Status::Ok();
  }

  const DummySpec& spec_;
  const int64_t total_bytes_;
  const WriteProgress& progress_;
  ThreadPool pool_;
  int64_t done_bytes_ = 0;
  std::vector<std::byte> chunk_;
};

}  // namespace

Status WriteDummyGguf(const DummyModel& model, const std::vector<GgufEntry>& tokenizer,
                      const std::string& path, const WriteProgress& progress) {
  if (GetDTypeInfo(model.type).ggml_type < 0) {
    return Unsupported("{}: GGUF has no type {}; give a folder as the output instead", path,
                       DTypeName(model.type));
  }
  const std::vector<DummyTensor> tensors = ListDummyTensors(model.spec, model.type);
  const std::vector<FileTensor> files = Planner(model, tensors).Plan();
  GgufWriter gguf;
  SetMetadata(model, &gguf);
  for (const auto& entry : tokenizer) gguf.Set(entry.key, entry.value);
  int64_t total_bytes = 0;
  for (const auto& file : files) {
    RETURN_IF_ERROR(gguf.AddTensor(file.name, file.dtype, file.dims));
    total_bytes += gguf.tensors().back().bytes;
  }
  Writer writer(model.spec, total_bytes, progress);
  size_t next = 0;
  return gguf.Write(path, [&](const GgufTensor& tensor, ByteSink& sink) {
    const FileTensor& file = files[next++];
    CHECK(file.name == tensor.name) << tensor.name;
    return writer.Fill(file, sink);
  });
}

}  // namespace cachalot
