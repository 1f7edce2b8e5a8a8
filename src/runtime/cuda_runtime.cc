#include "runtime/cuda_runtime.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/fault.h"
#include "base/log.h"
#include "device/cuda/cuda_partition.h"
#include "runtime/cuda_runtime_device.h"

namespace cachalot {
namespace {

// What the driver keeps for a captured step, both copies; measured (docs/measurements), rounded up.
constexpr int64_t kGraphBytes = int64_t{6} << 20;
// Captured steps with drafts come in more shapes than are kept.
constexpr int64_t kMaxDraftGraphs = 48;
// Kernels, cuBLASLt and the context's own heap.
constexpr int64_t kDriverBytes = int64_t{256} << 20;

KvStoreOptions KvOptions(const RuntimeOptions& options, const CudaBackend* backend) {
  return {.dtype = options.kv_dtype,
          .block_tokens = options.block_tokens,
          .max_seqs = options.max_seqs,
          .max_context = options.max_context,
          .capacity_tokens = options.kv_tokens,
          .swap_tokens = options.swap_tokens,
          .cuda = backend};
}

int64_t CpuWorkspaceBytes(const ModelSpec& spec, const RuntimeOptions& options) {
  return Model::WorkspaceBytes(spec, options.max_step_tokens, options.max_context, 1, options.num_threads);
}

// From one size of a captured step to the next.
int32_t SizeStep(int32_t size) { return size < 8 ? 1 : size < 16 ? 2 : size < 32 ? 4 : size < 64 ? 8 : size < 256 ? 16 : 64; }

bool HasCpuLayers(const Model& model) { return model.num_cuda_layers() < model.spec().num_layers; }

}  // namespace

// --- What dies with the device ---

void CudaRuntime::Device::ForgetGraphs() {
  for (auto& [shape, graph] : graphs) ForgetGraph(&graph);
  graphs.clear();
}

void CudaRuntime::Device::ForgetGraph(Graph* graph) {
  for (void* launchable : graph->launchable) {
    if (launchable != nullptr) (void)backend->step_graph_destroy(launchable);
  }
}

CudaRuntime::Device::~Device() {
  if (stream != nullptr) (void)backend->stream_synchronize(stream);
  ForgetGraphs();
  for (InFlight& step_in_flight : in_flight) {
    if (step_in_flight.done != nullptr) (void)backend->event_destroy(step_in_flight.done);
  }
  for (void* buffer : host_buffers) (void)backend->release_host(buffer);
  backend->matmul_release(matmul_plans);
  if (stream != nullptr && owns_stream) (void)backend->stream_destroy(stream);
}

void* CudaRuntime::Device::AllocateHost(int64_t bytes, Status* status) {
  void* data = nullptr;
  if (status->ok()) *status = FromCuda(backend->allocate_host(bytes, &data));
  if (data != nullptr) host_buffers.push_back(data);
  return data;
}

// --- Creation ---

int64_t CudaRuntime::MaxGraphs(const CudaRuntimeOptions& options) {
  if (!options.use_graphs) return 0;
  const auto num_buckets = static_cast<int64_t>(MakeBuckets(options.base.max_seqs).size());
  return num_buckets + (options.base.drafts != DraftKind::kNone ? kMaxDraftGraphs : 0);
}

std::vector<int32_t> CudaRuntime::MakeBuckets(int32_t max_seqs) {
  std::vector<int32_t> buckets;
  for (int32_t size = 1; size < max_seqs; size += SizeStep(size)) buckets.push_back(size);
  buckets.push_back(max_seqs);
  return buckets;
}

CudaRuntime::Memory CudaRuntime::PlanMemory(const CudaBackend& backend, const Model& planned, const CudaRuntimeOptions& options,
                                            int32_t num_sms) {
  const KvStoreOptions kv = KvOptions(options.base, &backend);
  const ModelSpec& spec = planned.spec();
  Memory memory;
  memory.weight_bytes = planned.weight_bytes().cuda;
  const std::vector<KvGroupSpec> groups = SequenceGroups(planned.kv_groups(), options.base);
  memory.kv_bytes = KvStore::PlanBytes(groups, kv, DeviceType::kCuda);
  if (DraftsOnGpu(options.base)) {
    memory.kv_bytes += KvStore::PlanBytes({planned.kv_groups().back()}, DraftKvOptions(options.base, &backend), DeviceType::kCuda);
  }
  const CudaStepMemory step = CudaStepMemory::Carve(backend, planned, options, num_sms, nullptr);
  memory.workspace_bytes = step.total_bytes;
  memory.graph_bytes = kDriverBytes + MaxGraphs(options) * kGraphBytes;
  memory.host_kv_bytes = KvStore::PlanBytes(groups, kv, DeviceType::kCpu);
  memory.host_bytes = 2 * (CudaStepInput::Bytes(step.bounds) + step.output_bytes +
                           int64_t{step.bounds.wanted} * kMaxCudaTopLogprobs * static_cast<int64_t>(sizeof(TokenLogprob)));
  if (HasCpuLayers(planned)) {
    memory.host_bytes += CpuWorkspaceBytes(spec, options.base) + int64_t{options.base.max_step_tokens} * spec.hidden_size * 4;
  }
  return memory;
}

Result<std::unique_ptr<CudaRuntime>> CudaRuntime::Create(const CudaBackend* backend, std::function<Result<CudaModel>()> load,
                                                         std::unique_ptr<ThreadPool> pool, const CudaRuntimeOptions& options) {
  auto runtime = std::unique_ptr<CudaRuntime>(new CudaRuntime());
  runtime->backend_ = backend;
  runtime->options_ = options;
  runtime->load_ = std::move(load);
  runtime->pool_ = std::move(pool);
  runtime->mla_form_ = options.base.deterministic ? MlaForm::kAbsorbed : options.base.mla_form;
  runtime->buckets_ = MakeBuckets(options.base.max_seqs);
  RETURN_IF_ERROR(FromCuda(backend->device_info(0, &runtime->device_info_)));
  if (!options.trace_streams.empty()) {
    ASSIGN_OR_RETURN(runtime->trace_file_, ChromeTrace::Open(options.trace_streams));
  }
  RETURN_IF_ERROR(runtime->BuildDevice());
  return runtime;
}

CudaRuntime::~CudaRuntime() = default;

const Model& CudaRuntime::model() const { return *device_->model.model; }

Result<double> CudaRuntime::ReadBandwidth() const {
  double bytes_per_second = 0;
  RETURN_IF_ERROR(FromCuda(backend_->read_bandwidth(int64_t{1} << 30, 5, &bytes_per_second)));
  return bytes_per_second;
}

Status CudaRuntime::SetTune(const std::string& settings) {
  bool ops = false;
  std::string others, stream = "usual";
  for (size_t begin = 0; begin < settings.size();) {
    const size_t end = std::min(settings.find(',', begin), settings.size());
    const std::string item = settings.substr(begin, end - begin);
    begin = end + 1;
    if (item.starts_with("launch=")) {
      if (item != "launch=graph" && item != "launch=ops") return InvalidArgument("{}: launch=graph or launch=ops", item);
      ops = item == "launch=ops";
    } else if (item.starts_with("stream=")) {
      stream = item.substr(7);
    } else {
      others += (others.empty() ? "" : ",") + item;
    }
  }
  RETURN_IF_ERROR(FromCuda(backend_->stream_synchronize(device_->stream)));
  device_->ForgetGraphs();
  RETURN_IF_ERROR(FromCuda(backend_->set_tune(others.c_str())));
  tuned_to_ops_ = ops;
  return UseStream(stream);
}

// usual, high (priority), or first:N, rest:N: with SMs of its own, N of the card's or all others. Nothing is in flight.
Status CudaRuntime::UseStream(const std::string& kind) {
  Device& d = *device_;
  if (kind == d.stream_kind) return Status::Ok();
  if (d.trace != nullptr) return Unsupported("stream={}: a trace is of one stream", kind);
  CudaPart part = {.num_sms = device_info_.num_sms};
  const bool first = kind.starts_with("first:");
  if (first || kind.starts_with("rest:")) {
    int32_t first_sms = 0;
    const std::string_view count = std::string_view(kind).substr(kind.find(':') + 1);
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), first_sms);
    if (error != std::errc() || end != count.data() + count.size()) return InvalidArgument("stream={}: no number of SMs", kind);
    ASSIGN_OR_RETURN(const auto parts, PartSms(*backend_, first_sms));
    part = parts[first ? 0 : 1];
  } else if (kind == "usual" || kind == "high") {
    RETURN_IF_ERROR(FromCuda(backend_->stream_create(kind == "high", &part.stream)));
  } else {
    return InvalidArgument("stream={}: usual, high, first:N or rest:N", kind);
  }
  if (d.owns_stream) RETURN_IF_ERROR(FromCuda(backend_->stream_destroy(d.stream)));
  d.owns_stream = kind == "usual" || kind == "high";
  d.stream = d.step.exec.stream = part.stream;
  d.step.exec.num_sms = part.num_sms;
  d.stream_kind = kind;
  return Status::Ok();
}

