#include "runtime/drafter.h"

#include <algorithm>
#include <cstring>

#include "kernels/sample/sample.h"

namespace cachalot {
namespace {

int64_t Floats(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

}  // namespace

// A whole context with drafts behind it, or each one's part of the memory that sequences have.
int32_t Drafter::RowTokens(const DrafterOptions& options) {
  const int64_t part = std::max<int64_t>(options.kv_tokens / options.max_seqs, 4 * kMaxPending);
  return static_cast<int32_t>(std::min<int64_t>(options.max_context, part)) + options.max_drafts + 1;
}

KvStoreOptions Drafter::StoreOptions(const DrafterOptions& options) {
  const int32_t row = RowTokens(options);
  return {.dtype = options.kv_dtype,
          .block_tokens = options.block_tokens,
          .max_seqs = options.max_seqs,
          .max_context = row,
          .capacity_tokens = int64_t{row} * options.max_seqs};
}

// Room for one slot's pending tokens, and for one of every slot.
int64_t Drafter::BatchTokens(const DrafterOptions& options) {
  return std::max({options.max_batch_tokens, options.max_seqs, kMaxPending});
}

int64_t Drafter::WorkspaceBytes(const ModelSpec& spec, const DrafterOptions& options) {
  return std::max(Model::WorkspaceBytes(spec, BatchTokens(options), RowTokens(options), kHeadRows, options.num_threads),
                  SampleWorkspaceBytes(spec.vocab_size));
}

int64_t Drafter::PlanBytes(const ModelSpec& spec, const std::vector<KvGroupSpec>& groups, bool takes_hidden,
                           const DrafterOptions& options) {
  const int64_t pending = takes_hidden ? int64_t{options.max_seqs} * kMaxPending + BatchTokens(options) : 0;
  return KvStore::PlanBytes(groups, StoreOptions(options)) +
         Floats((pending + BatchTokens(options) + options.max_seqs + kHeadRows) * spec.hidden_size) +
         Floats(int64_t{kHeadRows} * spec.vocab_size);
}

Result<std::unique_ptr<Drafter>> Drafter::Create(std::unique_ptr<DraftGraph> graph, const DrafterOptions& options) {
  auto drafter = std::unique_ptr<Drafter>(new Drafter());
  const ModelSpec& spec = graph->spec();
  drafter->hidden_size_ = spec.hidden_size;
  drafter->row_tokens_ = RowTokens(options);
  drafter->most_fed_ = std::min(kMostFed, (drafter->row_tokens_ - options.max_drafts) * 3 / 4);
  drafter->catch_up_ = std::max(kCatchUp, 1 + options.max_drafts);
  drafter->batch_tokens_ = BatchTokens(options);
  ASSIGN_OR_RETURN(drafter->kv_, KvStore::Allocate(graph->kv_groups(), StoreOptions(options)));
  const int32_t num_blocks = (drafter->row_tokens_ + options.block_tokens - 1) / options.block_tokens;
  for (int32_t group = 0; group < static_cast<int32_t>(drafter->kv_.infos().size()); ++group) {
    for (int32_t slot = 0; slot < options.max_seqs; ++slot) {
      for (int32_t i = 0; i < num_blocks; ++i) {
        drafter->kv_.Write({.slot = slot, .group = group, .index = i, .block_id = slot * num_blocks + i});
      }
    }
  }
  const int64_t row = Floats(spec.hidden_size);
  if (graph->takes_hidden()) {
    ASSIGN_OR_RETURN(drafter->pending_hidden_, Buffer::Allocate(int64_t{options.max_seqs} * kMaxPending * row));
    ASSIGN_OR_RETURN(drafter->hidden_, Buffer::Allocate(drafter->batch_tokens_ * row));
  }
  ASSIGN_OR_RETURN(drafter->out_, Buffer::Allocate(drafter->batch_tokens_ * row));
  ASSIGN_OR_RETURN(drafter->last_, Buffer::Allocate(options.max_seqs * row));
  ASSIGN_OR_RETURN(drafter->scratch_, Buffer::Allocate(kHeadRows * row));
  ASSIGN_OR_RETURN(drafter->logits_, Buffer::Allocate(Floats(int64_t{kHeadRows} * spec.vocab_size)));
  drafter->slots_.resize(static_cast<size_t>(options.max_seqs));
  for (Slot& slot : drafter->slots_) {
    slot.tokens.reserve(static_cast<size_t>(graph->takes_hidden() ? kMaxPending : options.max_context + 1));
    slot.drafted.reserve(kMaxDrafts);
  }
  drafter->token_ids_.resize(static_cast<size_t>(drafter->batch_tokens_));
  drafter->positions_.resize(static_cast<size_t>(drafter->batch_tokens_));
  drafter->spans_.reserve(static_cast<size_t>(options.max_seqs));
  drafter->wanted_rows_.reserve(static_cast<size_t>(options.max_seqs));
  drafter->active_.reserve(static_cast<size_t>(options.max_seqs));
  drafter->graph_ = std::move(graph);
  return drafter;
}

void Drafter::Reset(int32_t slot, std::span<const int32_t> context) {
  Slot& state = slots_[static_cast<size_t>(slot)];
  state.tokens.assign(context.begin(), context.end());
  state.num_fed = state.length = 0;
  state.begun = false;
  state.drafted.clear();
  state.num_confirmed = 0;
}

int32_t Drafter::NumRead(int32_t q_len) const {
  if (!graph_->takes_hidden()) return 0;
  return IsActive() ? q_len : std::min(q_len, catch_up_);
}

void Drafter::Append(const ExecContext& exec, const Computed& computed) {
  Slot& state = slots_[static_cast<size_t>(computed.slot)];
  if (graph_->takes_hidden()) {
    if (computed.gap) Forget(computed.slot, 0);
    for (size_t i = 0; i < computed.next.size(); ++i) {
      PushWithHidden(exec, computed.slot, computed.next[i], computed.hidden + static_cast<int64_t>(i) * hidden_size_);
    }
    if (computed.prompt && IsActive()) FeedPrompt(exec, computed.slot);
    return;
  }
  if (!state.begun) state.tokens.push_back(computed.first);
  state.begun = true;
  for (const int32_t token : computed.next) PushToken(&state, token);
  if (computed.prompt && has_drafted_ && IsActive()) FeedPrompt(exec, computed.slot);
}

// All but the last token, behind which a draft may come.
void Drafter::FeedPrompt(const ExecContext& exec, int32_t slot) {
  Slot& state = slots_[static_cast<size_t>(slot)];
  MakeRoom(&state, 0);
  while (NumPending(state) > 1) {
    AddPending(exec, slot, static_cast<int32_t>(std::min<int64_t>(NumPending(state) - 1, batch_tokens_)), -1);
    RunBatch(exec);
  }
}

void Drafter::PushToken(Slot* slot, int32_t token) {
  slot->tokens.push_back(token);
  if (slot->num_confirmed < slot->drafted.size() && slot->drafted[slot->num_confirmed] == token) {
    // It was drafted, and fed for the sake of the next.
    ++slot->num_confirmed;
    ++slot->num_fed;
    ++slot->length;
  } else {
    slot->num_confirmed = slot->drafted.size();
  }
}

void Drafter::PushWithHidden(const ExecContext& exec, int32_t slot, int32_t token, const float* hidden) {
  Slot& state = slots_[static_cast<size_t>(slot)];
  if (NumPending(state) == kMaxPending) {
    if (!IsActive()) {
      Forget(slot, catch_up_);
    } else {
      MakeRoom(&state, 0);
      AddPending(exec, slot, kMaxPending, -1);
      RunBatch(exec);
    }
  }
  std::memcpy(PendingHidden(slot) + int64_t{NumPending(state)} * hidden_size_, hidden,
              static_cast<size_t>(Floats(hidden_size_)));
  state.tokens.push_back(token);
}

// All but the last `kept` of what waits, and what is in the KV memory.
void Drafter::Forget(int32_t slot, int32_t kept) {
  Slot& state = slots_[static_cast<size_t>(slot)];
  DropPending(slot, NumPending(state) - kept);
  state.length = 0;
}

// The first `count` of what waits.
void Drafter::DropPending(int32_t slot, int32_t count) {
  Slot& state = slots_[static_cast<size_t>(slot)];
  const int32_t kept = NumPending(state) - count;
  state.tokens.erase(state.tokens.begin(), state.tokens.begin() + count);
  float* hidden = PendingHidden(slot);
  std::memmove(hidden, hidden + int64_t{count} * hidden_size_, static_cast<size_t>(Floats(int64_t{kept} * hidden_size_)));
}

void Drafter::MakeRoom(Slot* slot, int32_t num_drafts) const {
  const bool fits = slot->length + NumPending(*slot) + num_drafts <= row_tokens_;
  const int32_t most = IsActive() ? most_fed_ : std::min(most_fed_, kFedToTry);
  if (fits && (graph_->takes_hidden() || NumPending(*slot) <= most)) return;
  slot->length = 0;
  if (!graph_->takes_hidden()) slot->num_fed = std::max(0, static_cast<int32_t>(slot->tokens.size()) - most);
}

// The first `count` of what waits.
void Drafter::AddPending(const ExecContext& exec, int32_t slot, int32_t count, int32_t want_idx) {
  Slot& state = slots_[static_cast<size_t>(slot)];
  span_wants_.push_back(want_idx);
  spans_.push_back({.slot = slot, .q_begin = num_batched_, .q_len = count, .kv_len = state.length + count});
  for (int32_t i = 0; i < count; ++i) {
    token_ids_[static_cast<size_t>(num_batched_ + i)] = state.tokens[static_cast<size_t>(state.num_fed + i)];
    positions_[static_cast<size_t>(num_batched_ + i)] = state.length + i;
  }
  if (graph_->takes_hidden()) {
    float* hidden = hidden_.as<float>() + int64_t{num_batched_} * hidden_size_;
    std::memcpy(hidden, PendingHidden(slot), static_cast<size_t>(Floats(int64_t{count} * hidden_size_)));
    graph_->Norm(exec, hidden, count);
    DropPending(slot, count);
  } else {
    state.num_fed += count;
  }
  num_batched_ += count;
  state.length += count;
}

void Drafter::RunBatch(const ExecContext& exec) {
  if (num_batched_ == 0) return;
  wanted_rows_.clear();
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (span_wants_[i] >= 0) wanted_rows_.push_back(spans_[i].q_begin + spans_[i].q_len - 1);
  }
  graph_->Forward(exec, {.token_ids = token_ids_.data(),
                         .positions = positions_.data(),
                         .hidden = hidden_.as<float>(),
                         .num_tokens = num_batched_,
                         .spans = spans_,
                         .kv = kv_.bindings(),
                         .out = out_.as<float>(),
                         .wanted_rows = wanted_rows_.data(),
                         .num_wanted_rows = static_cast<int64_t>(wanted_rows_.size())});
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (span_wants_[i] < 0) continue;
    const int64_t last_row = spans_[i].q_begin + spans_[i].q_len - 1;
    std::memcpy(last_.as<float>() + int64_t{span_wants_[i]} * hidden_size_, out_.as<float>() + last_row * hidden_size_,
                static_cast<size_t>(Floats(hidden_size_)));
  }
  spans_.clear();
  span_wants_.clear();
  num_batched_ = 0;
}

