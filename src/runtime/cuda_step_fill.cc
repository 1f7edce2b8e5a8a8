// From a plan to the input of a step on the GPU: the order of its rows, what enters which slot, and which logits are wanted.
#include <algorithm>

#include "runtime/cuda_runtime_device.h"

namespace cachalot {

void CudaRuntime::Order(const StepPlan& plan, InFlight* step) {
  const AttentionSpec& attention = model().spec().attention;
  const CudaStepMemory& m = device_->memory;
  // Which rows are expanded is decided by their length alone, here and on the device: where they are too many for the
  // scratch, only longer ones are.
  int32_t min_tokens = m.max_expanded_tokens > 0 ? MlaExpandMinTokens(attention, mla_form_) : INT32_MAX;
  // Rows with drafts may be shorter on the device than the host thinks: they are never expanded.
  if (options_.base.drafts != DraftKind::kNone) min_tokens = std::max(min_tokens, options_.base.max_drafts + 2);
  const int64_t longest = m.expanded_stride * m.split.block_tokens;
  const auto expands = [&](const PlanRow& row) {
    return row.q_len >= min_tokens && row.num_computed + row.q_len <= longest;
  };
  while (min_tokens < INT32_MAX) {
    int64_t tokens = 0;
    int32_t shortest = INT32_MAX - 1;
    for (const PlanRow& row : plan.rows) {
      if (!expands(row)) continue;
      tokens += row.num_computed + row.q_len;
      shortest = std::min(shortest, row.q_len);
    }
    step->num_expanded_tokens = tokens;
    if (tokens <= m.max_expanded_tokens) break;
    min_tokens = shortest + 1;
  }
  step->expand_min_tokens = min_tokens;
  if (min_tokens == INT32_MAX) step->num_expanded_tokens = 0;

  step->spans.clear();
  step->row_order.clear();
  step->row_begin.assign(plan.rows.size(), 0);
  step->span_of_row.assign(plan.rows.size(), 0);
  step->num_expanded = 0;
  step->max_q_len = 0;
  int32_t next = 0;
  for (const bool expanded : {false, true}) {
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      const PlanRow& row = plan.rows[r];
      DCHECK(row.q_len > 0 && row.num_computed + row.q_len <= options_.base.max_context);
      if (expands(row) != expanded) continue;
      step->num_expanded += expanded;
      step->row_begin[r] = next;
      step->row_order.push_back(static_cast<int32_t>(r));
      step->spans.push_back({.slot = row.slot, .q_begin = next, .q_len = row.q_len, .kv_len = row.num_computed + row.q_len});
      step->max_q_len = std::max(step->max_q_len, row.q_len);
      next += row.q_len;
    }
  }
  step->num_rows = next;
}

void CudaRuntime::FillSetup(const StepPlan& plan, const SlotSetup& setup, CudaSlotSetup* out) {
  const SamplingConfig& config = setup.sampling;
  *out = {};
  out->slot = setup.slot;
  if (setup.history_len > 0) out->last_token = plan.history_ids[static_cast<size_t>(setup.history_begin + setup.history_len - 1)];
  out->num_stops = std::min(setup.stop_len, kMaxCudaStopIds);
  for (int32_t i = 0; i < out->num_stops; ++i) out->stops[i] = plan.stop_ids[static_cast<size_t>(setup.stop_begin + i)];
  out->sampling.sampling = {.temperature = config.temperature,
                            .top_k = config.top_k,
                            .top_p = config.top_p,
                            .min_p = config.min_p,
                            .repetition_penalty = config.repetition_penalty,
                            .presence_penalty = config.presence_penalty,
                            .frequency_penalty = config.frequency_penalty,
                            .seed = config.seed};
  out->sampling.bias_begin = setup.slot * kMaxCudaLogitBias;
  out->sampling.bias_len = static_cast<int32_t>(config.logit_bias.size());
  out->sampling.num_suppressed = static_cast<int32_t>(config.suppressed_ids.size());
  out->sampling.suppressed_until = config.suppressed_until;
  out->sampling.counts_row = config.has_penalties() ? setup.slot : -1;
}

