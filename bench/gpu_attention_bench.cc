// Speed of decode attention over the paged cache at the shapes of real models: microseconds of a layer, TB/s of the visible
// keys and values, per cent of the read roof measured in the same run. A graph runs through layers with caches of their own,
// together far larger than L2, blocks in random order. Arguments: settings as of --gpu-tune ("-": the defaults), each a
// column; `cases=gqa|mla|prefill`, `seqs=1,16`, `context=2048,32768` and `block=16` choose rows; `types=fp8,k6v8,..` or `types=all` adds quantised
// caches, each with how many times faster than the F16 cache of the first column it is, and, behind fp8, than fp8's. Where FlashInfer is
// linked in, it attends the same caches. `cases=prefill`: chunks of a prompt behind what the cache holds, microseconds of a layer, TFLOP/s
// of what is visible, per cent of a large F16 matmul's on an H200.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/cuda_library.h"
#include "gpu_bench_cuda.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/common/cuda_batch.h"
#include "quant/kv_format.h"
#if CACHALOT_HAS_FLASHINFER
#include "gpu_flashinfer.h"
#endif

namespace cachalot {
namespace {

constexpr int64_t kPatternBytes = int64_t{64} << 20;
constexpr int64_t kColdBytes = int64_t{400} << 20;  // what one graph reads at least
constexpr int64_t kLeastLayers = 8, kMostLayers = 32;
constexpr int kReplays = 9;

struct Shape {
  const char* name;
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim;
  bool mla() const { return k_dim != v_dim; }
  int64_t token_bytes() const { return int64_t{num_kv_heads} * (mla() ? k_dim : k_dim + v_dim) * 2; }
};
constexpr double kMatmulFlops = 790e12;  // of a large F16 matmul by cuBLASLt there
struct Chunk {
  Shape shape;
  int32_t num_seqs, q_len, kv_len, block_tokens;
};
constexpr Shape kExpanded = {"V2-Lite, expanded", 16, 16, 192, 128};
constexpr Shape kLlama = {"Llama-8B", 32, 8, 128, 128};
constexpr Chunk kChunks[] = {
    {kLlama, 1, 1024, 1024, 16},    {kLlama, 1, 2048, 2048, 16},       {kLlama, 1, 8192, 8192, 16},
    {kLlama, 4, 2048, 2048, 16},    {kLlama, 1, 512, 8192, 16},        {kLlama, 1, 8192, 32768, 16},
    {kLlama, 1, 8192, 131072, 16},  {kExpanded, 1, 2048, 2048, 64},    {kExpanded, 1, 8192, 8192, 64},
    {kExpanded, 1, 8192, 32768, 64}, {{"heads of 64", 32, 8, 64, 64}, 1, 8192, 8192, 16},
};
constexpr Shape kShapes[] = {
    {"Llama-8B", 32, 8, 128, 128},
    {"V2-Lite", 16, 1, 576, 512},
    {"V3", 128, 1, 576, 512},
};

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
void Check(CudaStatus status) { Check(FromCuda(status)); }

struct Options {
  std::vector<std::string> settings;
  std::vector<const KvFormat*> types;
  bool gqa = true, mla = true, prefill = false;
  std::vector<int32_t> seqs = {1, 16, 64};
  std::vector<int32_t> contexts = {2048, 8192, 32768};
  int32_t block_tokens = 16;
};

std::vector<int32_t> Numbers(std::string_view text) {
  std::vector<int32_t> numbers;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const int number = std::atoi(std::string(text.substr(0, comma)).c_str());
    if (number < 1 || number > 1 << 20) {
      std::fprintf(stderr, "not a number from 1 to 1048576: %.*s\n", static_cast<int>(comma), text.data());
      std::exit(1);
    }
    numbers.push_back(number);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return numbers;
}

std::vector<const KvFormat*> Types(std::string_view text) {
  std::vector<const KvFormat*> types;
  if (text == "all") text = "fp8,k8v8,k6v8,k6v4,k4v4";
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    types.push_back(FindKvFormat(text.substr(0, comma)));
    if (types.back() == nullptr) {
      std::fprintf(stderr, "no KV type %.*s\n", static_cast<int>(comma), text.data());
      std::exit(1);
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return types;
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    const auto value = [&](std::string_view key) { return text.starts_with(key) ? text.substr(key.size()) : std::string_view(); };
    if (!value("cases=").empty()) {
      options.gqa = value("cases=") == "gqa";
      options.mla = value("cases=") == "mla";
      options.prefill = value("cases=") == "prefill";
    } else if (!value("seqs=").empty()) {
      options.seqs = Numbers(value("seqs="));
    } else if (!value("context=").empty()) {
      options.contexts = Numbers(value("context="));
    } else if (!value("types=").empty()) {
      options.types = Types(value("types="));
    } else if (!value("block=").empty()) {
      options.block_tokens = Numbers(value("block=")).front();
    } else {
      options.settings.emplace_back(text);
    }
  }
  if (options.settings.empty()) options.settings.emplace_back("-");
  return options;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    Result<const CudaBackend*> backend = LoadCudaBackend();
    Check(backend.status());
    backend_ = *backend;
    Check(backend_->set_device(0));
    Check(backend_->device_info(0, &info_));
    Check(backend_->stream_create(false, &exec_.stream));
    exec_.num_sms = info_.num_sms;
    int64_t most = 0;
    for (const Shape& shape : kShapes) {
      for (int32_t seqs : options.seqs) {
        for (int32_t context : options.contexts) most = std::max(most, LayerBytes(shape, seqs, context));
      }
    }
    pool_ = Allocate(std::max<int64_t>(most + kColdBytes, int64_t{4} << 30));
    q_ = Allocate(options.prefill ? 4 * kPatternBytes : kPatternBytes);
    out_ = Allocate(q_.size());
    FillPool();
    roof_ = ReadRoof(exec_.stream, pool_.data(), int64_t{4} << 30, info_.num_sms);
  }