int32_t CudaRuntime::num_graphs() const { return static_cast<int32_t>(device_->graphs.size()); }

Status CudaRuntime::BuildDevice() {
  built_ = false;
  device_ = std::make_unique<Device>(backend_);
  Device& d = *device_;
  const RuntimeOptions& o = options_.base;
  ASSIGN_OR_RETURN(d.model, load_());
  const Model& model = *d.model.model;
  const ModelSpec& spec = model.spec();
  RETURN_IF_ERROR(FromCuda(backend_->stream_create(false, &d.stream)));
  if (trace_file_ != nullptr) {
    ASSIGN_OR_RETURN(d.trace, CudaStreamTrace::Create(backend_, trace_file_.get(), d.stream));
  }
  RETURN_IF_ERROR(d.transfers.Create(backend_, num_transfers_, d.trace.get()));
  RETURN_IF_ERROR(FromCuda(backend_->matmul_init(&d.matmul_plans)));
  const std::vector<KvGroupSpec> groups = SequenceGroups(model.kv_groups(), o);
  ASSIGN_OR_RETURN(d.kv, KvStore::Allocate(groups, KvOptions(o, backend_)));
  d.transfers.Slice(groups, d.kv, spec.num_layers - model.num_cuda_layers(), spec.num_layers, o.kv_slice_bytes);
  const int64_t bytes = CudaStepMemory::Carve(*backend_, model, options_, device_info_.num_sms, nullptr).total_bytes;
  ASSIGN_OR_RETURN(d.step_buffer, CudaBuffer::Allocate(backend_, bytes));
  RETURN_IF_ERROR(FromCuda(backend_->fill(d.step_buffer.data(), 0, bytes, nullptr)));
  RETURN_IF_ERROR(FromCuda(backend_->stream_synchronize(nullptr)));
  d.memory = CudaStepMemory::Carve(*backend_, model, options_, device_info_.num_sms, d.step_buffer.data());
  const CudaStepMemory& m = d.memory;
  if (model.kv_groups().size() > static_cast<size_t>(kMaxCudaKvGroups)) {
    return Unsupported("{} KV groups, at most {}", model.kv_groups().size(), kMaxCudaKvGroups);
  }

  Status status;
  for (InFlight& step : d.in_flight) {
    step.input_host = static_cast<std::byte*>(d.AllocateHost(CudaStepInput::Bytes(m.bounds), &status));
    step.output_host = static_cast<std::byte*>(d.AllocateHost(m.output_bytes, &status));
    step.top_host = static_cast<TokenLogprob*>(d.AllocateHost(
        int64_t{m.bounds.wanted} * kMaxCudaTopLogprobs * static_cast<int64_t>(sizeof(TokenLogprob)), &status));
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(FromCuda(backend_->event_create(trace_file_ != nullptr, &step.done)));
    step.spans.reserve(static_cast<size_t>(o.max_seqs));
    step.row_begin.reserve(static_cast<size_t>(o.max_seqs));
    step.row_order.reserve(static_cast<size_t>(o.max_seqs));
    step.wanted.reserve(static_cast<size_t>(o.max_step_tokens));
    step.result.rows.reserve(static_cast<size_t>(o.max_seqs));
    step.result.expert_counts.reserve(static_cast<size_t>(m.num_counts));
  }
  d.workspace = Workspace::Over(m.workspace, m.workspace_bytes);
  d.step.backend = backend_;
  d.step.exec = {.stream = d.stream,
                 .num_sms = device_info_.num_sms,
                 .math = options_.exact ? CudaMath::kF32 : CudaMath::kFast,
                 .deterministic = o.deterministic,
                 .workspace = m.scratch,
                 .workspace_bytes = m.scratch_bytes,
                 .counters = m.matmul_counters,
                 .matmul_plans = d.matmul_plans};
  for (int i = 0; i < CudaHalfCopies::kNumSources; ++i) d.step.halves.Provide(static_cast<CudaHalfSource>(i), m.halves[i]);
  d.step.attention.reserve(m.shapes.size());
  d.exec = {.device = DeviceType::kCuda, .isa = o.isa, .pool = pool_.get(), .workspace = &d.workspace,
            .deterministic = o.deterministic, .cuda = &d.step};
  d.last_tokens.assign(static_cast<size_t>(o.max_seqs), -1);
  if (DraftsOnGpu(o)) RETURN_IF_ERROR(BuildDrafts());
  const bool split = HasCpuLayers(model);
  if (split) {
    ASSIGN_OR_RETURN(d.cpu_workspace, Workspace::Allocate(CpuWorkspaceBytes(spec, o)));
    d.cpu_exec = {.isa = o.isa, .pool = pool_.get(), .workspace = &d.cpu_workspace, .counters = &d.cpu_counters,
                  .deterministic = o.deterministic};
    d.cpu_hidden = static_cast<float*>(d.AllocateHost(int64_t{o.max_step_tokens} * spec.hidden_size * 4, &status));
    RETURN_IF_ERROR(status);
    d.cpu_tokens.resize(static_cast<size_t>(o.max_step_tokens));
    d.cpu_positions.resize(static_cast<size_t>(o.max_step_tokens));
    d.cpu_counts.resize(static_cast<size_t>(m.num_counts));
  }
  info_ = {.max_seqs = o.max_seqs,
           .max_step_tokens = o.max_step_tokens,
           .max_context = o.max_context,
           .vocab_size = spec.vocab_size,
           .num_experts = spec.moe.num_experts,
           .depth = split ? 0 : options_.depth,
           .max_logit_bias = kMaxCudaLogitBias,
           .max_top_logprobs = kMaxCudaTopLogprobs,
           .max_logit_rows = o.max_logit_rows,
           .kv_groups = d.kv.infos(),
           .device_drafts = DraftsOnGpu(o) ? o.drafts : DraftKind::kNone,
           .draft_cost = DraftsOnGpu(o) ? MtpCost(spec) : 0,
           .accepts_by_lot = o.accept_fixed >= 0,
           .kv_identity = o.kv_identity};
  for (int32_t g = 0; g < static_cast<int32_t>(info_.kv_groups.size()); ++g) info_.kv_on_device = info_.kv_on_device || d.kv.OnGpu(g);
  next_step_ = next_collect_ = 0;
  built_ = true;
  return Status::Ok();
}

