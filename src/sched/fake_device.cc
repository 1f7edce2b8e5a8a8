#include "sched/fake_device.h"

#include <algorithm>
#include <cstring>

namespace cachalot {

FakeDevice::FakeDevice(SchedulerLimits limits) : limits_(std::move(limits)) {
  model_.vocab_size = limits_.vocab_size;
  slots_.resize(static_cast<size_t>(limits_.max_seqs));
  for (Slot& slot : slots_) slot.chains.resize(static_cast<size_t>(limits_.max_context));
  for (const KvGroupInfo& group : limits_.kv_groups) {
    model_.groups.push_back({group.window, group.first_token, group.end_token});
    cells_.emplace_back(static_cast<size_t>(group.num_blocks) * static_cast<size_t>(group.block_tokens));
    host_cells_.emplace_back(static_cast<size_t>(group.num_swap_blocks) *
                             static_cast<size_t>(group.block_tokens));
    for (Slot& slot : slots_) {
      slot.tables.emplace_back(static_cast<size_t>(limits_.max_context / group.block_tokens + 1), -1);
    }
  }
  tokens_.reserve(static_cast<size_t>(limits_.max_step_tokens));
  hidden_.reserve(static_cast<size_t>(limits_.max_step_tokens));
}

Status FakeDevice::Run(const StepPlan& plan, StepResult* result) {
  result->Clear();
  result->step_id = plan.step_id;
  step_id_ = plan.step_id;
  if (plan.empty()) return Internal("step {} has nothing to do", plan.step_id);
  if (plan.rows.size() > slots_.size())
    return Internal("{} rows for {} slots", plan.rows.size(), slots_.size());
  if (plan.num_tokens() > limits_.max_step_tokens) {
    return Internal("{} tokens in a step of at most {}", plan.num_tokens(), limits_.max_step_tokens);
  }
  int64_t logit_rows = 0;
  for (const PlanRow& row : plan.rows) {
    RETURN_IF_ERROR(CheckRow(plan, row));
    if (row.outputs & (kOutputAllLogits | kOutputMtp)) logit_rows += row.q_len;
  }
  if (logit_rows > limits_.max_logit_rows)
    return Internal("{} logit rows, at most {}", logit_rows, limits_.max_logit_rows);

  for (const BlockMove& move : plan.swap_outs) {
    const auto group = static_cast<size_t>(move.group);
    RETURN_IF_ERROR(MoveBlock(cells_[group], move.device_block, &host_cells_[group], move.host_block,
                              limits_.kv_groups[group].block_tokens));
  }
  for (const BlockMove& move : plan.swap_ins) {
    const auto group = static_cast<size_t>(move.group);
    RETURN_IF_ERROR(MoveBlock(host_cells_[group], move.host_block, &cells_[group], move.device_block,
                              limits_.kv_groups[group].block_tokens));
  }
  for (const SlotSetup& setup : plan.setups) RETURN_IF_ERROR(SetUp(plan, setup));
  for (const BlockCopy& copy : plan.block_copies) {
    const auto group = static_cast<size_t>(copy.group);
    RETURN_IF_ERROR(MoveBlock(cells_[group], copy.from_block, &cells_[group], copy.to_block,
                              limits_.kv_groups[group].block_tokens));
  }
  for (const BlockWrite& write : plan.block_writes) {
    const auto group = static_cast<size_t>(write.group);
    if (write.block_id < 0 || write.block_id >= limits_.kv_groups[group].num_blocks) {
      return Internal("block {} of group {}", write.block_id, group);
    }
    slots_[static_cast<size_t>(write.slot)].tables[group][static_cast<size_t>(write.index)] = write.block_id;
  }
  // They may be applied in any order.
  written_.clear();
  for (const BlockWrite& write : plan.block_writes)
    written_.push_back({write.slot, write.group, write.index});
  std::sort(written_.begin(), written_.end());
  if (std::adjacent_find(written_.begin(), written_.end()) != written_.end()) {
    return Internal("step {} writes an entry of a block table twice", plan.step_id);
  }
  rows_ = plan.rows;
  for (PlanRow& row : rows_) {
    const Slot& slot = slots_[static_cast<size_t>(row.slot)];
    if (row.token_begin < 0 && !slot.stopped) row.num_computed = slot.num_computed;
  }
  // All writes before all reads, as in a layer: a row must not see another's tokens even then.
  for (const PlanRow& row : rows_) {
    Slot& slot = slots_[static_cast<size_t>(row.slot)];
    if (slot.stopped) continue;
    if (slot.num_computed < row.num_computed) RETURN_IF_ERROR(TakePrefix(&slot, row.num_computed));
    slot.drafts.clear();
    for (int32_t i = 0; i < row.q_len; ++i) {
      const int32_t token = TokenOf(plan, row, slot, i);
      const int32_t position = row.num_computed + i;
      uint64_t& chain = slot.chains[static_cast<size_t>(position)];
      chain = FakeModel::Attend(position > 0 ? slot.chains[static_cast<size_t>(position - 1)] : 0,
                                FakeModel::KvValue(token, position));
      for (size_t g = 0; g < cells_.size(); ++g) {
        if (!limits_.kv_groups[g].Keeps(position / limits_.kv_groups[g].block_tokens)) continue;
        Cell* cell = Find(slot, g, position);
        if (cell == nullptr)
          return Internal("slot {}: no block of group {} for position {}", row.slot, g, position);
        if (cell->last_user != 0 && cell->last_user != slot.residency && cell->last_step > completed_step_) {
          return Internal("slot {} writes to a block of group {} that step {} in flight touches", row.slot, g,
                          cell->last_step);
        }
        *cell = {.value = FakeModel::KvValue(token, position),
                 .chain = chain,
                 .position = position,
                 .last_step = plan.step_id,
                 .last_user = slot.residency};
      }
      if (row.token_begin < 0 && i < row.num_drafts) {
        ASSIGN_OR_RETURN(const int32_t draft, Draft(slot, position));
        slot.drafts.push_back(draft);
      }
    }
  }
  for (const PlanRow& row : rows_) RETURN_IF_ERROR(RunRow(plan, row, result));
  ++num_steps_;
  num_rows_ += static_cast<int64_t>(plan.rows.size());
  return Status::Ok();
}

Status FakeDevice::MoveBlock(const std::vector<Cell>& from, int32_t from_block, std::vector<Cell>* to,
                             int32_t to_block, int32_t block_tokens) {
  for (int32_t i = 0; i < block_tokens; ++i) {
    Cell& target = to->at(static_cast<size_t>(to_block * block_tokens + i));
    if (target.last_step > completed_step_)
      return Internal("block {} is touched by step {} in flight", to_block, target.last_step);
    target = from.at(static_cast<size_t>(from_block * block_tokens + i));
    target.last_step = step_id_;
    target.last_user = 0;
  }
  return Status::Ok();
}

void FakeDevice::SaveBlock(int32_t group, int32_t block, std::span<std::byte> out) const {
  const auto block_tokens = static_cast<size_t>(limits_.kv_groups[static_cast<size_t>(group)].block_tokens);
  for (size_t i = 0; i < block_tokens; ++i) {
    const Cell& cell = cells_[static_cast<size_t>(group)].at(static_cast<size_t>(block) * block_tokens + i);
    const std::array<uint64_t, 3> values = {cell.value, cell.chain, static_cast<uint64_t>(cell.position)};
    std::memcpy(out.data() + i * kCellBytes, values.data(), kCellBytes);
  }
}

Status FakeDevice::LoadBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) {
  const auto block_tokens = static_cast<size_t>(limits_.kv_groups[static_cast<size_t>(group)].block_tokens);
  for (size_t i = 0; i < block_tokens; ++i) {
    Cell& cell = cells_[static_cast<size_t>(group)].at(static_cast<size_t>(block) * block_tokens + i);
    if (cell.last_step > completed_step_) return Internal("block {} is touched by step {} in flight", block, cell.last_step);
    std::array<uint64_t, 3> values = {};
    std::memcpy(values.data(), bytes.data() + i * kCellBytes, kCellBytes);
    cell = {.value = values[0], .chain = values[1], .position = static_cast<int32_t>(values[2])};
  }
  return Status::Ok();
}

