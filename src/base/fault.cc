#include "base/fault.h"

#include <map>
#include <mutex>

namespace cachalot {
namespace {

struct ArmedFault {
  int64_t skip = 0;
  int64_t times = 0;
  bool again = false;
  int64_t calls = 0;
};

std::mutex g_mutex;
std::map<std::string, ArmedFault, std::less<>>& Faults() {
  static auto* faults = new std::map<std::string, ArmedFault, std::less<>>();
  return *faults;
}

}  // namespace

namespace internal {

std::atomic<bool> g_faults_armed{false};

bool FaultHitsSlow(std::string_view point) {
  std::lock_guard lock(g_mutex);
  auto it = Faults().find(point);
  if (it == Faults().end()) return false;
  ArmedFault& fault = it->second;
  const int64_t call = fault.calls++;
  if (fault.again && fault.calls == fault.skip + fault.times) fault.calls = 0;
  return call >= fault.skip && call < fault.skip + fault.times;
}

}  // namespace internal

ScopedFault::ScopedFault(std::string_view point, int64_t skip, int64_t times, bool again) : point_(point) {
  std::lock_guard lock(g_mutex);
  Faults()[point_] = {.skip = skip, .times = times, .again = again};
  internal::g_faults_armed.store(true);
}

ScopedFault::~ScopedFault() {
  std::lock_guard lock(g_mutex);
  Faults().erase(point_);
  internal::g_faults_armed.store(!Faults().empty());
}

}  // namespace cachalot
