#include "runtime/cuda_memory.h"

#include <algorithm>

#include "model/layers/normed_input.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxLogitTile = 1024;
constexpr int64_t kMinLogitTile = 32;
constexpr int32_t kExpandedBlockTokens = 64;
constexpr int64_t kMaxExpandedBytes = int64_t{1400} << 20;  // of keys and values: V2-Lite's of 143,360 tokens in 16 bits

static_assert(kMaxCudaDrafts == kMaxDrafts && kMaxCudaWaiting > kMaxDrafts);

class Carver {
 public:
  explicit Carver(std::byte* base) : base_(reinterpret_cast<uintptr_t>(base)) {}
  template <typename T>
  T* Take(int64_t count) {
    auto* data = reinterpret_cast<T*>(base_ + static_cast<uintptr_t>(used_));
    used_ += CudaWorkspace::Padded(count * static_cast<int64_t>(sizeof(T)));
    return data;
  }
  int64_t used() const { return used_; }

 private:
  uintptr_t base_;
  int64_t used_ = 0;
};

std::vector<CudaAttentionShape> AttentionShapes(const Model& model) {
  const ModelSpec& spec = model.spec();
  const AttentionSpec& a = spec.attention;
  std::vector<CudaAttentionShape> shapes;
  const auto add = [&](const CudaAttentionShape& shape) {
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  };
  for (const KvGroupSpec& group : model.kv_groups()) {
    if (group.home != DeviceType::kCuda) continue;
    add({.num_q_heads = a.num_q_heads, .num_kv_heads = group.num_kv_heads, .k_dim = group.k_dim, .v_dim = group.v_dim,
         .window = group.window});
    if (a.kind == AttentionKind::kMla) {
      add({.num_q_heads = a.num_q_heads, .num_kv_heads = a.num_q_heads, .k_dim = a.q_head_dim(), .v_dim = a.v_dim,
           .window = group.window});
    }
  }
  return shapes;
}

// Scratch that a step takes at most: a dry run of everything a step may do, with as many rows as it may have.
void MeasureWorkspace(const CudaBackend& backend, const Model& model, const CudaRuntimeOptions& options, int32_t num_sms,
                      CudaStepMemory* memory) {
  Workspace workspace = Workspace::Over(reinterpret_cast<std::byte*>(uintptr_t{1} << 20), INT64_MAX / 2);
  CudaStep step;
  step.planner = &backend;
  step.exec.num_sms = num_sms;
  step.exec.deterministic = options.base.deterministic;
  step.exec.math = options.exact ? CudaMath::kF32 : CudaMath::kFast;
  step.batch.num_spans = memory->bounds.spans;
  step.batch.num_rows = memory->bounds.rows;
  step.num_expanded_tokens = memory->max_expanded_tokens;
  step.mla_split.block_tokens = kExpandedBlockTokens;
  step.halves.StartPlanning();
  const ExecContext exec = {.device = DeviceType::kCuda, .workspace = &workspace,
                            .deterministic = options.base.deterministic, .cuda = &step};
  const ModelSpec& spec = model.spec();
  KvBinding binding;
  binding.dtype = options.base.kv_dtype;
  binding.block_tokens = options.base.block_tokens;
  std::vector<KvBinding> kv;
  for (const KvGroupSpec& group : model.kv_groups()) {
    kv.push_back(binding);
    kv.back().planes = group.Planes(binding.block_tokens);
  }
  // Few rows go another way through a layer (model/layers/normed_input.h), and the fewest take other kernels.
  constexpr int64_t kFewestRows = 4;
  const int64_t most = memory->bounds.rows, some[] = {most, std::min(most, NormedInput::kMostRawRows), std::min(most, kFewestRows)};
  for (const int64_t rows : some) {
    model.Forward(exec, {.num_tokens = rows, .kv = kv, .first_layer = spec.num_layers - model.num_cuda_layers(),
                         .mla_piece_tokens = options.base.mla_piece_tokens});
  }
  model.FinalNorm(exec, nullptr, memory->logit_tile, nullptr);
  model.Head(exec, nullptr, memory->logit_tile, nullptr);
  if (model.has_mtp()) {
    for (const int64_t rows : some) {
      model.ForwardMtp(exec, {.num_tokens = rows, .kv = binding});
    }
    model.MtpHead(exec, nullptr, memory->logit_tile, nullptr);
  }
  // Beside a forward: the normalised states of every row, for those who want them.
  memory->workspace_bytes = std::max(workspace.peak(), Workspace::Padded(int64_t{memory->bounds.rows} * spec.hidden_size * 4));
  memory->scratch_bytes = step.scratch_bytes;
  for (int i = 0; i < CudaHalfCopies::kNumSources; ++i) memory->halves[i] = step.halves.planned(static_cast<CudaHalfSource>(i));
}

}  // namespace

