// The ops of a step, in the order of the device's stream: the same for graphs and for single launches.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/sample/sample.h"
#include "runtime/cuda_runtime_device.h"

namespace cachalot {

void CudaRuntime::SetBatch(const CudaStepBounds& bounds, int32_t max_q_len, int64_t expanded_tokens) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  d.step.halves.Clear();  // what the last step left is not what a graph leaves
  d.bounds = bounds;
  d.step.batch = {.spans = m.spans,
                  .num_spans = bounds.spans,
                  .num_rows = bounds.rows,
                  .max_q_len = max_q_len,
                  .row_slots = m.row_slots,
                  .row_positions = m.row_positions,
                  .row_spans = m.row_spans};
  d.step.mla_split = m.split;
  d.step.num_expanded_tokens = expanded_tokens;
  d.step.attention.clear();
  for (size_t i = 0; i < m.shapes.size(); ++i) {
    const bool latent = m.shapes[i].k_dim != m.shapes[i].v_dim && m.shapes[i].num_kv_heads == 1;
    const bool mla = model().spec().attention.kind == AttentionKind::kMla;
    CudaBatch batch = d.step.batch;
    if (mla && expanded_tokens > 0) batch.spans = latent ? m.split.absorbed : m.split.expanded;
    if (mla && !latent && expanded_tokens == 0) continue;
    d.step.attention.push_back({batch, {.shape = m.shapes[i], .memory = m.plans[i], .memory_bytes = m.plan_bytes[i]}});
  }
}

// From the input in device memory to hidden states. `step` is null while a graph is captured.
void CudaRuntime::EnqueueForward(const CudaStepBounds& bounds, int32_t max_q_len, const DraftPasses& drafts, const InFlight* step) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  const CudaStepInput in = CudaStepInput::At(m.input, bounds);
  const CudaStepOutput out = CudaStepOutput::At(m.output, bounds, m.num_counts);
  CudaStepBeginParams begin = {.header = in.header,
                               .planned = in.spans,
                               .planned_drafts = in.drafts,
                               .planned_tokens = in.tokens,
                               .writes = in.writes,
                               .setups = in.setups,
                               .wanted = in.wanted,
                               .state = m.state};
  begin.num_groups = static_cast<int32_t>(info_.kv_groups.size());
  for (size_t g = 0; g < info_.kv_groups.size(); ++g) {
    if (!d.kv.OnGpu(static_cast<int32_t>(g))) continue;
    begin.tables[g] = const_cast<int32_t*>(d.kv.bindings()[g].block_tables);
    begin.table_strides[g] = d.kv.bindings()[g].table_stride;
  }
  begin.max_spans = bounds.spans;
  begin.max_rows = bounds.rows;
  begin.max_wanted = bounds.wanted;
  begin.spans = m.spans;
  begin.span_drafts = m.span_drafts;
  begin.token_ids = m.token_ids;
  begin.row_slots = m.row_slots;
  begin.row_positions = m.row_positions;
  begin.row_spans = m.row_spans;
  begin.wanted_rows = m.wanted_rows;
  begin.wanted_slots = m.wanted_slots;
  begin.wanted_positions = m.wanted_positions;
  begin.wanted_in_front = m.wanted_in_front;
  if (drafts.stride > 0) begin.drafts = DraftBegin(bounds, drafts.stride, 0);
  begin.cleared = out.expert_counts;
  begin.num_cleared = m.num_counts;
  const int64_t expanded_tokens = step != nullptr ? step->num_expanded_tokens : 0;
  const auto set_batch = [&] {
    SetBatch(bounds, max_q_len, expanded_tokens);
    if (expanded_tokens == 0) return;
    d.step.mla_split.min_q_len = step->expand_min_tokens;
    d.step.mla_split.max_rows = expanded_tokens;
  };
  set_batch();
  RunCuda(d.exec, &CudaBackend::step_begin, begin);
  if (expanded_tokens > 0) {
    RunCuda(d.exec, [&](const CudaBackend& cuda, const CudaExec& exec) {
      return cuda.mla_split(exec, d.step.batch, d.step.mla_split);
    });
  }
  if (drafts.stride > 0) {
    PlanWithDrafts(bounds, drafts.stride);
    EnqueueDrafts(bounds, drafts);
    set_batch();
  } else {
    EnqueuePlans();
  }
  ForwardBatch batch = {.token_ids = m.token_ids,
                        .positions = m.row_positions,
                        .num_tokens = bounds.rows,
                        .kv = d.kv.bindings(),
                        .first_layer = model.spec().num_layers - model.num_cuda_layers(),
                        .hidden = m.hidden,
                        .expert_counts = m.num_counts > 0 ? out.expert_counts : nullptr,
                        .mla_piece_tokens = options_.base.mla_piece_tokens};
  if (drafts.stride > 0) batch.rope = m.draft_rope;
  if (step != nullptr) {
    batch.spans = step->spans;
    batch.num_expanded = step->num_expanded;
    if (step->waits_by_layer) {
      batch.before_layer = [&d](int32_t layer) {
        if (!d.transfers.LetsWait()) return;
        d.step.LaunchChain();  // what is kept back belongs in front of the wait
        const Status waits = d.transfers.LetLayerWait(d.stream, layer);
        if (d.step.status.ok()) d.step.status = waits;
      };
    }
  }
  model.Forward(d.exec, batch);
}

