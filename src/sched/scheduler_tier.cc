// Scheduler: what tiers below the prefix cache have for those who wait. Who reads them, and when, is the
// owner's business; whatever of it changes a plan is told here.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler.h"

namespace cachalot {
namespace {

constexpr size_t kMaxSought = 16;  // of the queue's head: what is brought too early gives way again

}  // namespace

Sequence* Scheduler::NextToSeek() {
  if (!options_.enable_prefix_caching) return nullptr;
  for (size_t i = waiting_.size(); i-- > 0 && i + kMaxSought >= waiting_.size();) {
    Sequence* seq = waiting_[i];
    if (seq->is_sought || seq->fork_of != nullptr || !seq->swapped.empty() || seq->num_in_flight > 0) continue;
    // What it computed before it was preempted gives way bit by bit: it is looked for when its turn has come.
    if (seq->num_cached >= 0 && !CanEnter(seq)) continue;
    seq->is_sought = true;
    return seq;
  }
  return nullptr;
}

bool Scheduler::CanEnter(Sequence* seq) {
  if (seq != Head()) return false;
  budget_left_ = step_budget_;
  logit_rows_left_ = limits_.max_logit_rows;
  SumPromises();
  return CanAdmit(*seq, FindStart(seq), /*soon=*/false);
}

std::span<const BlockKey> Scheduler::SeekKeys(Sequence* seq) const {
  const int32_t most = MostCached(*seq);
  ExtendKeys(seq, most);
  return std::span(seq->page_keys).first(static_cast<size_t>(most / blocks_.page_tokens()));
}

int32_t Scheduler::FindCached(std::span<const BlockKey> page_keys) const {
  return blocks_.FindPrefix(page_keys, static_cast<int32_t>(page_keys.size()) * blocks_.page_tokens());
}

int32_t Scheduler::FindWith(std::span<const BlockKey> page_keys, const BlockManager::ElsewhereHas& elsewhere) const {
  return blocks_.FindPrefixWith(page_keys, static_cast<int32_t>(page_keys.size()) * blocks_.page_tokens(), elsewhere);
}

void Scheduler::Hold(Sequence* seq, bool held) {
  CHECK(seq->state == SequenceState::kWaiting) << "sequence " << seq->id << " does not wait";
  if (trace_ != nullptr) trace_->Held(*seq, held);
  seq->is_held = held;
}

int32_t Scheduler::Restore(const TierBlock& wanted, const KeepTerms& terms) {
  if (trace_ != nullptr) trace_->Restored(wanted, terms);
  return blocks_.Restore(wanted, terms);
}

std::vector<BlockKey> Scheduler::PageKeys(std::span<const int32_t> tokens, const std::string& cache_salt) const {
  const auto page_tokens = static_cast<size_t>(blocks_.page_tokens());
  std::vector<BlockKey> keys;
  BlockKey parent = RootKey(limits_.kv_identity, cache_salt);
  for (size_t end = page_tokens; end <= tokens.size(); end += page_tokens) {
    keys.push_back(parent = ChildKey(parent, tokens.subspan(end - page_tokens, page_tokens)));
  }
  return keys;
}

}  // namespace cachalot
