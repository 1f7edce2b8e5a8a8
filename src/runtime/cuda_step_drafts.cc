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

// The batch is now what lies in mtp_spans, its rows behind the first `first_row`. 0: the step's are no longer needed, and its plans' memory is free.
void CudaRuntime::SetMtpBatch(int32_t num_spans, int32_t num_rows, int32_t max_q_len, int32_t first_row) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const CudaStepBounds bounds = d.bounds;
  SetBatch({.spans = num_spans, .rows = num_rows}, max_q_len, 0);
  d.bounds = bounds;  // inputs and outputs lie where they did
  CudaBatch& batch = d.step.batch;
  batch.spans = m.mtp_spans;
  batch.row_slots += first_row, batch.row_positions += first_row, batch.row_spans += first_row;
  for (CudaAttentionBatch& entry : d.step.attention) {
    entry.batch = batch;
    if (first_row == 0) continue;
    const auto shape = static_cast<size_t>(std::find(m.shapes.begin(), m.shapes.end(), entry.plan.shape) - m.shapes.begin());
    entry.plan.memory = m.draft_plans[shape], entry.plan.memory_bytes = m.draft_plan_bytes[shape];
  }
}

// Of all that the batch's attention needs.
void CudaRuntime::EnqueuePlans() {
  for (const CudaAttentionBatch& entry : device_->step.attention) {
    RunCuda(device_->exec, [&](const CudaBackend& cuda, const CudaExec& exec) { return cuda.attention_plan(exec, entry.batch, entry.plan); });
  }
}

// Spans from `begin` on, as many as rows fit.
CudaDraftBeginParams CudaRuntime::DraftBegin(const CudaStepBounds& bounds, int32_t stride, int32_t begin) const {
  const CudaStepMemory& m = device_->memory;
  return {.spans = DraftSpans(bounds), .state = m.state.draft, .begin = begin, .count = std::min(m.bounds.rows / stride, bounds.spans - begin),
          .stride = stride, .batch_spans = m.mtp_spans, .token_ids = m.mtp_tokens, .from = m.mtp_from, .last_rows = m.draft_last_rows,
          .picks = m.picks, .rows = DraftRows(bounds), .clock = begin == 0 ? m.draft_clock : nullptr};
}
CudaDraftSpans CudaRuntime::DraftSpans(const CudaStepBounds& bounds) const {
  const CudaStepInput in = CudaStepInput::At(device_->memory.input, bounds);
  return {.planned = in.spans, .drafts = in.drafts, .stopped = device_->memory.state.stopped, .num_spans = bounds.spans,
          .num_planned = &in.header->num_spans};
}
CudaDraftRows CudaRuntime::DraftRows(const CudaStepBounds& bounds) const {
  const CudaStepMemory& m = device_->memory;
  return {m.row_slots + bounds.rows, m.row_positions + bounds.rows, m.row_spans + bounds.rows};
}

// The plans and tables of the step, which is the batch, and of its drafts' first pass, which is the batch then: launches in front of the
// drafts that would stand behind them, too.
void CudaRuntime::PlanWithDrafts(const CudaStepBounds& bounds, int32_t stride) {
  Device& d = *device_;
  const int32_t count = DraftBegin(bounds, stride, 0).count;
  const std::vector<CudaAttentionBatch> of_step = d.step.attention;
  SetMtpBatch(count, count * stride, stride, bounds.rows);
  const std::vector<CudaAttentionBatch>& of_drafts = d.step.attention;
  for (const CudaAttentionBatch& entry : of_step) {
    const auto other = std::find_if(of_drafts.begin(), of_drafts.end(), [&](const CudaAttentionBatch& e) { return e.plan.shape == entry.plan.shape; });
    RunCuda(d.exec, [&](const CudaBackend& cuda, const CudaExec& exec) {
      if (other == of_drafts.end()) return cuda.attention_plan(exec, entry.batch, entry.plan);
      return cuda.attention_plan_of_two(exec, entry.batch, entry.plan, other->batch, other->plan);
    });
  }
  d.model.model->MakeRopeTables(d.exec, d.memory.row_positions, bounds.rows + count * stride, d.memory.draft_rope);
}