// Norm, head and sampling for wanted positions [begin, begin + count); `hidden` null: gathered.
void CudaRuntime::EnqueueOutputs(int64_t begin, int64_t count, const float* hidden) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  const int32_t vocab = info_.vocab_size;
  model.FinalNorm(d.exec, hidden != nullptr ? hidden : m.hidden, count, m.normed, hidden != nullptr ? nullptr : m.wanted_rows + begin);
  model.Head(d.exec, m.normed, count, m.logits);
  // The input and output were laid out for this step's bounds.
  const CudaStepBounds& bounds = d.bounds;
  const CudaStepInput in = CudaStepInput::At(m.input, bounds);
  const CudaStepOutput out = CudaStepOutput::At(m.output, bounds, m.num_counts);
  const bool drafts = options_.base.drafts != DraftKind::kNone;
  RunCuda(d.exec, &CudaBackend::sample,
          CudaSampleParams{.logits = m.logits,
                           .logits_stride = vocab,
                           .vocab = vocab,
                           .num_rows = static_cast<int32_t>(count),
                           .row_slots = m.wanted_slots + begin,
                           .positions = m.wanted_positions + begin,
                           .slots = m.state.sampling,
                           .bias = m.bias,
                           .counts = m.counts,
                           .num_in_front = drafts ? m.wanted_in_front + begin : nullptr,
                           .input_rows = m.wanted_rows + begin,
                           .input_ids = m.token_ids,
                           .modified = m.modified,
                           .num_top = in.num_top + begin,
                           .top_stride = kMaxCudaTopLogprobs,
                           .token_ids = out.tokens + begin,
                           .logprobs = out.logprobs + begin,
                           .top = m.top});
}

// Drafts against draws, the slots' new state, and what the MTP layer has to read.
void CudaRuntime::EnqueueEnd(const CudaStepBounds& bounds) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const RuntimeOptions& o = options_.base;
  const CudaStepInput in = CudaStepInput::At(m.input, bounds);
  const CudaStepOutput out = CudaStepOutput::At(m.output, bounds, m.num_counts);
  CudaStepEndParams end = {.num_spans = bounds.spans,
                           .num_rows = bounds.rows,
                           .spans = m.spans,
                           .span_drafts = m.span_drafts,
                           .token_ids = m.token_ids,
                           .first_wanted = in.first_wanted,
                           .tokens = out.tokens,
                           .computed = out.computed,
                           .state = m.state};
  if (o.drafts != DraftKind::kNone) {
    end.counts = m.counts;
    end.vocab = info_.vocab_size;
    end.accept_seed = kAcceptSeed;
    if (o.accept_fixed >= 0) end.accept_below = static_cast<int64_t>(std::ceil(std::ldexp(double{o.accept_fixed}, 53)));
  }
  end.waiting_rows = m.waiting_rows;
  RunCuda(d.exec, &CudaBackend::step_end, end);
  if (!DraftsOnGpu(o)) return;
  RunCuda(d.exec, &CudaBackend::gather_rows,
          CudaGatherRowsParams{.src = m.hidden, .dst = m.waiting, .dst_rows = m.waiting_rows, .num_rows = bounds.rows,
                               .dim = d.model.model->spec().hidden_size});
}