void FakeDevice::Forget() {
  for (Slot& slot : slots_) {
    slot.num_computed = 0;
    slot.last_token = -1;
    slot.stopped = false;
    for (auto& table : slot.tables) std::fill(table.begin(), table.end(), -1);
  }
  for (auto& cells : cells_) std::fill(cells.begin(), cells.end(), Cell{});
  for (auto& cells : host_cells_) std::fill(cells.begin(), cells.end(), Cell{});
}

Status FakeDevice::CheckRow(const StepPlan& plan, const PlanRow& row) {
  if (row.slot < 0 || row.slot >= limits_.max_seqs)
    return Internal("slot {} of {}", row.slot, limits_.max_seqs);
  if (std::count_if(plan.rows.begin(), plan.rows.end(),
                    [&](const PlanRow& other) { return other.slot == row.slot; }) > 1) {
    return Internal("slot {} has two rows", row.slot);
  }
  const bool enters = std::any_of(plan.setups.begin(), plan.setups.end(),
                                  [&](const SlotSetup& setup) { return setup.slot == row.slot; });
  const Slot& slot = slots_[static_cast<size_t>(row.slot)];
  if (row.q_len < 1) return Internal("slot {}: a row of {} tokens", row.slot, row.q_len);
  // A slot that stopped stays where it is; the host does not know yet. Nor does it know how many drafts in flight are right.
  const int32_t num_wrong = row.num_computed - slot.num_computed;
  const bool behind_drafts = row.token_begin < 0 && num_wrong > 0 && num_wrong <= slot.num_wrong;
  if (!slot.stopped && !enters && num_wrong != 0 && !behind_drafts) {
    return Internal("slot {} holds {} tokens, the plan says {}", row.slot, slot.num_computed,
                    row.num_computed);
  }
  if (row.num_computed + row.q_len > limits_.max_context) {
    return Internal("slot {}: {} tokens in a context of {}", row.slot, row.num_computed + row.q_len,
                    limits_.max_context);
  }
  if (row.num_drafts > 0 &&
      (row.q_len != 1 + row.num_drafts || enters || (row.outputs & ~kOutputTopLogprobs) != kOutputSample)) {
    return Internal("slot {}: {} drafts in a row of {} tokens, outputs {}", row.slot, row.num_drafts, row.q_len, row.outputs);
  }
  if (row.token_begin < 0) {
    if (row.q_len != 1 + row.num_drafts || enters || slot.last_token < 0)
      return Internal("slot {} has no last sampled token", row.slot);
  } else if (static_cast<size_t>(row.token_begin + row.q_len) > plan.token_ids.size()) {
    return Internal("slot {}: its tokens end behind token_ids", row.slot);
  } else if (row.num_drafts > 0 && plan.token_ids[static_cast<size_t>(row.token_begin)] != slot.last_token) {
    return Internal("slot {}: drafts behind a token that is not the last", row.slot);
  }
  return Status::Ok();
}