// What is too long for the step's input: biases, and the tokens that penalties count.
Status CudaRuntime::SendSetups(const StepPlan& plan) {
  Device& d = *device_;
  const CudaStepMemory& m = d.memory;
  static_assert(sizeof(TokenBias) == sizeof(LogitBias));
  for (const SlotSetup& setup : plan.setups) {
    std::vector<TokenBias> bias = setup.sampling.logit_bias;
    for (const int32_t id : setup.sampling.suppressed_ids) bias.push_back({.token_id = id});
    if (bias.size() > static_cast<size_t>(kMaxCudaLogitBias)) {
      return InvalidArgument("{} logit biases, at most {} on the GPU", bias.size(), kMaxCudaLogitBias);
    }
    RETURN_IF_ERROR(FromCuda(backend_->copy(m.bias + setup.slot * kMaxCudaLogitBias, bias.data(),
                                            static_cast<int64_t>(bias.size() * sizeof(LogitBias)), d.stream)));
    if (!setup.sampling.has_penalties()) continue;
    RETURN_IF_ERROR(FromCuda(backend_->copy(m.history, plan.history_ids.data() + setup.history_begin,
                                            setup.history_len * int64_t{sizeof(int32_t)}, d.stream)));
    RETURN_IF_ERROR(FromCuda(backend_->sample_history(
        d.step.exec, {.counts = m.counts + int64_t{setup.slot} * info_.vocab_size,
                      .vocab = info_.vocab_size,
                      .token_ids = m.history,
                      .num_tokens = setup.history_len,
                      .num_prompt = setup.history_num_prompt})));
  }
  return Status::Ok();
}

Status CudaRuntime::FillInput(const StepPlan& plan, const CudaStepBounds& bounds, InFlight* step) {
  Device& d = *device_;
  const bool split = d.cpu_hidden != nullptr;
  step->input = CudaStepInput::At(step->input_host, bounds);
  step->output = CudaStepOutput::At(step->output_host, bounds, d.memory.num_counts);
  CudaStepInput& in = step->input;
  *in.header = {};
  std::copy(step->spans.begin(), step->spans.end(), in.spans);
  in.header->num_spans = static_cast<int32_t>(step->spans.size());
  in.header->num_rows = static_cast<int32_t>(step->num_rows);
  for (size_t s = 0; s < step->row_order.size(); ++s) {
    const PlanRow& row = plan.rows[static_cast<size_t>(step->row_order[s])];
    in.drafts[s] = row.num_drafts;
    in.first_wanted[s] = -1;
    in.next_tokens[s] = row.next_token;
    step->span_of_row[static_cast<size_t>(step->row_order[s])] = static_cast<int32_t>(s);
  }
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    int32_t* tokens = in.tokens + step->row_begin[r];
    if (row.token_begin >= 0) std::copy_n(plan.token_ids.begin() + row.token_begin, row.q_len, tokens);
    else if (split) tokens[0] = d.last_tokens[static_cast<size_t>(row.slot)];
    else std::fill_n(tokens, row.q_len, -1);
  }
  for (const BlockWrite& write : plan.block_writes) {
    if (!d.kv.OnGpu(write.group)) d.kv.Write(write);
    else in.writes[in.header->num_writes++] = {write.slot, write.group, write.index, write.block_id};
  }
  for (const SlotSetup& setup : plan.setups) FillSetup(plan, setup, &in.setups[in.header->num_setups++]);

  step->wanted.clear();
  step->any_top = step->any_targets = false;
  int32_t num_wanted = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    const bool every = (row.outputs & (kOutputAllLogits | kOutputPromptLogprobs)) != 0;
    if (!every && (row.outputs & kOutputSample) == 0) continue;
    const int32_t first_sampled = (row.outputs & kOutputSample) != 0 ? row.q_len - 1 - row.num_drafts : row.q_len;
    for (int32_t i = every ? 0 : first_sampled; i < row.q_len; ++i, ++num_wanted) {
      step->wanted.push_back({static_cast<int32_t>(r), i});
      const int32_t at = step->row_begin[r] + i;
      const bool sampled = i >= first_sampled;
      if (i == first_sampled) in.first_wanted[step->span_of_row[r]] = num_wanted;
      in.wanted[num_wanted] = sampled ? at : ~at;
      const bool top = sampled && (row.outputs & kOutputTopLogprobs) != 0;
      in.num_top[num_wanted] = top ? std::min(row.num_top_logprobs, kMaxCudaTopLogprobs) : -1;
      step->any_top |= top && row.num_top_logprobs > 0;
      int32_t target = -1;
      if ((row.outputs & kOutputPromptLogprobs) != 0) {
        target = i + 1 < row.q_len ? plan.token_ids[static_cast<size_t>(row.token_begin + i + 1)] : row.next_token;
      }
      in.target_ids[num_wanted] = target;
      step->any_targets |= target >= 0;
    }
  }
  in.header->num_wanted = num_wanted;
  return Status::Ok();
}

}  // namespace cachalot