Status CudaRuntime::RunCpuLayers(const StepPlan& plan, InFlight* step) {
  Device& d = *device_;
  if (d.cpu_hidden == nullptr) return Status::Ok();
  const Model& model = *d.model.model;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    for (int32_t i = 0; i < plan.rows[r].q_len; ++i) {
      const int32_t at = step->row_begin[r] + i;
      d.cpu_tokens[static_cast<size_t>(at)] = step->input.tokens[at];
      d.cpu_positions[static_cast<size_t>(at)] = plan.rows[r].num_computed + i;
    }
  }
  std::fill(d.cpu_counts.begin(), d.cpu_counts.end(), 0);
  model.Forward(d.cpu_exec, {.token_ids = d.cpu_tokens.data(),
                             .positions = d.cpu_positions.data(),
                             .num_tokens = step->num_rows,
                             .spans = step->spans,
                             .num_expanded = step->num_expanded,
                             .kv = d.kv.bindings(),
                             .end_layer = model.spec().num_layers - model.num_cuda_layers(),
                             .hidden = d.cpu_hidden,
                             .expert_counts = d.cpu_counts.empty() ? nullptr : d.cpu_counts.data()});
  return FromCuda(backend_->copy(d.memory.hidden, d.cpu_hidden, step->num_rows * model.spec().hidden_size * 4, d.stream));
}

Status CudaRuntime::LaunchOps(const StepPlan& plan, InFlight* step) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  int64_t wanted = 0;
  for (const PlanRow& row : plan.rows) {
    wanted += (row.outputs & (kOutputAllLogits | kOutputPromptLogprobs)) != 0 ? row.q_len : 1 + row.num_drafts;
  }
  const CudaStepBounds bounds = {static_cast<int32_t>(plan.rows.size()), static_cast<int32_t>(step->num_rows),
                                 static_cast<int32_t>(plan.block_writes.size()), static_cast<int32_t>(plan.setups.size()),
                                 static_cast<int32_t>(wanted)};
  if (bounds.writes > m.bounds.writes) {
    return Internal("step {}: {} block writes, at most {}", plan.step_id, bounds.writes, m.bounds.writes);
  }
  RETURN_IF_ERROR(FillInput(plan, bounds, step));
  RETURN_IF_ERROR(RunCpuLayers(plan, step));
  RETURN_IF_ERROR(FromCuda(backend_->copy(m.input, step->input_host, step->input.size_bytes, d.stream)));
  EnqueueForward(bounds, step->max_q_len, {step->max_drafts, DraftStride(*step)}, step);
  RETURN_IF_ERROR(d.step.status);
  RETURN_IF_ERROR(d.transfers.LetWait(d.stream));
  RETURN_IF_ERROR(SendOutputs(plan, step));
  return FromCuda(backend_->copy(step->output_host, m.output, step->output.size_bytes, d.stream));
}

// Waits for it: only outputs that nobody wants from a step in a hurry come this way.
Status CudaRuntime::Download(const void* device, int64_t bytes, void* host) {
  RETURN_IF_ERROR(FromCuda(backend_->copy(host, device, bytes, device_->stream)));
  return FromCuda(backend_->stream_synchronize(device_->stream));
}

// The best tokens beside a prompt's own are found on the host: nobody waits for such a step in a hurry.
Status CudaRuntime::FindPromptTops(const StepPlan& plan, int64_t begin, int64_t count, InFlight* step) {
  const auto vocab = static_cast<size_t>(info_.vocab_size);
  StepResult& result = step->result;
  std::vector<float> logits;
  std::vector<TokenLogprob> top;
  for (int64_t i = 0; i < count; ++i) {
    const auto r = static_cast<size_t>(step->wanted[static_cast<size_t>(begin + i)].row_idx);
    const int32_t num_top = plan.rows[r].num_prompt_top_logprobs;
    if (num_top == 0 || step->input.target_ids[begin + i] < 0) continue;
    logits.resize(vocab);
    top.resize(static_cast<size_t>(num_top));
    RETURN_IF_ERROR(Download(device_->memory.logits + i * info_.vocab_size, int64_t{info_.vocab_size} * 4, logits.data()));
    TopLogprobs(logits, top);
    // Rows come one after the other, so each row's entries lie together.
    if (step->wanted[static_cast<size_t>(begin + i)].position == 0) {
      result.rows[r].prompt_top_begin = static_cast<int32_t>(result.prompt_top_logprobs.size());
    }
    for (const TokenLogprob& entry : top) result.prompt_top_logprobs.push_back({entry.token_id, entry.logprob});
  }
  return Status::Ok();
}

