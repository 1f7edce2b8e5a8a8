#include "sched/policy/policies.h"

#include "sched/policy/fair.h"
#include "sched/policy/fcfs.h"
#include "sched/policy/priority.h"

namespace cachalot {
namespace {

struct PolicyRow {
  std::string_view name;
  std::unique_ptr<SchedulingPolicy> (*make)();
};

constexpr PolicyRow kPolicies[] = {
    {"fcfs", MakeFcfsPolicy},
    {"priority", MakePriorityPolicy},
    {"fair", MakeFairPolicy},
};

}  // namespace

Result<std::unique_ptr<SchedulingPolicy>> MakeSchedulingPolicy(std::string_view name) {
  std::string known;
  for (const PolicyRow& row : kPolicies) {
    if (row.name == name) return row.make();
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  return InvalidArgument("scheduling policy '{}' is none of {}", name, known);
}

}  // namespace cachalot