Status FakeDevice::SetUp(const StepPlan& plan, const SlotSetup& setup) {
  Slot& slot = slots_[static_cast<size_t>(setup.slot)];
  slot.residency = ++num_residencies_;
  slot.num_computed = slot.num_wrong = 0;
  slot.last_token = -1;
  slot.stopped = false;
  if (setup.stop_len > kMaxDeviceStopIds) return Internal("slot {}: {} stop ids", setup.slot, setup.stop_len);
  slot.stop_ids.assign(plan.stop_ids.begin() + setup.stop_begin,
                       plan.stop_ids.begin() + setup.stop_begin + setup.stop_len);
  slot.context.assign(plan.context_ids.begin() + setup.context_begin,
                      plan.context_ids.begin() + setup.context_begin + setup.context_len);
  slot.mtp_computed = 0;
  slot.sampling = setup.sampling;
  slot.history.clear();
  // What an earlier residency left must never be read.
  for (auto& table : slot.tables) std::fill(table.begin(), table.end(), -1);
  if ((setup.history_len > 0) != setup.sampling.has_penalties()) {
    return Internal("slot {}: a history of {} tokens", setup.slot, setup.history_len);
  }
  for (int32_t i = 0; i < setup.history_len; ++i) {
    FakeCounts& counts = slot.history[plan.history_ids[static_cast<size_t>(setup.history_begin + i)]];
    ++(i < setup.history_num_prompt ? counts.in_prompt : counts.in_output);
  }
  return Status::Ok();
}