Status CudaRuntime::SendOutputs(const StepPlan& plan, InFlight* step) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  const int64_t hidden_size = model.spec().hidden_size;
  const int64_t vocab = info_.vocab_size;
  StepResult& result = step->result;
  bool any_mtp = false;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    ResultRow out;
    out.slot = row.slot;
    out.num_computed = row.num_computed + row.q_len;
    any_mtp |= (row.outputs & kOutputMtp) != 0;
    if ((row.outputs & kOutputHidden) != 0) {
      out.hidden_begin = static_cast<int64_t>(result.hidden.size());
      result.hidden.resize(result.hidden.size() + static_cast<size_t>(row.q_len * hidden_size));
      auto* normed = reinterpret_cast<float*>(m.workspace);  // the forward is done with it
      model.FinalNorm(d.exec, m.hidden + step->row_begin[r] * hidden_size, row.q_len, normed);
      RETURN_IF_ERROR(d.step.status);
      RETURN_IF_ERROR(Download(normed, row.q_len * hidden_size * 4, result.hidden.data() + out.hidden_begin));
    }
    result.rows.push_back(out);
  }
  const auto num_wanted = static_cast<int64_t>(step->wanted.size());
  for (int64_t begin = 0; begin < num_wanted; begin += m.logit_tile) {
    const int64_t count = std::min(m.logit_tile, num_wanted - begin);
    EnqueueOutputs(begin, count, nullptr);
    if (step->any_targets) {
      const CudaStepInput in = CudaStepInput::At(m.input, d.bounds);
      const CudaStepOutput out = CudaStepOutput::At(m.output, d.bounds, m.num_counts);
      RunCuda(d.exec, &CudaBackend::logprob_rows,
              CudaLogprobParams{.logits = m.logits, .ids = in.target_ids + begin, .num_rows = count,
                                .vocab = info_.vocab_size, .out = out.target_logprobs + begin});
    }
    RETURN_IF_ERROR(d.step.status);
    if (step->any_top) {
      RETURN_IF_ERROR(FromCuda(backend_->copy(step->top_host + begin * kMaxCudaTopLogprobs, m.top,
                                              count * kMaxCudaTopLogprobs * int64_t{sizeof(TokenLogprob)}, d.stream)));
    }
    RETURN_IF_ERROR(FindPromptTops(plan, begin, count, step));
    for (int64_t i = 0; i < count; ++i) {
      const auto r = static_cast<size_t>(step->wanted[static_cast<size_t>(begin + i)].row_idx);
      if ((plan.rows[r].outputs & kOutputAllLogits) == 0) continue;
      if (result.rows[r].logits_begin < 0) result.rows[r].logits_begin = static_cast<int64_t>(result.logits.size());
      result.logits.resize(result.logits.size() + static_cast<size_t>(vocab));
      RETURN_IF_ERROR(Download(m.logits + i * vocab, vocab * 4, result.logits.data() + result.logits.size() - vocab));
    }
  }
  EnqueueEnd(d.bounds);
  if (step->feeds) EnqueueFeed(d.bounds, step->max_q_len);
  return any_mtp ? SendMtp(plan, step) : d.step.status;
}