// A span that does not fit into a batch goes on in the next.
void Drafter::FeedPending(const ExecContext& exec, std::span<const Want> wants) {
  for (size_t i = 0; i < wants.size(); ++i) {
    Slot& state = slots_[static_cast<size_t>(wants[i].slot)];
    if (graph_->takes_hidden() && NumPending(state) > catch_up_) Forget(wants[i].slot, catch_up_);
    MakeRoom(&state, wants[i].num_drafts);
    CHECK(!state.tokens.empty()) << "slot " << wants[i].slot << " has no token to draft behind";
    if (NumPending(state) == 0) {
      // All that came was fed as a draft before; the state behind the last of it is needed again.
      --state.num_fed;
      --state.length;
    }
    while (NumPending(state) > 0) {
      const auto room = static_cast<int32_t>(batch_tokens_) - num_batched_;
      const int32_t count = std::min(NumPending(state), room);
      if (count == 0 || (graph_->takes_hidden() && count < NumPending(state))) {
        RunBatch(exec);
        continue;
      }
      AddPending(exec, wants[i].slot, count, static_cast<int32_t>(i));
    }
  }
  RunBatch(exec);
}

void Drafter::Draft(const ExecContext& exec, std::span<const Want> wants, int32_t vocab_size) {
  activity_.Observe(true);
  has_drafted_ = true;
  FeedPending(exec, wants);
  active_.resize(wants.size());
  for (size_t i = 0; i < wants.size(); ++i) {
    active_[i] = static_cast<int32_t>(i);
    slots_[static_cast<size_t>(wants[i].slot)].drafted.clear();
    slots_[static_cast<size_t>(wants[i].slot)].num_confirmed = 0;
  }
  for (int32_t pass = 0;; ++pass) {
    Pick(exec, wants, pass, vocab_size);
    std::erase_if(active_, [&](int32_t i) { return wants[static_cast<size_t>(i)].num_drafts == pass + 1; });
    if (active_.empty()) return;
    for (const int32_t i : active_) {
      const Want& want = wants[static_cast<size_t>(i)];
      Slot& state = slots_[static_cast<size_t>(want.slot)];
      const int32_t position = state.length + pass;
      token_ids_[static_cast<size_t>(num_batched_)] = want.out[pass];
      positions_[static_cast<size_t>(num_batched_)] = position;
      if (graph_->takes_hidden()) {
        std::memcpy(hidden_.as<float>() + int64_t{num_batched_} * hidden_size_, last_.as<float>() + int64_t{i} * hidden_size_,
                    static_cast<size_t>(Floats(hidden_size_)));
      } else {
        state.drafted.push_back(want.out[pass]);
      }
      spans_.push_back({.slot = want.slot, .q_begin = num_batched_, .q_len = 1, .kv_len = position + 1});
      span_wants_.push_back(i);
      ++num_batched_;
    }
    RunBatch(exec);
  }
}

// The best token behind each active want's last one.
void Drafter::Pick(const ExecContext& exec, std::span<const Want> wants, int32_t pass, int32_t vocab_size) {
  const int32_t width = graph_->spec().vocab_size;
  for (size_t begin = 0; begin < active_.size(); begin += kHeadRows) {
    const size_t count = std::min<size_t>(kHeadRows, active_.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(scratch_.as<float>() + static_cast<int64_t>(i) * hidden_size_,
                  last_.as<float>() + int64_t{active_[begin + i]} * hidden_size_, static_cast<size_t>(Floats(hidden_size_)));
    }
    graph_->Head(exec, scratch_.as<float>(), static_cast<int64_t>(count), logits_.as<float>());
    for (size_t i = 0; i < count; ++i) {
      const SampleRowResult best = SampleRow(exec, {.logits = logits_.as<float>() + static_cast<int64_t>(i) * width,
                                                    .vocab = std::min(graph_->head_tokens(), vocab_size)}, {});
      wants[static_cast<size_t>(active_[begin + i])].out[pass] = best.token_id;
    }
  }
}

void Drafter::Idle() { activity_.Observe(false); }

}  // namespace cachalot
