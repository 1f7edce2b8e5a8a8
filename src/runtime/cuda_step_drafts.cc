// Drafts by the model's MTP layer, on the device: made at the beginning of the step that verifies them, so that nothing
// waits for the host. Each row that brings a token leaves its hidden state and that token waiting; a step that drafts for
// the slot feeds them to the layer and drafts behind the last. Prompts are fed as they are computed. The host knows an upper
// bound on what waits, from its plans.
#include <algorithm>
#include <vector>

#include "runtime/cuda_runtime_device.h"

namespace cachalot {

Status CudaRuntime::BuildDrafts() {
  Device& d = *device_;
  const RuntimeOptions& o = options_.base;
  const KvStoreOptions kv = DraftKvOptions(o, backend_);
  ASSIGN_OR_RETURN(d.draft_kv, KvStore::Allocate({d.model.model->kv_groups().back()}, kv));
  const KvBinding& binding = d.draft_kv.bindings()[0];
  std::vector<int32_t> table(static_cast<size_t>(o.max_seqs * binding.table_stride));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);  // slot by slot
  RETURN_IF_ERROR(FromCuda(backend_->copy(const_cast<int32_t*>(binding.block_tables), table.data(),
                                          static_cast<int64_t>(table.size() * sizeof(int32_t)), d.stream)));
  CudaSampleSlot greedy;
  greedy.sampling.temperature = 0;
  RETURN_IF_ERROR(FromCuda(backend_->copy(d.memory.greedy, &greedy, sizeof(greedy), d.stream)));
  RETURN_IF_ERROR(FromCuda(backend_->stream_synchronize(d.stream)));
  d.waiting.assign(static_cast<size_t>(o.max_seqs), 0);
  return Status::Ok();
}

// What the device drafts in this step, and behind how much.
void CudaRuntime::CountDrafts(const StepPlan& plan, InFlight* step) {
  step->max_drafts = step->max_waiting = 0;
  step->feeds = false;
  if (!DraftsOnGpu(options_.base)) return;
  bool decodes = false;
  for (const PlanRow& row : plan.rows) {
    decodes |= row.token_begin < 0;
    step->feeds |= row.q_len > ((row.outputs & kOutputSample) != 0 ? 1 + row.num_drafts : 0);
    if (row.num_drafts == 0) continue;
    DCHECK(row.token_begin < 0 && row.num_drafts <= options_.base.max_drafts);
    step->max_drafts = std::max(step->max_drafts, row.num_drafts);
    step->max_waiting = std::max(step->max_waiting, device_->waiting[static_cast<size_t>(row.slot)]);
  }
  if (step->max_drafts > 0 || decodes) device_->draft_activity.Observe(step->max_drafts > 0);
  step->feeds = step->feeds && device_->draft_activity.IsActive();
}

// Rows for what waits in a slot. Few values: each is a captured step of its own.
int32_t CudaRuntime::DraftStride(const InFlight& step) const {
  if (step.max_drafts == 0) return 0;
  const int32_t most = std::max(1 + options_.base.max_drafts, kCudaCatchUp);
  const int32_t stride = step.max_waiting <= 1 + step.max_drafts ? 1 + step.max_drafts : most;
  return std::min(stride, device_->memory.bounds.rows);
}

// What waits behind it.
void CudaRuntime::CountWaiting(const StepPlan& plan) {
  if (!DraftsOnGpu(options_.base)) return;
  std::vector<int32_t>& waiting = device_->waiting;
  for (const SlotSetup& setup : plan.setups) waiting[static_cast<size_t>(setup.slot)] = 0;
  for (const PlanRow& row : plan.rows) {
    int32_t& count = waiting[static_cast<size_t>(row.slot)];
    if (row.num_drafts > 0) count = 0;
    if ((row.outputs & kOutputSample) != 0) count = std::min(count + 1 + row.num_drafts, kMaxCudaWaiting);
  }
}

// The batch is now what lies in mtp_spans; `with_rows`: whoever wrote them wrote the rows, too.
void CudaRuntime::SetMtpBatch(int32_t num_spans, int32_t num_rows, int32_t max_q_len, bool with_rows) {
  Device& d = *device_;
  const CudaStepBounds bounds = d.bounds;
  SetBatch({.spans = num_spans, .rows = num_rows}, max_q_len, 0);
  d.bounds = bounds;  // inputs and outputs lie where they did
  d.step.batch.spans = d.memory.mtp_spans;
  if (!with_rows) RunCuda(d.exec, [&](const CudaBackend& cuda, const CudaExec& exec) { return cuda.batch_rows(exec, d.step.batch); });
  for (CudaAttentionBatch& entry : d.step.attention) {
    entry.batch.spans = d.memory.mtp_spans;
    RunCuda(d.exec, [&](const CudaBackend& cuda, const CudaExec& exec) {
      return cuda.attention_plan(exec, entry.batch, entry.plan);
    });
  }
}