// As Runtime::OutputMtp: slot i of a sequence pairs the hidden state at position i with token i + 1. The states are those
// kept from the last step, [max_seqs], followed by this step's.
Status CudaRuntime::SendMtp(const StepPlan& plan, InFlight* step) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  const Model& model = *d.model.model;
  CHECK(model.has_mtp());
  const int64_t hidden_size = model.spec().hidden_size;
  const int64_t vocab = info_.vocab_size;
  const int32_t first = info_.max_seqs;
  model.FinalNorm(d.exec, m.hidden, step->num_rows, m.mtp_states + first * hidden_size);
  std::vector<int32_t> tokens, from, keep_from, keep_to;
  std::vector<SeqSpan> spans;
  for (const int32_t r : step->row_order) {
    const PlanRow& row = plan.rows[static_cast<size_t>(r)];
    if ((row.outputs & kOutputMtp) == 0) continue;
    const int32_t begin = step->row_begin[static_cast<size_t>(r)];
    const int32_t skipped = row.num_computed == 0 ? 1 : 0;  // position 0 completes no slot
    const auto next = static_cast<int32_t>(tokens.size());
    const int32_t count = row.q_len - skipped;
    for (int32_t t = skipped; t < row.q_len; ++t) {
      from.push_back(t == 0 ? row.slot : first + begin + t - 1);
      // A token that only the device knows: fetched, since the host has to name it here.
      int32_t token = step->input.tokens[begin + t];
      if (token < 0) RETURN_IF_ERROR(Download(m.token_ids + begin + t, sizeof(int32_t), &token));
      tokens.push_back(token);
    }
    keep_from.push_back(first + begin + row.q_len - 1);
    keep_to.push_back(row.slot);
    step->result.rows[static_cast<size_t>(r)].mtp_logits_begin = int64_t{next} * vocab;
    if (count > 0) {
      spans.push_back({.slot = row.slot, .q_begin = next, .q_len = count, .kv_len = row.num_computed + row.q_len - 1});
    }
  }
  const auto num = static_cast<int64_t>(tokens.size());
  const auto send = [&](const auto& values, auto* to) {
    return FromCuda(backend_->copy(to, values.data(), static_cast<int64_t>(values.size() * sizeof(values[0])), d.stream));
  };
  RETURN_IF_ERROR(send(from, m.mtp_from));
  RETURN_IF_ERROR(send(tokens, m.mtp_tokens));
  RETURN_IF_ERROR(send(spans, m.mtp_spans));
  RunCuda(d.exec, &CudaBackend::gather_rows,
          CudaGatherRowsParams{.src = m.mtp_states, .src_rows = m.mtp_from, .dst = m.mtp_hidden, .num_rows = num, .dim = hidden_size});
  // Then the last states are kept, from and to behind the lists that were just used.
  RETURN_IF_ERROR(send(keep_from, m.mtp_from + num));
  RETURN_IF_ERROR(send(keep_to, m.mtp_to));
  RunCuda(d.exec, &CudaBackend::gather_rows,
          CudaGatherRowsParams{.src = m.mtp_states, .src_rows = m.mtp_from + num, .dst = m.mtp_states, .dst_rows = m.mtp_to,
                               .num_rows = static_cast<int64_t>(keep_from.size()), .dim = hidden_size});
  if (num > 0) {
    SetMtpBatch(static_cast<int32_t>(spans.size()), static_cast<int32_t>(num), step->max_q_len, 0);
    RunCuda(d.exec, [&](const CudaBackend& cuda, const CudaExec& exec) { return cuda.batch_rows(exec, d.step.batch); });
    EnqueuePlans();
    model.ForwardMtp(d.exec, {.next_token_ids = m.mtp_tokens,
                              .positions = m.row_positions,
                              .hidden = m.mtp_hidden,
                              .num_tokens = num,
                              .kv = d.kv.bindings().back(),
                              .out = m.mtp_out});
    const size_t size = step->result.mtp_logits.size();
    step->result.mtp_logits.resize(size + static_cast<size_t>(num * vocab));
    for (int64_t begin = 0; begin < num; begin += m.logit_tile) {
      const int64_t count = std::min(m.logit_tile, num - begin);
      model.MtpHead(d.exec, m.mtp_out + begin * hidden_size, count, m.logits);
      RETURN_IF_ERROR(d.step.status);
      RETURN_IF_ERROR(Download(m.logits, count * vocab * 4, step->result.mtp_logits.data() + begin * vocab));
    }
  }
  return d.step.status;
}

}  // namespace cachalot
