#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/fault.h"

namespace cachalot {
namespace {

// Positions whose logits are in memory at once: one per sequence, so that a decode step reads the head once, but not
// without bound (256 x 150,000 x 4 bytes = 154 MB).
int64_t LogitTile(const RuntimeOptions& options) {
  return std::clamp<int64_t>(int64_t{options.max_seqs} * (1 + options.max_drafts), 32, 256);
}

DrafterOptions DraftOptions(const RuntimeOptions& options, const ModelSpec& draft_spec) {
  return {.kv_dtype = options.kv_dtype,
          .block_tokens = options.block_tokens,
          .max_seqs = options.max_seqs,
          .max_context = std::min(options.max_context, draft_spec.max_context - options.max_drafts - 1),
          .kv_tokens = options.kv_tokens,
          .max_batch_tokens = options.max_step_tokens,
          .max_drafts = options.max_drafts,
          .num_threads = options.num_threads};
}

}  // namespace

std::vector<KvGroupSpec> SequenceGroups(std::vector<KvGroupSpec> groups, const RuntimeOptions& options) {
  if (options.drafts == DraftKind::kMtp) groups.pop_back();
  return groups;
}

Runtime::Memory Runtime::PlanMemory(const ModelSpec& spec, bool with_mtp, const RuntimeOptions& options,
                                    const ModelSpec* draft_spec) {
  Memory memory;
  const KvStoreOptions kv = {.dtype = options.kv_dtype,
                             .block_tokens = options.block_tokens,
                             .max_seqs = options.max_seqs,
                             .max_context = options.max_context,
                             .capacity_tokens = options.kv_tokens,
                             .swap_tokens = options.swap_tokens};
  memory.kv_bytes = KvStore::PlanBytes(SequenceGroups(KvGroups(spec, with_mtp, 0, options.kv_types), options), kv);
  const int64_t row = spec.hidden_size * static_cast<int64_t>(sizeof(float));
  const int64_t tile = LogitTile(options);
  memory.workspace_bytes =
      std::max(Model::WorkspaceBytes(spec, options.max_step_tokens, options.max_context, tile, options.num_threads),
               SampleWorkspaceBytes(spec.vocab_size)) +
      (options.max_step_tokens + tile) * row + tile * spec.vocab_size * static_cast<int64_t>(sizeof(float)) +
      (with_mtp ? (2 * options.max_step_tokens + options.max_seqs) * row : 0);
  if (options.drafts == DraftKind::kMtp || options.drafts == DraftKind::kModel) {
    const bool mtp = options.drafts == DraftKind::kMtp;
    const ModelSpec& drafting = mtp ? spec : *draft_spec;
    std::vector<KvGroupSpec> groups = KvGroups(drafting, mtp);
    if (mtp) groups.erase(groups.begin(), groups.end() - 1);
    const DrafterOptions own = DraftOptions(options, drafting);
    memory.workspace_bytes += Drafter::PlanBytes(drafting, groups, mtp, own) + Drafter::WorkspaceBytes(drafting, own);
  }
  return memory;
}

Result<std::unique_ptr<Runtime>> Runtime::Create(std::unique_ptr<Model> model, std::unique_ptr<ThreadPool> pool,
                                                 const RuntimeOptions& options, std::unique_ptr<Model> draft_model) {
  auto runtime = std::unique_ptr<Runtime>(new Runtime());
  runtime->options_ = options;
  const ModelSpec& spec = model->spec();
  const int64_t row = spec.hidden_size * static_cast<int64_t>(sizeof(float));
  const int64_t tile = LogitTile(options);
  runtime->logit_tile_ = tile;
  ASSIGN_OR_RETURN(runtime->kv_, KvStore::Allocate(SequenceGroups(model->kv_groups(), options), {.dtype = options.kv_dtype,
                                                                         .block_tokens = options.block_tokens,
                                                                         .max_seqs = options.max_seqs,
                                                                         .max_context = options.max_context,
                                                                         .capacity_tokens = options.kv_tokens,
                                                                         .swap_tokens = options.swap_tokens}));
  int64_t workspace_bytes =
      std::max(Model::WorkspaceBytes(spec, options.max_step_tokens, options.max_context, tile, options.num_threads),
               SampleWorkspaceBytes(spec.vocab_size));
  std::unique_ptr<DraftGraph> graph;
  double draft_cost = 0;
  if (options.drafts == DraftKind::kMtp) {
    draft_cost = MtpCost(spec);
    graph = MakeMtpGraph(model.get());
  } else if (options.drafts == DraftKind::kModel) {
    draft_cost = static_cast<double>(draft_model->dense_bytes()) / static_cast<double>(model->dense_bytes());
    graph = MakeModelGraph(std::move(draft_model));
  }
  if (graph != nullptr) {
    const DrafterOptions own = DraftOptions(options, graph->spec());
    workspace_bytes = std::max(workspace_bytes, Drafter::WorkspaceBytes(graph->spec(), own));
    ASSIGN_OR_RETURN(runtime->drafter_, Drafter::Create(std::move(graph), own));
    runtime->wants_.reserve(static_cast<size_t>(options.max_seqs));
    runtime->drafts_.resize(static_cast<size_t>(options.max_seqs) * kMaxDrafts);
    runtime->next_tokens_.reserve(static_cast<size_t>(options.max_step_tokens));
  }
  ASSIGN_OR_RETURN(runtime->workspace_, Workspace::Allocate(workspace_bytes));
  ASSIGN_OR_RETURN(runtime->hidden_, Buffer::Allocate(options.max_step_tokens * row));
  ASSIGN_OR_RETURN(runtime->normed_, Buffer::Allocate(tile * row));
  ASSIGN_OR_RETURN(runtime->logits_, Buffer::Allocate(tile * spec.vocab_size * static_cast<int64_t>(sizeof(float))));
  if (model->has_mtp()) {
    ASSIGN_OR_RETURN(runtime->last_hidden_, Buffer::Allocate(options.max_seqs * row));
    ASSIGN_OR_RETURN(runtime->mtp_hidden_, Buffer::Allocate(options.max_step_tokens * row));
    ASSIGN_OR_RETURN(runtime->mtp_out_, Buffer::Allocate(options.max_step_tokens * row));
  }
  runtime->slots_.resize(static_cast<size_t>(options.max_seqs));
  runtime->token_ids_.resize(static_cast<size_t>(options.max_step_tokens));
  runtime->positions_.resize(static_cast<size_t>(options.max_step_tokens));
  runtime->wanted_.reserve(static_cast<size_t>(options.max_step_tokens));
  runtime->hidden_rows_.reserve(static_cast<size_t>(options.max_step_tokens));
  runtime->spans_.reserve(static_cast<size_t>(options.max_seqs));
  runtime->result_.rows.reserve(static_cast<size_t>(options.max_seqs));
  runtime->result_.expert_counts.reserve(static_cast<size_t>(spec.num_moe_layers() * spec.moe.num_experts));
  runtime->info_ = {.max_seqs = options.max_seqs,
                    .max_step_tokens = options.max_step_tokens,
                    .max_context = options.max_context,
                    .vocab_size = spec.vocab_size,
                    .num_experts = spec.moe.num_experts,
                    .max_logit_rows = options.max_logit_rows,
                    .kv_groups = runtime->kv_.infos(),
                    .device_drafts = runtime->drafter_ ? options.drafts : DraftKind::kNone,
                    .draft_context = runtime->drafter_ ? runtime->drafter_->context_tokens() : 0,
                    .draft_cost = draft_cost,
                    .accepts_by_lot = options.accept_fixed >= 0,
                    .kv_identity = options.kv_identity};
  runtime->row_begin_.reserve(static_cast<size_t>(options.max_seqs));
  runtime->row_order_.reserve(static_cast<size_t>(options.max_seqs));
  runtime->mla_form_ = options.deterministic ? MlaForm::kAbsorbed : options.mla_form;
  runtime->model_ = std::move(model);
  runtime->pool_ = std::move(pool);
  runtime->exec_ = {.isa = options.isa,
                    .pool = runtime->pool_.get(),
                    .workspace = &runtime->workspace_,
                    .counters = &runtime->counters_,
                    .deterministic = options.deterministic};
  return runtime;
}

Status Runtime::Launch(const StepPlan& plan) {
  CHECK(!pending_) << "depth 0: collect a step before the next";
  CHECK(plan.num_tokens() <= options_.max_step_tokens && plan.rows.size() <= slots_.size());
  if (FaultHits("device.op")) return DeviceError("step {}: injected fault", plan.step_id);
  for (const BlockMove& move : plan.swap_outs) kv_.SwapOut(move);
  for (const BlockMove& move : plan.swap_ins) kv_.SwapIn(move);
  for (const SlotSetup& setup : plan.setups) {
    slots_[static_cast<size_t>(setup.slot)].Reset(
        setup.sampling, std::span(plan.history_ids).subspan(setup.history_begin, setup.history_len),
        setup.history_num_prompt, info_.vocab_size);
    if (drafter_) drafter_->Reset(setup.slot, std::span(plan.context_ids).subspan(setup.context_begin, setup.context_len));
  }
  for (const BlockCopy& copy : plan.block_copies) kv_.Copy(copy);
  for (const BlockWrite& write : plan.block_writes) kv_.Write(write);
  result_.Clear();
  result_.step_id = plan.step_id;
  pending_ = true;
  if (plan.rows.empty()) return Status::Ok();  // moves only
  const auto start = std::chrono::steady_clock::now();
  if (drafter_) MakeDrafts(plan);
  Gather(plan);
  GatherHiddenRows(plan);
  const ModelSpec& spec = model_->spec();
  result_.expert_counts.assign(static_cast<size_t>(spec.num_moe_layers() * spec.moe.num_experts), 0);
  model_->Forward(exec_, {.token_ids = token_ids_.data(),
                          .positions = positions_.data(),
                          .num_tokens = plan.num_tokens(),
                          .spans = spans_,
                          .num_expanded = num_expanded_,
                          .kv = kv_.bindings(),
                          .hidden = hidden_.as<float>(),
                          .wanted_rows = hidden_rows_.data(),
                          .num_wanted_rows = static_cast<int64_t>(hidden_rows_.size()),
                          .expert_counts = result_.expert_counts.data()});
  Output(plan);
  if (drafter_) TellDrafter(plan);
  result_.device_us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  CHECK(workspace_.used() == 0);
  return Status::Ok();
}

Status Runtime::Collect(StepResult* result) {
  CHECK(pending_);
  pending_ = false;
  std::swap(*result, result_);
  return Status::Ok();
}

Status Runtime::ReadBlock(int32_t group, int32_t block, std::span<std::byte> out) {
  const std::span<const std::byte> bytes = kv_.BlockBytes(group, block);
  CHECK(out.size() == bytes.size()) << out.size() << " bytes for a block of " << bytes.size();
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return Status::Ok();
}

Status Runtime::WriteBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) {
  const std::span<std::byte> place = kv_.BlockBytes(group, block);
  CHECK(place.size() == bytes.size()) << bytes.size() << " bytes for a block of " << place.size();
  std::memcpy(place.data(), bytes.data(), bytes.size());
  return Status::Ok();
}