void CudaRuntime::EnqueueDrafts(const CudaStepBounds& bounds, int32_t num_passes, int32_t stride) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  const int64_t dim = model.spec().hidden_size;
  const CudaStepInput in = CudaStepInput::At(m.input, bounds);
  const CudaDraftSpans spans = {.planned = in.spans,
                                .drafts = in.drafts,
                                .stopped = m.state.stopped,
                                .num_spans = bounds.spans,
                                .num_planned = &in.header->num_spans};
  MtpBatch batch = {.next_token_ids = m.mtp_tokens, .positions = m.row_positions, .kv = d.draft_kv.bindings()[0]};
  // All that waits, as many spans at once as rows fit; normally all.
  const int32_t most = m.bounds.rows / stride;
  for (int32_t begin = 0; begin < bounds.spans; begin += most) {
    const int32_t count = std::min(most, bounds.spans - begin);
    const int32_t rows = count * stride;
    RunCuda(d.exec, &CudaBackend::draft_begin,
            CudaDraftBeginParams{.spans = spans, .state = m.state.draft, .begin = begin, .count = count, .stride = stride,
                                 .batch_spans = m.mtp_spans, .token_ids = m.mtp_tokens, .from = m.mtp_from,
                                 .last_rows = m.draft_last_rows, .picks = m.picks,
                                 .rows = {m.row_slots, m.row_positions, m.row_spans},
                                 .clock = begin == 0 ? m.draft_clock : nullptr});
    SetMtpBatch(count, rows, stride, true);
    batch.hidden = m.waiting;
    batch.from = MtpBatch::From::kModel;
    batch.hidden_rows = m.mtp_from;
    batch.num_tokens = rows;
    batch.out = m.mtp_out;
    model.ForwardMtpAttention(d.exec, batch);
    RunCuda(d.exec, &CudaBackend::gather_rows,
            CudaGatherRowsParams{.src = m.mtp_out, .src_rows = m.draft_last_rows, .dst = m.draft_states + begin * dim,
                                 .num_rows = count, .dim = dim});
    // Behind attention nothing depends on the rows in front of a slot's last: their experts need not be read.
    d.step.batch.row_slots = m.picks + begin;
    model.ForwardMtpFfn(d.exec, m.draft_states + begin * dim, count, true);  // the head norms them
  }
  for (int32_t pass = 0; pass < num_passes; ++pass) {
    if (pass > 0) {
      SetMtpBatch(bounds.spans, bounds.spans, 1, true);
      batch.hidden = m.draft_states;
      batch.from = MtpBatch::From::kMtp;
      batch.hidden_rows = nullptr;
      batch.raw_out = true;
      batch.num_tokens = bounds.spans;
      batch.out = m.draft_states;
      model.ForwardMtp(d.exec, batch);
    }
    for (int64_t begin = 0; begin < bounds.spans; begin += m.logit_tile) {
      const int64_t count = std::min(m.logit_tile, bounds.spans - begin);
      model.MtpHead(d.exec, m.draft_states + begin * dim, count, m.logits, m.normed);
      RunCuda(d.exec, &CudaBackend::sample,
              CudaSampleParams{.logits = m.logits, .logits_stride = info_.vocab_size, .vocab = model.mtp_head_tokens(),
                               .num_rows = static_cast<int32_t>(count), .row_slots = m.picks + begin,
                               .positions = m.picks + begin, .slots = m.greedy, .token_ids = m.picked + begin});
    }
    RunCuda(d.exec, &CudaBackend::draft_next,
            CudaDraftNextParams{.spans = spans, .state = m.state.draft, .pass = pass, .picked = m.picked,
                                .batch_spans = m.mtp_spans, .token_ids = m.mtp_tokens, .picks = m.picks,
                                .rows = {m.row_slots, m.row_positions, m.row_spans}});
  }
}

void CudaRuntime::EnqueueFeed(const CudaStepBounds& bounds, int32_t max_q_len) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  const CudaStepInput in = CudaStepInput::At(m.input, bounds);
  RunCuda(d.exec, &CudaBackend::draft_feed,
          CudaDraftFeedParams{.spans = m.spans, .span_drafts = m.span_drafts, .first_wanted = in.first_wanted,
                              .next_tokens = in.next_tokens, .token_ids = m.token_ids, .num_spans = bounds.spans,
                              .num_rows = bounds.rows, .state = m.state.draft, .batch_spans = m.mtp_spans,
                              .batch_tokens = m.mtp_tokens});
  SetMtpBatch(bounds.spans, bounds.rows, max_q_len, false);
  model.ForwardMtpAttention(d.exec, {.next_token_ids = m.mtp_tokens,
                                     .positions = m.row_positions,
                                     .hidden = m.hidden,
                                     .from = MtpBatch::From::kModel,
                                     .num_tokens = bounds.rows,
                                     .kv = d.draft_kv.bindings()[0],
                                     .out = m.mtp_out});
}

}  // namespace cachalot