  void Run() {
    if (options_.prefill) return RunPrefill();
    std::printf("%s, read roof %.0f GB/s, blocks of %d tokens, F16. Cells: us of a layer, TB/s, %% of the roof; of codes also times F16, times fp8\n", info_.name, roof_ * 1e-9,
                options_.block_tokens);
    std::printf("%-26s", "");
    for (const std::string& settings : options_.settings) std::printf(" | %-17s", settings == "-" ? "ours" : settings.c_str());
    for (const KvFormat* type : options_.types) std::printf(" | %-29s", type->name);
#if CACHALOT_HAS_FLASHINFER
    std::printf(" | %-17s | %-17s", "FlashInfer", "its tensor cores");
#endif
    std::printf("\n");
    for (const Shape& shape : kShapes) {
      if (!(shape.mla() ? options_.mla : options_.gqa)) continue;
      for (int32_t context : options_.contexts) {
        for (int32_t seqs : options_.seqs) Row(shape, seqs, context);
      }
    }
  }

 private:
  CudaBuffer Allocate(int64_t bytes) const {
    Result<CudaBuffer> buffer = CudaBuffer::Allocate(backend_, bytes);
    Check(buffer.status());
    return std::move(*buffer);
  }
  template <typename T>
  CudaBuffer Upload(const std::vector<T>& values) const {
    CudaBuffer buffer = Allocate(static_cast<int64_t>(values.size() * sizeof(T)));
    Check(backend_->copy(buffer.data(), values.data(), buffer.size(), exec_.stream));
    Check(backend_->stream_synchronize(exec_.stream));
    return buffer;
  }
  uint64_t Random() {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return seed_ >> 24;
  }
  int64_t LayerBytes(const Shape& shape, int32_t seqs, int32_t context) const {
    return int64_t{(context + options_.block_tokens - 1) / options_.block_tokens} * options_.block_tokens * shape.token_bytes() * seqs;
  }
  // The buffer becomes `pattern` again and again.
  void Fill(const CudaBuffer& buffer, const void* pattern, int64_t bytes) const {
    Check(backend_->copy(buffer.data(), pattern, bytes, exec_.stream));
    for (int64_t done = bytes; done < buffer.size(); done *= 2) {
      Check(backend_->copy(buffer.data() + done, buffer.data(), std::min(done, buffer.size() - done), exec_.stream));
    }
    Check(backend_->stream_synchronize(exec_.stream));
  }
  // F16 numbers near one, of either sign; as F32 (queries) too.
  void FillPool() {
    if (pattern_.empty()) {
      pattern_.resize(kPatternBytes / 2);
      for (uint16_t& word : pattern_) word = static_cast<uint16_t>((Random() & 0x83ff) | 0x3800);
      Fill(q_, pattern_.data(), kPatternBytes);
    }
    Fill(pool_, pattern_.data(), kPatternBytes);
  }
  // Heads' regions of codes of numbers between -2 and 2.
  void FillCodes(const KvPlanes& planes, const KvVectors& vectors) {
    constexpr int64_t kRegions = 64;
    std::vector<std::byte> regions(static_cast<size_t>(kRegions * planes.head_bytes));
    std::vector<float> key(static_cast<size_t>(vectors.k_dim)), value(static_cast<size_t>(vectors.v_dim));
    const auto number = [&] { return static_cast<float>(static_cast<int64_t>(Random() % 4096) - 2048) / 1024.0f; };
    for (int64_t r = 0; r < kRegions; ++r) {
      for (int32_t t = 0; t < options_.block_tokens; ++t) {
        for (float& x : key) x = number();
        for (float& x : value) x = number();
        EncodeKvKey(planes, nullptr, key.data(), regions.data() + r * planes.head_bytes, t);
        if (!planes.value_in_key) EncodeKvValue(planes, value.data(), regions.data() + r * planes.head_bytes, t);
      }
    }
    Fill(pool_, regions.data(), static_cast<int64_t>(regions.size()));
  }
  void Cell(double us, double bytes) const {
    std::printf(" | %7.1f %4.2f %3.0f%%", us, bytes / us * 1e-6, bytes / us * 1e6 / roof_ * 100);
    std::fflush(stdout);
  }

