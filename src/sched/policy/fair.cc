#include "sched/policy/fair.h"

#include <algorithm>
#include <map>
#include <string>

namespace cachalot {
namespace {

constexpr int32_t kGuessedTokens = 256;  // of an answer whose limit is larger

double Guess(const Sequence& seq) {
  return seq.num_prompt + std::min<double>(seq.max_total - seq.num_prompt, kGuessedTokens);
}

class FairPolicy final : public SchedulingPolicy {
 public:
  bool Before(const Sequence& a, const Sequence& b) const override {
    return a.order != b.order ? a.order < b.order : a.id < b.id;
  }

  void OnAdd(Sequence* seq) override {
    Tenant& tenant = tenants_[seq->spec.tenant];
    ++tenant.num_sequences;
    const double start = std::max(now_, tenant.end);
    seq->order = start + Worth(*seq);
    tenant.end = start + Guess(*seq) / seq->spec.tenant_weight;
  }
  void OnAdmit(const Sequence& seq) override { now_ = std::max(now_, seq.order - Worth(seq)); }
  void OnRemove(const Sequence& seq) override {
    Tenant& tenant = tenants_.at(seq.spec.tenant);
    --tenant.num_sequences;
    tenant.end += (seq.num_tokens() - Guess(seq)) / seq.spec.tenant_weight;
    // A tenant whose work lies in the past is as good as unknown.
    std::erase_if(tenants_, [this](const auto& entry) {
      return entry.second.num_sequences == 0 && entry.second.end <= now_;
    });
  }

 private:
  static double Worth(const Sequence& seq) { return seq.spec.priority * kPriorityTokens; }

  struct Tenant {
    int64_t num_sequences = 0;
    double end = 0;  // of its work
  };
  double now_ = 0;  // the latest start that was admitted
  std::map<std::string, Tenant> tenants_;
};

}  // namespace

std::unique_ptr<SchedulingPolicy> MakeFairPolicy() {
  return std::make_unique<FairPolicy>();
}

}  // namespace cachalot
