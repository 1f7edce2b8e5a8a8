#include "gpu_testing.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace cachalot {
namespace {

Gpu Open() {
  Gpu gpu;
  const Result<const CudaBackend*> backend = LoadCudaBackend();
  if (!backend.ok()) {
    gpu.reason = backend.status().ToString();
    return gpu;
  }
  int count = 0;
  const Status found = FromCuda((*backend)->device_count(&count));
  if (!found.ok() || count == 0) {
    gpu.reason = found.ok() ? "no CUDA device" : found.ToString();
    return gpu;
  }
  const auto open = [&]() -> Status {
    RETURN_IF_ERROR(FromCuda((*backend)->device_info(0, &gpu.info)));
    RETURN_IF_ERROR(CheckCudaCard(**backend, gpu.info));
    RETURN_IF_ERROR(FromCuda((*backend)->set_device(0)));
    RETURN_IF_ERROR(FromCuda((*backend)->stream_create(false, &gpu.stream)));
    return FromCuda((*backend)->matmul_init(&gpu.matmul_plans));
  };
  if (const Status status = open(); !status.ok()) {
    gpu.reason = status.ToString();
    return gpu;
  }
  gpu.backend = *backend;
  return gpu;
}

const CudaBackend& Backend() { return *Gpu::Get().backend; }

// What CACHALOT_GPU_CASES asks for, and what came of it.
struct Choice {
  int64_t every = 1, most = INT64_MAX;
  int64_t fitting = 0, cases = 0, left_out = 0;

  Choice() {
    const char* text = std::getenv("CACHALOT_GPU_CASES");
    if (text == nullptr) return;
    if (std::sscanf(text, "%" SCNd64 ",%" SCNd64, &every, &most) == 2 && every >= 1 && most >= 1) return;
    std::fprintf(stderr, "CACHALOT_GPU_CASES is '%s'; wanted EVERY,MOST, both at least 1\n", text);
    std::exit(2);
  }
  static Choice& Get() {
    static Choice choice;
    return choice;
  }
};

}  // namespace

bool Chosen(int64_t work) {
  Choice& choice = Choice::Get();
  ++choice.cases;
  if (work <= choice.most && choice.fitting++ % choice.every == 0) return true;
  ++choice.left_out;
  return false;
}

std::string LeftOutCases() {
  const Choice& choice = Choice::Get();
  return choice.left_out == 0 ? "" : fmt::format("left out {} of {} cases", choice.left_out, choice.cases);
}

const Gpu& Gpu::Get() {
  static const Gpu gpu = Open();
  return gpu;
}

CudaExec Gpu::Exec(CudaMath math, bool deterministic) const {
  CudaExec exec;
  exec.stream = stream;
  exec.num_sms = info.num_sms;
  exec.math = math;
  exec.deterministic = deterministic;
  exec.matmul_plans = matmul_plans;
  return exec;
}

void Gpu::Synchronize() const { GPU_EXPECT_OK(backend->stream_synchronize(stream)); }

GpuBytes::GpuBytes(int64_t size_bytes)
    : buffer_(CudaBuffer::Allocate(Gpu::Get().backend, size_bytes + 2 * kGuard).value()), size_bytes_(size_bytes) {
  Poison();
}

void GpuBytes::Poison() {
  GPU_EXPECT_OK(Backend().fill(buffer_.data(), 0xff, buffer_.size(), Gpu::Get().stream));
}

void GpuBytes::Write(const void* src, int64_t bytes) {
  CHECK(bytes <= size_bytes_) << bytes << " bytes into " << size_bytes_;
  GPU_EXPECT_OK(Backend().copy(data(), src, bytes, Gpu::Get().stream));
  Gpu::Get().Synchronize();
}

void GpuBytes::Read(void* dst) const {
  GPU_EXPECT_OK(Backend().copy(dst, data(), size_bytes_, Gpu::Get().stream));
  Gpu::Get().Synchronize();
}