// A whole context, or each slot's part of the memory that sequences have; a whole chunk of a prompt in any case.
int32_t CudaDraftRowTokens(const RuntimeOptions& options) {
  const int64_t part = std::max<int64_t>(options.kv_tokens / options.max_seqs, options.max_step_tokens + kMaxCudaWaiting);
  return static_cast<int32_t>(std::min<int64_t>(options.max_context, part)) + options.max_drafts + 1;
}

KvStoreOptions DraftKvOptions(const RuntimeOptions& options, const CudaBackend* backend) {
  const int32_t row = CudaDraftRowTokens(options);
  return {.dtype = options.kv_dtype,
          .block_tokens = options.block_tokens,
          .max_seqs = options.max_seqs,
          .max_context = row,
          .capacity_tokens = int64_t{row} * options.max_seqs,
          .cuda = backend};
}

bool IsExpandedShape(const Model& model, const CudaAttentionShape& shape) {
  const bool latent = shape.k_dim != shape.v_dim && shape.num_kv_heads == 1;
  return model.spec().attention.kind == AttentionKind::kMla && !latent;
}

CudaStepMemory CudaStepMemory::Carve(const CudaBackend& backend, const Model& model, const CudaRuntimeOptions& options,
                                     int32_t num_sms, std::byte* base) {
  const RuntimeOptions& o = options.base;
  const ModelSpec& spec = model.spec();
  const int64_t hidden_size = spec.hidden_size;
  CudaStepMemory m;
  const auto num_groups = static_cast<int64_t>(model.kv_groups().size());
  const int64_t blocks_per_seq = (o.max_context + o.block_tokens - 1) / o.block_tokens;
  m.bounds.spans = o.max_seqs;
  m.bounds.rows = o.max_step_tokens;
  // A step gives a sequence blocks for its new tokens; one that enters brings its whole table.
  m.bounds.writes = static_cast<int32_t>(std::min<int64_t>(o.max_seqs * blocks_per_seq * num_groups, INT32_MAX / 64));
  m.bounds.setups = o.max_seqs;
  const int64_t with_drafts = int64_t{o.max_seqs} * (1 + o.max_drafts);
  if (DraftsOnGpu(o)) {
    // What waits for the MTP layer is a batch of its own.
    m.bounds.rows = std::max({o.max_step_tokens, static_cast<int32_t>(with_drafts), kMaxCudaWaiting});
  }
  m.bounds.wanted = m.bounds.rows;
  m.logit_tile = std::clamp<int64_t>(with_drafts, kMinLogitTile, kMaxLogitTile);
  m.num_counts = spec.num_moe_layers() * int64_t{spec.moe.num_experts};
  m.shapes = AttentionShapes(model);
  const AttentionSpec& a = spec.attention;
  if (MlaExpandMinTokens(a, o.deterministic ? MlaForm::kAbsorbed : o.mla_form) < INT32_MAX) {
    const int64_t token_bytes = DTypeBytes(o.kv_dtype, int64_t{a.num_q_heads} * (a.q_head_dim() + a.v_dim));
    m.max_expanded_tokens = std::min(kMaxExpandedBytes / token_bytes, int64_t{o.max_seqs} * o.max_context);
    m.expanded_stride = (std::min<int64_t>(o.max_context, m.max_expanded_tokens) + kExpandedBlockTokens - 1) / kExpandedBlockTokens;
  }
  MeasureWorkspace(backend, model, options, num_sms, &m);

  Carver carver(base);
  const int64_t rows = m.bounds.rows, seqs = o.max_seqs, vocab = spec.vocab_size;
  m.input = carver.Take<std::byte>(CudaStepInput::Bytes(m.bounds));
  m.output_bytes = CudaStepOutput::At(nullptr, m.bounds, m.num_counts).size_bytes;
  m.output = carver.Take<std::byte>(m.output_bytes);
  m.state.last_tokens = carver.Take<int32_t>(seqs);
  m.state.lengths = carver.Take<int32_t>(seqs);
  m.state.stopped = carver.Take<int32_t>(seqs);
  m.state.sampling = carver.Take<CudaSampleSlot>(seqs);
  m.state.num_stops = carver.Take<int32_t>(seqs);
  m.state.stops = carver.Take<int32_t>(seqs * kMaxCudaStopIds);
  m.bias = carver.Take<LogitBias>(seqs * kMaxCudaLogitBias);
  m.counts = carver.Take<uint32_t>(seqs * vocab);
  m.history = carver.Take<int32_t>(o.max_context);
  m.spans = carver.Take<SeqSpan>(seqs);
  m.token_ids = carver.Take<int32_t>(rows);
  const int64_t with_drafted = DraftsOnGpu(o) ? 2 * rows : rows;
  m.row_slots = carver.Take<int32_t>(with_drafted);
  m.row_positions = carver.Take<int32_t>(with_drafted);
  m.row_spans = carver.Take<int32_t>(with_drafted);
  m.wanted_rows = carver.Take<int32_t>(rows);
  m.wanted_slots = carver.Take<int32_t>(rows);
  m.wanted_positions = carver.Take<int32_t>(rows);
  m.wanted_in_front = carver.Take<int32_t>(rows);
  m.span_drafts = carver.Take<int32_t>(seqs);
  m.top = carver.Take<TokenLogprob>(m.logit_tile * kMaxCudaTopLogprobs);
  m.modified = carver.Take<float>(m.logit_tile * vocab);
  m.hidden = carver.Take<float>(rows * hidden_size);
  m.normed = carver.Take<float>(m.logit_tile * hidden_size);
  m.logits = carver.Take<float>(m.logit_tile * vocab);
  if (DraftsOnGpu(o)) {
    m.state.draft.tokens = carver.Take<int32_t>(seqs * kMaxCudaDrafts);
    m.state.draft.fed = carver.Take<int32_t>(seqs);
    m.state.draft.waiting_begin = carver.Take<int32_t>(seqs);
    m.state.draft.waiting_len = carver.Take<int32_t>(seqs);
    m.state.draft.waiting_tokens = carver.Take<int32_t>(seqs * kMaxCudaWaiting);
    m.state.draft.row_tokens = CudaDraftRowTokens(o);
    m.waiting = carver.Take<float>(seqs * kMaxCudaWaiting * hidden_size);
    m.waiting_rows = carver.Take<int32_t>(rows);
    m.draft_states = carver.Take<float>(seqs * hidden_size);
    m.draft_last_rows = carver.Take<int32_t>(seqs);
    m.picks = carver.Take<int32_t>(seqs);
    m.picked = carver.Take<int32_t>(seqs);
    m.draft_best = carver.Take<unsigned long long>(seqs * kDraftPickParts);
    m.greedy = carver.Take<CudaSampleSlot>(1);
    m.draft_clock = carver.Take<uint64_t>(1);
    m.draft_rope.cos = carver.Take<float>(with_drafted * (spec.attention.rope.dim / 2));
    m.draft_rope.sin = carver.Take<float>(with_drafted * (spec.attention.rope.dim / 2));
  }
  if (model.has_mtp()) {
    m.mtp_states = carver.Take<float>((seqs + rows) * hidden_size);
    m.mtp_hidden = carver.Take<float>(rows * hidden_size);
    m.mtp_out = carver.Take<float>(rows * hidden_size);
    m.mtp_tokens = carver.Take<int32_t>(rows);
    m.mtp_spans = carver.Take<SeqSpan>(seqs);
    m.mtp_from = carver.Take<int32_t>(rows + seqs);
    m.mtp_to = carver.Take<int32_t>(rows + seqs);
  }
  CudaBatch largest;
  largest.num_spans = m.bounds.spans;
  largest.num_rows = m.bounds.rows;
  largest.max_q_len = m.bounds.rows;
  for (const CudaAttentionShape& shape : m.shapes) {
    m.plan_bytes.push_back(backend.attention_plan_bytes(shape, largest, num_sms));
    m.plans.push_back(carver.Take<std::byte>(m.plan_bytes.back()));
  }
  if (DraftsOnGpu(o)) {
    largest.max_q_len = std::max(1 + o.max_drafts, kCudaCatchUp);
    for (const CudaAttentionShape& shape : m.shapes) {
      m.draft_plan_bytes.push_back(IsExpandedShape(model, shape) ? 0 : backend.attention_plan_bytes(shape, largest, num_sms));
      m.draft_plans.push_back(carver.Take<std::byte>(m.draft_plan_bytes.back()));
    }
  }
  if (m.max_expanded_tokens > 0) {
    m.split.block_tokens = kExpandedBlockTokens;
    m.split.table_stride = m.expanded_stride;
    m.split.absorbed = carver.Take<SeqSpan>(seqs);
    m.split.expanded = carver.Take<SeqSpan>(seqs);
    m.split.row_begins = carver.Take<int64_t>(seqs);
    m.split.block_begins = carver.Take<int32_t>(seqs);
    m.split.rows = carver.Take<CudaMlaRow>(m.max_expanded_tokens);
    m.split.block_tables = carver.Take<int32_t>(seqs * m.expanded_stride);
  }
  m.matmul_counters = carver.Take<uint32_t>(kCudaCounters);
  m.scratch = carver.Take<std::byte>(m.scratch_bytes);
  for (CudaHalfBuffer& half : m.halves) half.data = carver.Take<std::byte>(half.bytes);
  m.workspace = carver.Take<std::byte>(m.workspace_bytes);
  m.total_bytes = carver.used();
  return m;
}

}  // namespace cachalot