// Rows in MLA's expanded form come last; otherwise in the plan's order.
void Runtime::Gather(const StepPlan& plan) {
  const AttentionSpec& attention = model_->spec().attention;
  spans_.clear();
  row_order_.clear();
  row_begin_.assign(plan.rows.size(), 0);
  num_expanded_ = 0;
  int32_t next = 0;
  for (const bool expanded : {false, true}) {
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      const PlanRow& row = plan.rows[r];
      DCHECK(row.q_len > 0 && row.num_computed + row.q_len <= options_.max_context);
      if (MlaExpands(attention, mla_form_, row.q_len, row.num_computed + row.q_len) != expanded) continue;
      num_expanded_ += expanded;
      row_begin_[r] = next;
      row_order_.push_back(static_cast<int32_t>(r));
      spans_.push_back({.slot = row.slot, .q_begin = next, .q_len = row.q_len, .kv_len = row.num_computed + row.q_len});
      for (int32_t i = 0; i < row.q_len; ++i, ++next) {
        token_ids_[next] = row.token_begin >= 0 ? plan.token_ids[static_cast<size_t>(row.token_begin + i)]
                           : i == 0 ? slots_[static_cast<size_t>(row.slot)].last_token()
                                    : drafts_[static_cast<size_t>(row.slot * kMaxDrafts + i - 1)];
        DCHECK(token_ids_[next] >= 0 && token_ids_[next] < info_.vocab_size);
        positions_[next] = row.num_computed + i;
      }
    }
  }
}

