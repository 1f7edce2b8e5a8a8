#include "sched/policy/fcfs.h"

namespace cachalot {
namespace {

class FcfsPolicy final : public SchedulingPolicy {
 public:
  bool Before(const Sequence& a, const Sequence& b) const override {
    return a.spec.priority != b.spec.priority ? a.spec.priority < b.spec.priority : a.id < b.id;
  }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> MakeFcfsPolicy() {
  return std::make_unique<FcfsPolicy>();
}

}  // namespace cachalot