// --- Launch ---

int32_t CudaRuntime::Bucket(int32_t num_rows) const {
  return *std::lower_bound(buckets_.begin(), buckets_.end(), num_rows);
}

// Decode: a token a sequence, from the device or the host, with drafts behind it, and nothing wanted but the next ones.
bool CudaRuntime::FitsGraph(const StepPlan& plan, const InFlight& step) const {
  if (!options_.use_graphs || tuned_to_ops_ || !plan.setups.empty() || plan.rows.empty()) return false;
  const int32_t num_spans = Bucket(static_cast<int32_t>(plan.rows.size()));
  if (std::max<int64_t>(num_spans, step.num_rows) > device_->memory.logit_tile) return false;  // their logits come in tiles
  if (static_cast<int64_t>(plan.block_writes.size()) > MaxGraphWrites(num_spans, info_.kv_groups.size())) return false;
  constexpr uint32_t kGraphOutputs = kOutputSample | kOutputTopLogprobs;
  return std::all_of(plan.rows.begin(), plan.rows.end(), [](const PlanRow& row) {
    return row.q_len == 1 + row.num_drafts && (row.outputs & kOutputSample) != 0 && (row.outputs & ~kGraphOutputs) == 0;
  });
}

// Nothing of the step but its layers touches blocks that are on their way.
bool CudaRuntime::WaitsByLayer(const StepPlan& plan, const InFlight& step) const {
  const Device& d = *device_;
  if (plan.rows.empty() || !plan.swap_outs.empty() || !plan.swap_ins.empty() || !plan.block_copies.empty()) return false;
  if (d.trace != nullptr || d.cpu_hidden != nullptr || options_.base.drafts != DraftKind::kNone) return false;
  return step.num_expanded > 0 || !FitsGraph(plan, step);
}