// The rows of hidden_ that Output and the drafter will read.
void Runtime::GatherHiddenRows(const StepPlan& plan) {
  hidden_rows_.clear();
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    const bool every = row.outputs & (kOutputAllLogits | kOutputPromptLogprobs | kOutputHidden | kOutputMtp);
    int32_t first = every ? 0 : (row.outputs & kOutputSample) ? row.q_len - 1 - row.num_drafts : row.q_len;
    if (drafter_ != nullptr) first = std::min(first, row.q_len - drafter_->NumRead(row.q_len));
    for (int32_t i = first; i < row.q_len; ++i) hidden_rows_.push_back(row_begin_[r] + i);
  }
}

void Runtime::Output(const StepPlan& plan) {
  const int64_t hidden_size = model_->spec().hidden_size;
  bool any_mtp = false;
  wanted_.clear();
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    ResultRow out;
    out.slot = row.slot;
    out.num_computed = row.num_computed + row.q_len;
    if (row.outputs & kOutputHidden) OutputHidden(row, &out, row_begin_[r]);
    result_.rows.push_back(out);
    any_mtp |= (row.outputs & kOutputMtp) != 0;
    const bool every = row.outputs & (kOutputAllLogits | kOutputPromptLogprobs);
    if (!every && !(row.outputs & kOutputSample)) continue;
    for (int32_t i = every ? 0 : row.q_len - 1 - row.num_drafts; i < row.q_len; ++i) wanted_.push_back({static_cast<int32_t>(r), i});
  }
  const auto num_wanted = static_cast<int64_t>(wanted_.size());
  for (int64_t begin = 0; begin < num_wanted; begin += logit_tile_) {
    const int64_t count = std::min(logit_tile_, num_wanted - begin);
    for (int64_t i = 0; i < count; ++i) {
      const Wanted& wanted = wanted_[static_cast<size_t>(begin + i)];
      std::memcpy(normed_.as<float>() + i * hidden_size,
                  hidden_.as<float>() + (row_begin_[static_cast<size_t>(wanted.row_idx)] + wanted.position) * hidden_size,
                  sizeof(float) * hidden_size);
    }
    model_->FinalNorm(exec_, normed_.as<float>(), count, normed_.as<float>());
    model_->Head(exec_, normed_.as<float>(), count, logits_.as<float>());
    for (int64_t i = 0; i < count; ++i) {
      const Wanted& wanted = wanted_[static_cast<size_t>(begin + i)];
      const auto r = static_cast<size_t>(wanted.row_idx);
      OutputPosition(plan.rows[r], &result_.rows[r], row_begin_[r], wanted.position,
                     logits_.as<float>() + i * info_.vocab_size);
    }
  }
  if (any_mtp) OutputMtp(plan);
}

