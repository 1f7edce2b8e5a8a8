#include "sched/policy/priority.h"

namespace cachalot {
namespace {

class PriorityPolicy final : public SchedulingPolicy {
 public:
  bool Before(const Sequence& a, const Sequence& b) const override {
    if (a.spec.priority != b.spec.priority) return a.spec.priority < b.spec.priority;
    if (a.spec.deadline_us != b.spec.deadline_us) return a.spec.deadline_us < b.spec.deadline_us;
    return a.id < b.id;
  }
  // Not for an earlier deadline: both would come later for it.
  bool MayDisplace(const Sequence& newcomer, const Sequence& running) const override {
    return newcomer.spec.priority < running.spec.priority;
  }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> MakePriorityPolicy() {
  return std::make_unique<PriorityPolicy>();
}

}  // namespace cachalot