CudaRuntime::GraphShape CudaRuntime::ShapeOf(const StepPlan& plan, const InFlight& step) const {
  GraphShape shape = {.spans = Bucket(static_cast<int32_t>(plan.rows.size()))};
  shape.rows = shape.spans;
  if (step.max_q_len == 1) return shape;
  // By halves of a token for each sequence: few enough shapes, and never many rows too many.
  const int32_t part = std::max(1, shape.spans / 2);
  shape.rows = (static_cast<int32_t>(step.num_rows) + part - 1) / part * part;
  shape.rows = std::min({shape.rows, static_cast<int32_t>(device_->memory.logit_tile), device_->memory.bounds.rows});
  shape.drafts = DraftsOnGpu(options_.base) ? step.max_drafts : options_.base.max_drafts;
  shape.waiting = DraftStride(step);
  return shape;
}

CudaStepBounds CudaRuntime::BoundsOf(const GraphShape& shape) const {
  return {shape.spans, shape.rows, MaxGraphWrites(shape.spans, info_.kv_groups.size()), 0, shape.rows};
}

Status CudaRuntime::Launch(const StepPlan& plan) {
  Device& d = *device_;
  InFlight& step = d.in_flight[next_step_ % 2];
  CHECK(!step.active && next_step_ - next_collect_ <= static_cast<uint64_t>(info_.depth)) << "collect a step before the next";
  CHECK(plan.num_tokens() <= options_.base.max_step_tokens && plan.rows.size() <= static_cast<size_t>(info_.max_seqs));
  if (FaultHits("device.op")) return DeviceError("step {}: injected fault", plan.step_id);
  step.plan = &plan;
  step.moves_only = false;
  step.result.Clear();
  step.result.step_id = plan.step_id;
  d.step.status = Status::Ok();
  Order(plan, &step);
  CountDrafts(plan, &step);
  if (d.trace != nullptr) RETURN_IF_ERROR(d.trace->Begin(plan, d.transfers.LetsWait(), &step.traced));
  step.waits_by_layer = WaitsByLayer(plan, step);
  if (!step.waits_by_layer) RETURN_IF_ERROR(d.transfers.LetWait(d.stream));
  for (const BlockMove& move : plan.swap_outs) {
    if (d.kv.OnGpu(move.group)) RETURN_IF_ERROR(d.kv.SwapOutOfGpu(move, d.stream));
    else d.kv.SwapOut(move);
  }
  for (const BlockMove& move : plan.swap_ins) {
    if (d.kv.OnGpu(move.group)) RETURN_IF_ERROR(d.kv.SwapIntoGpu(move, d.stream));
    else d.kv.SwapIn(move);
  }
  for (const BlockCopy& copy : plan.block_copies) {
    if (d.kv.OnGpu(copy.group)) RETURN_IF_ERROR(d.kv.CopyOnGpu(copy, d.stream));
    else d.kv.Copy(copy);
  }
  if (d.trace != nullptr) RETURN_IF_ERROR(d.trace->Work(&step.traced));
  RETURN_IF_ERROR(SendSetups(plan));
  if (plan.rows.empty()) {  // moves only
    step.wanted.clear();
    step.moves_only = true;
  } else if (step.num_expanded == 0 && FitsGraph(plan, step)) {  // expanded rows are reordered, a graph takes row i as wanted i
    const GraphShape shape = ShapeOf(plan, step);
    step.traced.bucket = shape.spans;
    RETURN_IF_ERROR(FillInput(plan, BoundsOf(shape), &step));
    RETURN_IF_ERROR(RunCpuLayers(plan, &step));
    RETURN_IF_ERROR(LaunchGraph(shape, &step));
  } else {
    RETURN_IF_ERROR(LaunchOps(plan, &step));
  }
  CountWaiting(plan);
  RETURN_IF_ERROR(FromCuda(backend_->event_record(step.done, d.stream)));
  if (d.trace != nullptr) d.trace->Launched(plan, step.traced);
  step.active = true;
  ++next_step_;
  return Status::Ok();
}