void Runtime::OutputHidden(const PlanRow& row, ResultRow* out, int64_t token_begin) {
  const int64_t hidden_size = model_->spec().hidden_size;
  out->hidden_begin = static_cast<int64_t>(result_.hidden.size());
  result_.hidden.resize(result_.hidden.size() + static_cast<size_t>(row.q_len * hidden_size));
  model_->FinalNorm(exec_, hidden_.as<float>() + token_begin * hidden_size, row.q_len,
                    result_.hidden.data() + out->hidden_begin);
}

// Positions come row by row, in order: so each row's pieces lie together in the result.
void Runtime::OutputPosition(const PlanRow& row, ResultRow* out, int64_t token_begin, int32_t position, float* logits) {
  const auto vocab = static_cast<size_t>(info_.vocab_size);
  if (row.outputs & kOutputAllLogits) {
    if (out->logits_begin < 0) out->logits_begin = static_cast<int64_t>(result_.logits.size());
    result_.logits.insert(result_.logits.end(), logits, logits + vocab);
  }
  if (row.outputs & kOutputPromptLogprobs) {
    const int32_t next = position + 1 < row.q_len ? token_ids_[token_begin + position + 1] : row.next_token;
    if (next >= 0) {
      if (out->prompt_logprob_len++ == 0) out->prompt_logprob_begin = static_cast<int32_t>(result_.prompt_logprobs.size());
      result_.prompt_logprobs.push_back(LogprobOf({logits, vocab}, next));
      if (const int32_t top = row.num_prompt_top_logprobs; top > 0) {
        if (out->prompt_logprob_len == 1) out->prompt_top_begin = static_cast<int32_t>(result_.prompt_top_logprobs.size());
        top_.resize(static_cast<size_t>(top));
        TopLogprobs({logits, vocab}, top_);
        for (const TokenLogprob& entry : top_) result_.prompt_top_logprobs.push_back({entry.token_id, entry.logprob});
      }
    }
  }
  if ((row.outputs & kOutputSample) && position + 1 >= row.q_len - row.num_drafts && out->sampled_token < 0) {
    SamplePosition(row, out, token_begin, position, logits);
  }
}