  // Settings must agree: says so where the outputs of the last layer are not those of the first setting.
  void CompareOutputs(int64_t count, std::vector<float>* first) {
    std::vector<float> out(static_cast<size_t>(count));
    Check(backend_->copy(out.data(), out_.data(), count * 4, exec_.stream));
    Check(backend_->stream_synchronize(exec_.stream));
    if (first->empty()) *first = out;
    double largest = 0, difference = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>((*first)[i])));
      const double apart = std::abs(static_cast<double>(out[i]) - (*first)[i]);
      difference = apart <= difference ? difference : apart;  // NaN stays
    }
    if (!(difference <= 1e-3 * largest)) std::printf(" [differs by %.2g of %.2g]", difference, largest);
    Check(backend_->fill(out_.data(), 0xff, count * 4, exec_.stream));
  }

  void RunPrefill() {
    std::printf("%s, prefill, F16. Cells: us of a layer, TFLOP/s, %% of %.0f\n%-52s", info_.name, kMatmulFlops * 1e-12, "");
    for (const std::string& settings : options_.settings) std::printf(" | %-20s", settings == "-" ? "ours" : settings.c_str());
    std::printf("\n");
    for (const Chunk& chunk : kChunks) PrefillRow(chunk);
  }

  void PrefillRow(const Chunk& chunk) {
    const Shape& shape = chunk.shape;
    const int32_t tokens = chunk.block_tokens, blocks_a_seq = (chunk.kv_len + tokens - 1) / tokens, seqs = chunk.num_seqs;
    std::vector<int32_t> blocks(static_cast<size_t>(blocks_a_seq) * seqs);
    std::iota(blocks.begin(), blocks.end(), 0);
    for (size_t i = blocks.size() - 1; i > 0; --i) std::swap(blocks[i], blocks[Random() % (i + 1)]);
    const CudaBuffer tables = Upload(blocks);
    std::vector<SeqSpan> spans;
    for (int32_t i = 0; i < seqs; ++i) spans.push_back({i, i * chunk.q_len, chunk.q_len, chunk.kv_len});
    const int32_t num_rows = seqs * chunk.q_len;
    const CudaBuffer gpu_spans = Upload(spans), rows = Allocate(int64_t{3} * 4 * num_rows);
    CudaBatch batch = {.spans = gpu_spans.as<SeqSpan>(), .num_spans = seqs, .num_rows = num_rows, .max_q_len = chunk.q_len,
                       .row_slots = rows.as<int32_t>(), .row_positions = rows.as<int32_t>() + num_rows,
                       .row_spans = rows.as<int32_t>() + 2 * num_rows};
    Check(backend_->batch_rows(exec_, batch));
    CudaAttentionPlan plan = {.shape = {shape.num_q_heads, shape.num_kv_heads, shape.k_dim, shape.v_dim, 0}};
    const CudaBuffer memory = Allocate(backend_->attention_plan_bytes(plan.shape, batch, info_.num_sms));
    plan.memory = memory.data();
    plan.memory_bytes = memory.size();
    const int64_t key_values = int64_t{tokens} * shape.k_dim, value_values = int64_t{tokens} * shape.v_dim;
    AttentionParams params = {.q = q_.as<float>(), .q_token_stride = int64_t{shape.num_q_heads} * shape.k_dim,
                              .q_head_stride = shape.k_dim, .num_q_heads = shape.num_q_heads, .scale = 0.08838835f,
                              .out = out_.as<float>(), .out_token_stride = int64_t{shape.num_q_heads} * shape.v_dim,
                              .out_head_stride = shape.v_dim};
    params.kv = {.data = pool_.data(), .dtype = DType::kF16, .block_tokens = tokens, .num_kv_heads = shape.num_kv_heads, .k_dim = shape.k_dim,
                 .v_dim = shape.v_dim, .block_bytes = (key_values + value_values) * 2 * shape.num_kv_heads, .k_head_stride = key_values,
                 .v_offset = key_values * shape.num_kv_heads, .v_head_stride = value_values, .v_token_stride = shape.v_dim,
                 .block_tables = tables.as<int32_t>(), .table_stride = blocks_a_seq};
    const double pairs = static_cast<double>(seqs) * chunk.q_len * (chunk.kv_len - (chunk.q_len - 1) / 2.0) * shape.num_q_heads;
    const double flops = pairs * 2 * (shape.k_dim + shape.v_dim);
    std::printf("%-18s %2d x %5d tokens, the last of %6d ", shape.name, seqs, chunk.q_len, chunk.kv_len);
    std::vector<float> first_out;
    for (const std::string& settings : options_.settings) {
      Check(backend_->set_tune(settings.c_str()));
      Check(backend_->attention_plan(exec_, batch, plan));
      const int calls = flops > 2e12 ? 1 : 4;
      const double us = CapturedMicroseconds(exec_.stream, [&] {
        for (int i = 0; i < calls; ++i) Check(backend_->attention(exec_, batch, plan, params));
      }, 5) / calls;
      std::printf(" | %8.1f %5.0f %4.1f%%", us, flops / us * 1e-6, flops / us * 1e6 / kMatmulFlops * 100);
      std::fflush(stdout);
      CompareOutputs(std::min<int64_t>(num_rows * params.out_token_stride, int64_t{16} << 20), &first_out);
    }
    std::printf("\n");
  }

  void Row(const Shape& shape, int32_t seqs, int32_t context) {
    const int32_t tokens = options_.block_tokens, blocks_a_seq = (context + tokens - 1) / tokens;
    const int64_t layer_bytes = LayerBytes(shape, seqs, context), block_bytes = shape.token_bytes() * tokens;
    const int64_t layers = std::clamp<int64_t>(kColdBytes / layer_bytes + 1, kLeastLayers, kMostLayers);
    const int64_t caches = std::min(layers, pool_.size() / layer_bytes);  // one of more than the cold bytes may come again and again
    const double bytes = static_cast<double>(shape.token_bytes()) * context * seqs;
    std::vector<int32_t> blocks(static_cast<size_t>(blocks_a_seq) * seqs);
    std::iota(blocks.begin(), blocks.end(), 0);
    for (size_t i = blocks.size() - 1; i > 0; --i) std::swap(blocks[i], blocks[Random() % (i + 1)]);
    const CudaBuffer tables = Upload(blocks);
    std::vector<SeqSpan> spans;
    for (int32_t i = 0; i < seqs; ++i) spans.push_back({i, i, 1, context});
    const CudaBuffer gpu_spans = Upload(spans), rows = Allocate(int64_t{3} * 4 * seqs);
    CudaBatch batch = {.spans = gpu_spans.as<SeqSpan>(), .num_spans = seqs, .num_rows = seqs, .max_q_len = 1,
                       .row_slots = rows.as<int32_t>(), .row_positions = rows.as<int32_t>() + seqs,
                       .row_spans = rows.as<int32_t>() + 2 * seqs};
    Check(backend_->batch_rows(exec_, batch));
    CudaAttentionPlan plan = {.shape = {shape.num_q_heads, shape.num_kv_heads, shape.k_dim, shape.v_dim, 0}};
    const CudaBuffer memory = Allocate(backend_->attention_plan_bytes(plan.shape, batch, info_.num_sms));
    plan.memory = memory.data();
    plan.memory_bytes = memory.size();
    const int64_t head_values = int64_t{tokens} * shape.k_dim;
    AttentionParams params = {.q = q_.as<float>(), .q_token_stride = int64_t{shape.num_q_heads} * shape.k_dim,
                              .q_head_stride = shape.k_dim, .num_q_heads = shape.num_q_heads, .scale = 0.08838835f,
                              .out = out_.as<float>(), .out_token_stride = int64_t{shape.num_q_heads} * shape.v_dim,
                              .out_head_stride = shape.v_dim};
    params.kv = {.dtype = DType::kF16, .block_tokens = tokens, .num_kv_heads = shape.num_kv_heads, .k_dim = shape.k_dim,
                 .v_dim = shape.v_dim, .block_bytes = block_bytes, .k_head_stride = head_values,
                 .v_offset = shape.mla() ? 0 : head_values * shape.num_kv_heads, .v_head_stride = head_values,
                 .v_token_stride = shape.k_dim, .block_tables = tables.as<int32_t>(), .table_stride = blocks_a_seq};
    std::printf("%-8s %3d x %6d tokens ", shape.name, seqs, context);
    if (holds_codes_) FillPool();
    holds_codes_ = false;
    std::vector<float> first_out;
    double plain_us = 0, fp8_us = 0;
    for (const std::string& settings : options_.settings) {
      Check(backend_->set_tune(settings.c_str()));
      Check(backend_->attention_plan(exec_, batch, plan));
      const double us = CapturedMicroseconds(exec_.stream, [&] {
        for (int64_t layer = 0; layer < layers; ++layer) {
          params.kv.data = pool_.data() + layer % caches * layer_bytes;
          Check(backend_->attention(exec_, batch, plan, params));
        }
      }, kReplays) / static_cast<double>(layers);
      Cell(us, bytes);
      if (plain_us == 0) plain_us = us;
      CompareOutputs(int64_t{seqs} * params.out_token_stride, &first_out);
    }
    for (const KvFormat* type : options_.types) {
      const KvVectors vectors = {shape.k_dim, shape.v_dim, shape.mla() ? shape.k_dim - shape.v_dim : 0, shape.mla()};
      const KvPlanes planes = PlanKvPlanes(type->scheme, vectors, tokens);
      FillCodes(planes, vectors);
      holds_codes_ = true;
      AttentionParams coded = params;
      coded.kv.planes = &planes;
      coded.kv.block_bytes = planes.head_bytes * shape.num_kv_heads;
      const int64_t coded_layer = coded.kv.block_bytes * blocks_a_seq * seqs;
      const int64_t coded_layers = std::clamp<int64_t>(kColdBytes / coded_layer + 1, kLeastLayers, kMostLayers);
      const int64_t coded_caches = std::min(coded_layers, pool_.size() / coded_layer);
      Check(backend_->set_tune(options_.settings.front().c_str()));
      Check(backend_->attention_plan(exec_, batch, plan));
      const double us = CapturedMicroseconds(exec_.stream, [&] {
        for (int64_t layer = 0; layer < coded_layers; ++layer) {
          coded.kv.data = pool_.data() + layer % coded_caches * coded_layer;
          Check(backend_->attention(exec_, batch, plan, coded));
        }
      }, kReplays) / static_cast<double>(coded_layers);
      Cell(us, static_cast<double>(planes.token_bytes()) * shape.num_kv_heads * context * seqs);
      if (std::string_view(type->name) == "fp8") fp8_us = us;
      std::printf(" %4.2f", plain_us / us);
      if (fp8_us > 0) std::printf(" %5.2f", fp8_us / us);
      else std::printf("      ");
    }
#if CACHALOT_HAS_FLASHINFER
    for (bool tensor_cores : {false, true}) {
      if (shape.mla()) break;
      const FlashInferDecode theirs({.num_seqs = seqs, .context = context, .num_q_heads = shape.num_q_heads,
                                     .num_kv_heads = shape.num_kv_heads, .block_tokens = tokens, .block_bytes = block_bytes},
                                    blocks, tensor_cores, exec_.stream);
      Cell(CapturedMicroseconds(exec_.stream, [&] {
        for (int64_t layer = 0; layer < layers; ++layer) theirs.Run(pool_.data() + layer % caches * layer_bytes, q_.data(), out_.data(), exec_.stream);
      }, kReplays) / static_cast<double>(layers), bytes);
    }
#endif
    std::printf("\n");
  }

  Options options_;
  const CudaBackend* backend_ = nullptr;
  CudaDeviceInfo info_;
  CudaExec exec_;
  CudaBuffer pool_, q_, out_;
  double roof_ = 0;
  std::vector<uint16_t> pattern_;
  bool holds_codes_ = false;
  uint64_t seed_ = 1;
};

}  // namespace
}  // namespace cachalot

int main(int argc, char** argv) {
  cachalot::Bench(cachalot::Parse(argc, argv)).Run();
  return 0;
}