bool GpuBytes::Intact() const {
  std::vector<unsigned char> guards(2 * kGuard);
  GPU_EXPECT_OK(Backend().copy(guards.data(), buffer_.data(), kGuard, Gpu::Get().stream));
  GPU_EXPECT_OK(Backend().copy(guards.data() + kGuard, data() + size_bytes_, kGuard, Gpu::Get().stream));
  Gpu::Get().Synchronize();
  for (unsigned char byte : guards) {
    if (byte != 0xff) return false;
  }
  return true;
}

namespace {

std::span<const float> MeanOf(const PagedKv& kv) {
  if (kv.key_mean == nullptr) return {};
  return {kv.key_mean, static_cast<size_t>(kv.num_kv_heads * kv.planes->key.coding.dim)};
}

}  // namespace

GpuKv::GpuKv(const TestKv& kv, int64_t num_slots)
    : words_(kv.AllBytes()),
      tables_(std::span<const int32_t>(kv.view().block_tables,
                                       static_cast<size_t>(num_slots * kv.view().table_stride))),
      mean_(MeanOf(kv.view())),
      view_(kv.view()) {
  if (view_.key_mean != nullptr) view_.key_mean = mean_.data();
  view_.data = reinterpret_cast<std::byte*>(words_.data());
  view_.block_tables = tables_.data();
  if (kv.sinks() == nullptr) return;
  const PagedKv& sinks = kv.sinks()->view();
  sink_tables_ = std::make_unique<GpuArray<int32_t>>(std::span<const int32_t>(sinks.block_tables, static_cast<size_t>(num_slots * sinks.table_stride)));
  sinks_ = sinks;
  sinks_.key_mean = view_.key_mean;
  sinks_.data = view_.data + (words_.size() - static_cast<int64_t>(kv.sinks()->AllBytes().size())) * static_cast<int64_t>(sizeof(float));
  sinks_.block_tables = sink_tables_->data();
  view_.sinks = &sinks_;
}

GpuBatch::GpuBatch(std::span<const SeqSpan> spans, int32_t num_rows, int32_t extra_spans)
    : spans_(static_cast<int64_t>(spans.size()) + extra_spans), slots_(num_rows), positions_(num_rows), row_spans_(num_rows) {
  batch_.spans = spans_.data();
  batch_.num_spans = static_cast<int32_t>(spans_.size());
  batch_.num_rows = num_rows;
  batch_.row_slots = slots_.data();
  batch_.row_positions = positions_.data();
  batch_.row_spans = row_spans_.data();
  for (const SeqSpan& span : spans) batch_.max_q_len = std::max(batch_.max_q_len, span.q_len);
  Update(spans);
}

void GpuBatch::Update(std::span<const SeqSpan> spans) {
  std::vector<SeqSpan> all(spans.begin(), spans.end());
  all.resize(static_cast<size_t>(spans_.size()));
  spans_.Write(all);
}

void GpuBatch::Fill() { GPU_EXPECT_OK(Backend().batch_rows(Gpu::Get().Exec(), batch_)); }

GpuGraph::GpuGraph(const std::function<void()>& enqueue) {
  GPU_EXPECT_OK(Backend().graph_begin(Gpu::Get().stream));
  enqueue();
  void* captured = nullptr;
  GPU_EXPECT_OK(Backend().graph_end(Gpu::Get().stream, &captured));
  GPU_EXPECT_OK(Backend().step_graph_create({}, captured, &graph_));
  GPU_EXPECT_OK(Backend().graph_release(captured));
}

GpuGraph::~GpuGraph() {
  if (graph_ != nullptr) GPU_EXPECT_OK(Backend().step_graph_destroy(graph_));
}

void GpuGraph::Enqueue() { GPU_EXPECT_OK(Backend().step_graph_launch(graph_, Gpu::Get().stream)); }

void GpuGraph::Launch() {
  Enqueue();
  Gpu::Get().Synchronize();
}

}  // namespace cachalot