// Draws the token behind the position, as if nobody had drafted one: the same draw of the same distribution. So a draft is
// accepted with the probability that the model gives it, and what stands for a wrong one is drawn from the others. What
// was drafted behind a wrong one is skipped.
void Runtime::SamplePosition(const PlanRow& row, ResultRow* out, int64_t token_begin, int32_t position, float* logits) {
  SlotState& slot = slots_[static_cast<size_t>(row.slot)];
  const bool logprobs = row.outputs & kOutputTopLogprobs;
  const int32_t num_computed = row.num_computed + position + 1;
  top_.resize(static_cast<size_t>(logprobs ? row.num_top_logprobs : 0));
  const SampleRowResult drawn = slot.Sample(exec_, logits, info_.vocab_size, num_computed, logprobs ? row.num_top_logprobs : -1, top_);
  AcceptedToken token = {.token_id = drawn.token_id,
                         .logprob = drawn.logprob,
                         .top_begin = static_cast<int32_t>(result_.top_logprobs.size()),
                         .top_len = static_cast<int32_t>(top_.size())};
  for (const TokenLogprob& entry : top_) result_.top_logprobs.push_back({entry.token_id, entry.logprob});
  if (position + 1 < row.q_len) {
    const int32_t draft = token_ids_[static_cast<size_t>(token_begin + position + 1)];
    bool accepted = draft == drawn.token_id;
    if (options_.accept_fixed >= 0) {
      accepted = UniformAt(kAcceptSeed + static_cast<uint64_t>(row.slot), num_computed) < options_.accept_fixed;
      if (accepted) slot.Replace(drawn.token_id, draft);
    }
    if (accepted) {
      if (out->accept_len++ == 0) out->accept_begin = static_cast<int32_t>(result_.accepted.size());
      token.token_id = draft;
      result_.accepted.push_back(token);
      return;
    }
  }
  out->num_computed = num_computed;
  out->sampled_token = token.token_id;
  out->sampled_logprob = token.logprob;
  out->top_begin = token.top_begin;
  out->top_len = token.top_len;
}

