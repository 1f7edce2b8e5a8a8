#include "sched/policy/fcfs.h"

namespace cachalot {
namespace {

class FcfsPolicy final : public SchedulingPolicy {
 public:
  bool Before(const Sequence& a, const Sequence& b) const override {
    const int64_t due_a = Due(a), due_b = Due(b);
    if (due_a != due_b) return due_a < due_b;
    return a.spec.priority != b.spec.priority ? a.spec.priority < b.spec.priority : a.id < b.id;
  }

 private:
  static int64_t Due(const Sequence& seq) { return seq.added_us + seq.spec.priority * kPriorityUs; }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> MakeFcfsPolicy() {
  return std::make_unique<FcfsPolicy>();
}

}  // namespace cachalot
