#include "kv/policy/belady.h"

namespace cachalot {

BeladyPolicy::BeladyPolicy(int32_t num_blocks)
    : orders_(static_cast<size_t>(num_blocks)), candidates_(num_blocks) {}

void BeladyPolicy::Insert(int32_t block, uint64_t key, int32_t reuse_class) {
  Reference(block);
}

void BeladyPolicy::Reference(int32_t block) {
  orders_[static_cast<size_t>(block)] = {-next_use_, ++clock_};
  candidates_.ChangeKey(block, orders_[static_cast<size_t>(block)]);
}

void BeladyPolicy::Release(int32_t block) {
  orders_[static_cast<size_t>(block)].second = ++clock_;
  candidates_.ChangeKey(block, orders_[static_cast<size_t>(block)]);
}

void BeladyPolicy::AddCandidate(int32_t block) {
  candidates_.Insert(block, orders_[static_cast<size_t>(block)]);
}

void BeladyPolicy::RemoveCandidate(int32_t block) {
  candidates_.Remove(block);
}

}  // namespace cachalot