// The tokens that its rows without any know: it drafts behind them.
void Runtime::MakeDrafts(const StepPlan& plan) {
  wants_.clear();
  bool idle = false;
  for (const PlanRow& row : plan.rows) {
    if (row.token_begin >= 0) continue;
    if (row.num_drafts > 0) wants_.push_back({row.slot, row.num_drafts, drafts_.data() + int64_t{row.slot} * kMaxDrafts});
    else idle = true;
  }
  if (wants_.empty()) {
    if (idle) drafter_->Idle();
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  drafter_->Draft(exec_, wants_, info_.vocab_size);
  result_.draft_us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
}

// What each row's positions were followed by: its own tokens as far as they stay, then the sampled or the known one.
void Runtime::TellDrafter(const StepPlan& plan) {
  const int64_t hidden_size = model_->spec().hidden_size;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    const ResultRow& out = result_.rows[r];
    const int32_t* tokens = token_ids_.data() + row_begin_[r];
    const int32_t num_kept = out.num_computed - row.num_computed;
    // Of a long row, where nobody drafts, the end only.
    const int32_t num_skipped = drafter_->takes_hidden() ? row.q_len - drafter_->NumRead(row.q_len) : 0;
    next_tokens_.assign(tokens + num_skipped + 1, tokens + num_kept);
    const int32_t last = (row.outputs & kOutputSample) ? out.sampled_token : row.next_token;
    if (last >= 0) next_tokens_.push_back(last);
    Drafter::Computed computed = {.slot = row.slot, .first = tokens[0], .next = next_tokens_, .prompt = row.token_begin >= 0,
                                  .gap = num_skipped > 0};
    if (drafter_->takes_hidden()) computed.hidden = hidden_.as<float>() + (row_begin_[r] + num_skipped) * hidden_size;
    drafter_->Append(exec_, computed);
  }
}

void Runtime::OutputMtp(const StepPlan& plan) {
  CHECK(model_->has_mtp() && options_.drafts != DraftKind::kMtp) << "logits of an MTP layer that drafts";
  const int64_t hidden_size = model_->spec().hidden_size;
  const int64_t vocab = info_.vocab_size;
  // Slot i of a sequence: hidden state at position i, token i + 1. In a row over [p, p + q) that is the hidden state
  // kept from the last step (for slot p - 1), then those of the row but its last, which is kept in turn.
  float* input = mtp_hidden_.as<float>();
  float* normed = mtp_out_.as<float>();  // free until ForwardMtp fills it
  std::vector<SeqSpan>& spans = spans_;  // the main forward is done with them
  int32_t next = 0;
  size_t num_spans = 0;
  size_t num_expanded = 0;
  for (size_t i = 0; i < row_order_.size(); ++i) {
    const auto r = static_cast<size_t>(row_order_[i]);
    const PlanRow& row = plan.rows[r];
    if (!(row.outputs & kOutputMtp)) continue;
    const int64_t begin = row_begin_[r];
    float* last = last_hidden_.as<float>() + row.slot * hidden_size;
    model_->FinalNorm(exec_, hidden_.as<float>() + begin * hidden_size, row.q_len, normed);
    const int32_t skipped = row.num_computed == 0 ? 1 : 0;  // position 0 completes no slot
    const int32_t count = row.q_len - skipped;
    if (!skipped) std::memcpy(input + next * hidden_size, last, sizeof(float) * hidden_size);
    std::memcpy(input + (next + 1 - skipped) * hidden_size, normed, sizeof(float) * hidden_size * (row.q_len - 1));
    std::memcpy(last, normed + (row.q_len - 1) * hidden_size, sizeof(float) * hidden_size);
    // Compacted in place: next never overtakes begin + skipped.
    for (int32_t t = 0; t < count; ++t) {
      token_ids_[next + t] = token_ids_[begin + skipped + t];
      positions_[next + t] = row.num_computed + skipped + t - 1;
    }
    result_.rows[r].mtp_logits_begin = int64_t{next} * vocab;
    if (count > 0) {
      num_expanded += i >= row_order_.size() - num_expanded_;
      spans[num_spans++] = {.slot = row.slot, .q_begin = next, .q_len = count, .kv_len = row.num_computed + row.q_len - 1};
    }
    next += count;
  }
  if (next == 0) return;
  model_->ForwardMtp(exec_, {.next_token_ids = token_ids_.data(),
                             .positions = positions_.data(),
                             .hidden = input,
                             .num_tokens = next,
                             .spans = {spans.data(), num_spans},
                             .num_expanded = num_expanded,
                             .kv = kv_.bindings().back(),
                             .out = mtp_out_.as<float>()});
  result_.mtp_logits.resize(static_cast<size_t>(next * vocab));
  for (int64_t begin = 0; begin < next; begin += logit_tile_) {
    const int64_t count = std::min(logit_tile_, next - begin);
    model_->MtpHead(exec_, mtp_out_.as<float>() + begin * hidden_size, count, result_.mtp_logits.data() + begin * vocab);
  }
}

}  // namespace cachalot