// Behind PlanWithDrafts. The last pass leaves the drafts among the step's tokens.
void CudaRuntime::EnqueueDrafts(const CudaStepBounds& bounds, const DraftPasses& drafts) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  const int64_t dim = model.spec().hidden_size, first_rope = int64_t{bounds.rows} * (model.spec().attention.rope.dim / 2);
  const int32_t stride = drafts.stride;
  // Of a single span the last row's place is known: it stays there.
  float* states = bounds.spans == 1 ? m.mtp_out + (stride - 1) * dim : m.draft_states;
  MtpBatch batch = {.next_token_ids = m.mtp_tokens, .positions = DraftRows(bounds).positions, .kv = d.draft_kv.bindings()[0]};
  // All that waits, as many spans at once as rows fit; normally all.
  for (int32_t begin = 0, count = 0; begin < bounds.spans; begin += count) {
    const CudaDraftBeginParams tile = DraftBegin(bounds, stride, begin);
    count = tile.count;
    const int32_t rows = count * stride;
    if (begin > 0) {
      RunCuda(d.exec, &CudaBackend::draft_begin, tile);
      SetMtpBatch(count, rows, stride, bounds.rows);
      EnqueuePlans();
    }
    batch.rope = begin > 0 ? RopeTables{} : RopeTables{m.draft_rope.cos + first_rope, m.draft_rope.sin + first_rope};
    batch.hidden = m.waiting;
    batch.from = MtpBatch::From::kModel;
    batch.hidden_rows = m.mtp_from;
    batch.num_tokens = rows;
    batch.out = m.mtp_out;
    model.ForwardMtpAttention(d.exec, batch);
    if (bounds.spans > 1) {
      RunCuda(d.exec, &CudaBackend::gather_rows,
              CudaGatherRowsParams{.src = m.mtp_out, .src_rows = m.draft_last_rows, .dst = states + begin * dim, .num_rows = count, .dim = dim});
    }
    // Behind attention nothing depends on the rows in front of a slot's last: their experts need not be read.
    d.step.batch.row_slots = m.picks + begin;
    model.ForwardMtpFfn(d.exec, states + begin * dim, count, true);  // the head norms them
  }
  for (int32_t pass = 0; pass < drafts.passes; ++pass) {
    if (pass > 0) {
      SetMtpBatch(bounds.spans, bounds.spans, 1, bounds.rows);
      EnqueuePlans();
      batch.rope = {};
      batch.hidden = states;
      batch.from = MtpBatch::From::kMtp;
      batch.hidden_rows = nullptr;
      batch.raw_out = true;
      batch.num_tokens = bounds.spans;
      batch.out = states;
      model.ForwardMtp(d.exec, batch);
    }
    CudaDraftNextParams next = {.spans = DraftSpans(bounds), .state = m.state.draft, .pass = pass, .step_tokens = m.token_ids,
                                .batch_spans = m.mtp_spans, .token_ids = m.mtp_tokens, .picks = m.picks, .rows = DraftRows(bounds)};
    if (bounds.spans <= m.logit_tile) {
      model.MtpHead(d.exec, states, bounds.spans, m.logits, m.normed);
      next.logits = m.logits, next.logits_stride = info_.vocab_size, next.vocab = model.mtp_head_tokens(), next.best = m.draft_best;
    } else {
      next.picked = m.picked;
      PickInTiles(bounds.spans);
    }
    if (pass + 1 == drafts.passes) next.clock = m.draft_clock, next.draft_ns = CudaStepOutput::At(m.output, bounds, m.num_counts).draft_ns;
    RunCuda(d.exec, &CudaBackend::draft_next, next);
  }
}

// The next token behind each draft state, where there is no room for the logits of all.
void CudaRuntime::PickInTiles(int32_t num_spans) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  const int64_t dim = model.spec().hidden_size;
  for (int64_t begin = 0; begin < num_spans; begin += m.logit_tile) {
    const int64_t count = std::min(m.logit_tile, num_spans - begin);
    model.MtpHead(d.exec, m.draft_states + begin * dim, count, m.logits, m.normed);
    RunCuda(d.exec, &CudaBackend::sample,
            CudaSampleParams{.logits = m.logits, .logits_stride = info_.vocab_size, .vocab = model.mtp_head_tokens(),
                             .num_rows = static_cast<int32_t>(count), .row_slots = m.picks + begin,
                             .positions = m.picks + begin, .slots = m.greedy, .token_ids = m.picked + begin});
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
  SetMtpBatch(bounds.spans, bounds.rows, max_q_len, 0);
  RunCuda(d.exec, [&](const CudaBackend& cuda, const CudaExec& exec) { return cuda.batch_rows(exec, d.step.batch); });
  EnqueuePlans();
  model.ForwardMtpAttention(d.exec, {.next_token_ids = m.mtp_tokens,
                                     .positions = m.row_positions,
                                     .hidden = m.hidden,
                                     .from = MtpBatch::From::kModel,
                                     .num_tokens = bounds.rows,
                                     .kv = d.draft_kv.bindings()[0],
                                     .out = m.mtp_out});
}

}  // namespace cachalot