Status CudaRuntime::Capture(const GraphShape& shape, const InFlight& step) {
  Device& d = *device_;
  num_one_off_ = info_.depth + 1;  // the host is late for the step before, too
  LOG_DEBUG("a step of {} sequences is captured: {} rows, {} drafts, {} states wait", shape.spans, shape.rows, shape.drafts, shape.waiting);
  if (static_cast<int64_t>(d.graphs.size()) >= MaxGraphs(options_)) {
    RETURN_IF_ERROR(FromCuda(backend_->stream_synchronize(d.stream)));
    const auto oldest = std::min_element(d.graphs.begin(), d.graphs.end(), [](const auto& a, const auto& b) {
      return a.second.last_used < b.second.last_used;
    });
    d.ForgetGraph(&oldest->second);
    d.graphs.erase(oldest);
  }
  Device::Graph& graph = d.graphs[shape];
  const CudaStepBounds bounds = BoundsOf(shape);
  void* captured = nullptr;
  RETURN_IF_ERROR(FromCuda(backend_->graph_begin(d.stream)));
  EnqueueForward(bounds, 1 + shape.drafts, {shape.drafts, shape.waiting}, nullptr);
  EnqueueOutputs(0, bounds.rows, d.memory.hidden);
  EnqueueEnd(bounds);
  const Status ended = FromCuda(backend_->graph_end(d.stream, &captured));
  RETURN_IF_ERROR(d.step.status);
  RETURN_IF_ERROR(ended);
  Status made;
  for (size_t i = 0; i < graph.launchable.size() && made.ok(); ++i) {
    const CudaStepCopies copies = {.in_dst = d.memory.input,
                                   .in_src = d.in_flight[i].input_host,
                                   .in_bytes = CudaStepInput::Bytes(bounds),
                                   .out_dst = d.in_flight[i].output_host,
                                   .out_src = d.memory.output,
                                   .out_bytes = step.output.size_bytes};
    made = FromCuda(backend_->step_graph_create(copies, captured, &graph.launchable[i]));
  }
  RETURN_IF_ERROR(FromCuda(backend_->graph_release(captured)));
  return made;
}