FakeDevice::Cell* FakeDevice::Find(const Slot& slot, size_t group, int32_t position) {
  const int32_t block_tokens = limits_.kv_groups[group].block_tokens;
  const int32_t block = slot.tables[group][static_cast<size_t>(position / block_tokens)];
  if (block < 0) return nullptr;
  return &cells_[group][static_cast<size_t>(block * block_tokens + position % block_tokens)];
}

FakeDevice::Cell* FakeDevice::FindWhole(const Slot& slot, int32_t position) {
  size_t g = 0;
  while (limits_.kv_groups[g].window > 0 || !limits_.kv_groups[g].Keeps(position / limits_.kv_groups[g].block_tokens)) ++g;
  return Find(slot, g, position);
}

Status FakeDevice::TakePrefix(Slot* slot, int32_t num_tokens) {
  uint64_t before = 0;
  for (int32_t p = 0; p < num_tokens; ++p) {
    const Cell* cell = FindWhole(*slot, p);
    if (cell == nullptr || cell->position != p || cell->chain != FakeModel::Attend(before, cell->value)) {
      return Internal("position {} of a prefix of {} tokens does not continue the one before", p, num_tokens);
    }
    before = slot->chains[static_cast<size_t>(p)] = cell->chain;
  }
  const auto context_len = static_cast<int32_t>(slot->context.size());
  if (context_len != std::min(num_tokens, limits_.draft_context)) {
    return Internal("{} tokens of context in front of {}", context_len, num_tokens);
  }
  for (int32_t i = 0; i < context_len; ++i) {
    const int32_t p = num_tokens - context_len + i;
    if (FindWhole(*slot, p)->value != FakeModel::KvValue(slot->context[static_cast<size_t>(i)], p)) {
      return Internal("token {} of the context is not that of position {}", i, p);
    }
  }
  return Status::Ok();
}

Result<uint64_t> FakeDevice::Hidden(const Slot& slot, int32_t position) {
  uint64_t state = 0;
  for (size_t g = 0; g < cells_.size(); ++g) {
    const FakeModel::Seen& seen = model_.groups[g];
    for (int32_t p = seen.First(position); p < seen.End(position); ++p) {
      Cell* cell = Find(slot, g, p);
      if (cell == nullptr || cell->position != p || cell->chain != slot.chains[static_cast<size_t>(p)]) {
        return Internal("group {}: position {} was overwritten or never written", g, p);
      }
      cell->last_step = step_id_;
      cell->last_user = slot.residency;
      state = FakeModel::Attend(state, cell->value);
    }
  }
  return state;
}

int32_t FakeDevice::TokenOf(const StepPlan& plan, const PlanRow& row, const Slot& slot, int32_t i) const {
  if (row.token_begin >= 0) return plan.token_ids[static_cast<size_t>(row.token_begin + i)];
  return i == 0 ? slot.last_token : slot.drafts[static_cast<size_t>(i - 1)];
}

Result<int32_t> FakeDevice::Draft(const Slot& slot, int32_t position) {
  ASSIGN_OR_RETURN(const uint64_t hidden, Hidden(slot, position));
  const int32_t right = model_.Sample(hidden, slot.sampling, position + 1, slot.history);
  return hidden % 3 == 0 ? (right + 1) % model_.vocab_size : right;
}

int32_t FakeDevice::Sample(const PlanRow& row, Slot* slot, ResultRow* out, StepResult* result) {
  out->accept_begin = static_cast<int32_t>(result->accepted.size());
  for (int32_t i = row.q_len - 1 - row.num_drafts;; ++i) {
    const uint64_t hidden = hidden_[static_cast<size_t>(i)];
    AcceptedToken token;
    token.token_id = model_.Sample(hidden, slot->sampling, row.num_computed + i + 1, slot->history);
    slot->last_token = token.token_id;
    if (slot->sampling.has_penalties()) ++slot->history[token.token_id].in_output;
    if (row.outputs & kOutputTopLogprobs) AddLogprobs(row, hidden, token.token_id, &token, result);
    if (i + 1 < row.q_len && tokens_[static_cast<size_t>(i + 1)] == token.token_id) {
      result->accepted.push_back(token);
      ++out->accept_len;
      continue;
    }
    slot->stopped =
        std::find(slot->stop_ids.begin(), slot->stop_ids.end(), token.token_id) != slot->stop_ids.end();
    out->sampled_token = token.token_id;
    out->sampled_logprob = token.logprob;
    out->top_begin = token.top_begin;
    out->top_len = token.top_len;
    return i;
  }
}