Status CudaRuntime::LaunchGraph(const GraphShape& shape, InFlight* step) {
  Device& d = *device_;
  const size_t mine = next_step_ % 2;
  if (d.graphs.count(shape) == 0) {
    const double begin_us = d.trace != nullptr ? d.trace->NowUs() : 0;
    const Status captured = Capture(shape, *step);
    if (d.trace != nullptr) d.trace->Host("capture", begin_us, static_cast<int64_t>(step->plan->step_id));
    if (!captured.ok()) {
      d.ForgetGraphs();
      return captured;
    }
  }
  Device::Graph& graph = d.graphs[shape];
  graph.last_used = static_cast<uint64_t>(++num_graph_launches_);
  RETURN_IF_ERROR(FromCuda(backend_->step_graph_launch(graph.launchable[mine], d.stream)));
  if (!step->any_top) return Status::Ok();
  return FromCuda(backend_->copy(step->top_host, d.memory.top,
                                 static_cast<int64_t>(step->wanted.size()) * kMaxCudaTopLogprobs * int64_t{sizeof(TokenLogprob)},
                                 d.stream));
}

// --- Collect ---

Status CudaRuntime::Collect(StepResult* result) {
  Device& d = *device_;
  CHECK(next_collect_ < next_step_);
  InFlight& step = d.in_flight[next_collect_ % 2];
  const auto start = std::chrono::steady_clock::now();
  const double wait_us = d.trace != nullptr ? d.trace->NowUs() : 0;
  RETURN_IF_ERROR(FromCuda(backend_->event_synchronize(step.done)));
  step.result.device_us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  if (d.trace != nullptr) RETURN_IF_ERROR(d.trace->Collected(step.plan->step_id, &step.traced, step.done, wait_us));
  step.active = false;
  ++next_collect_;
  if (FaultHits("device.lost")) return DeviceError("step {}: the device is lost (injected)", step.result.step_id);

  StepResult& out = step.result;
  const StepPlan& plan = *step.plan;
  out.one_off = num_one_off_ > 0;
  if (out.one_off) --num_one_off_;
  if (step.max_drafts > 0) out.draft_us = *step.output.draft_ns / 1000;
  if (step.moves_only) {
    std::swap(*result, out);
    return Status::Ok();
  }
  if (out.rows.empty()) {
    for (const PlanRow& row : plan.rows) {
      ResultRow result_row;
      result_row.slot = row.slot;
      result_row.num_computed = row.num_computed + row.q_len;
      out.rows.push_back(result_row);
    }
  }
  for (size_t s = 0; s < step.row_order.size(); ++s) {
    if (step.output.computed[s] >= 0) out.rows[static_cast<size_t>(step.row_order[s])].num_computed = step.output.computed[s];
  }
  for (size_t i = 0; i < step.wanted.size(); ++i) {
    const auto r = static_cast<size_t>(step.wanted[i].row_idx);
    const PlanRow& row = plan.rows[r];
    ResultRow& to = out.rows[r];
    if (step.input.target_ids[i] >= 0) {
      if (to.prompt_logprob_len++ == 0) to.prompt_logprob_begin = static_cast<int32_t>(out.prompt_logprobs.size());
      out.prompt_logprobs.push_back(step.output.target_logprobs[i]);
    }
    if ((row.outputs & kOutputSample) == 0 || step.wanted[i].position + 1 < row.q_len - row.num_drafts) continue;
    if (step.output.tokens[i] < 0) continue;  // the slot had stopped, or a draft in front was wrong
    if (to.sampled_token >= 0) {  // a draft that was right
      if (to.accept_len++ == 0) to.accept_begin = static_cast<int32_t>(out.accepted.size());
      out.accepted.push_back({to.sampled_token, to.sampled_logprob, to.top_begin, to.top_len});
    }
    to.sampled_token = step.output.tokens[i];
    d.last_tokens[static_cast<size_t>(row.slot)] = to.sampled_token;
    if (step.input.num_top[i] < 0) continue;
    to.sampled_logprob = step.output.logprobs[i];
    to.top_begin = static_cast<int32_t>(out.top_logprobs.size());
    to.top_len = step.input.num_top[i];
    for (int32_t t = 0; t < to.top_len; ++t) {
      const TokenLogprob& entry = step.top_host[static_cast<int64_t>(i) * kMaxCudaTopLogprobs + t];
      out.top_logprobs.push_back({entry.token_id, entry.logprob});
    }
  }
  out.expert_counts.assign(step.output.expert_counts, step.output.expert_counts + d.memory.num_counts);
  for (size_t i = 0; i < d.cpu_counts.size(); ++i) out.expert_counts[i] += d.cpu_counts[i];
  CountBytes(step);
  std::swap(*result, out);
  return Status::Ok();
}

void CudaRuntime::CountBytes(const InFlight& step) {
  const Model& m = model();
  int64_t experts = 0;
  const int64_t per_layer = m.spec().moe.num_experts;
  for (size_t i = 0; i < step.result.expert_counts.size(); ++i) {
    if (step.result.expert_counts[i] > 0) experts += m.expert_bytes(static_cast<int32_t>(static_cast<int64_t>(i) / per_layer));
  }
  moved_bytes_ += m.dense_bytes() + experts;
  for (const KvGroupSpec& group : m.kv_groups()) {
    const int64_t token_bytes = group.TokenBytes(options_.base.kv_dtype);
    for (const SeqSpan& span : step.spans) {
      const int32_t kept = std::max(std::min(span.kv_len, group.end_token) - group.first_token, 0);
      const int64_t read = group.window > 0 ? std::min(kept, group.window + span.q_len) : kept;
      moved_bytes_ += read * token_bytes;
    }
  }
}

}  // namespace cachalot