void FakeDevice::AddLogprobs(const PlanRow& row, uint64_t hidden, int32_t token, AcceptedToken* out,
                             StepResult* result) const {
  out->logprob = model_.Logprob(hidden, token);
  out->top_begin = static_cast<int32_t>(result->top_logprobs.size());
  out->top_len = row.num_top_logprobs;
  for (int32_t i = 0; i < row.num_top_logprobs; ++i) {
    const int32_t top = model_.TopToken(hidden, i);
    result->top_logprobs.push_back({.token_id = top, .logprob = model_.Logprob(hidden, top)});
  }
}

Status FakeDevice::RunRow(const StepPlan& plan, const PlanRow& row, StepResult* result) {
  Slot& slot = slots_[static_cast<size_t>(row.slot)];
  if (slot.stopped) {
    result->rows.push_back({.slot = row.slot, .num_computed = row.num_computed + row.q_len});
    return Status::Ok();
  }
  tokens_.clear();
  hidden_.clear();
  for (int32_t i = 0; i < row.q_len; ++i) {
    tokens_.push_back(TokenOf(plan, row, slot, i));
    ASSIGN_OR_RETURN(const uint64_t hidden, Hidden(slot, row.num_computed + i));
    hidden_.push_back(hidden);
  }
  slot.num_computed = row.num_computed + row.q_len;
  ResultRow out{.slot = row.slot, .num_computed = slot.num_computed};

  if (row.outputs & kOutputSample) {
    const int32_t last = Sample(row, &slot, &out, result);
    out.num_computed = slot.num_computed = row.num_computed + last + 1;
  }
  slot.num_wrong = row.num_computed + row.q_len - slot.num_computed;
  if (row.outputs & kOutputPromptLogprobs) {
    out.prompt_logprob_begin = static_cast<int32_t>(result->prompt_logprobs.size());
    out.prompt_top_begin = static_cast<int32_t>(result->prompt_top_logprobs.size());
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const int32_t next = i + 1 < tokens_.size() ? tokens_[i + 1] : row.next_token;
      if (next < 0) break;
      result->prompt_logprobs.push_back(model_.Logprob(hidden_[i], next));
      ++out.prompt_logprob_len;
      for (int32_t t = 0; t < row.num_prompt_top_logprobs; ++t) {
        const int32_t token = model_.TopToken(hidden_[i], t);
        result->prompt_top_logprobs.push_back({token, model_.Logprob(hidden_[i], token)});
      }
    }
  }
  if (row.outputs & kOutputAllLogits) {
    out.logits_begin = static_cast<int64_t>(result->logits.size());
    for (const uint64_t hidden : hidden_) {
      for (int32_t token = 0; token < model_.vocab_size; ++token)
        result->logits.push_back(model_.Logit(hidden, token));
    }
  }
  if (row.outputs & kOutputMtp) {
    out.mtp_logits_begin = static_cast<int64_t>(result->mtp_logits.size());
    if (slot.mtp_computed != row.num_computed) return Internal("slot {}: MTP slots were skipped", row.slot);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (row.num_computed == 0 && i == 0) continue;
      const uint64_t hidden = i == 0 ? slot.mtp_hidden : hidden_[i - 1];
      for (int32_t token = 0; token < model_.vocab_size; ++token) {
        result->mtp_logits.push_back(model_.MtpLogit(hidden, tokens_[i], token));
      }
    }
    slot.mtp_computed = slot.num_computed;
    slot.mtp_hidden = hidden_.back();
  }
  result->rows.push_back(out);
  return Status::Ok();
}

}  // namespace cachalot
