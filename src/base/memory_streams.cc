#include "base/memory_streams.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>

namespace cachalot {
namespace {

bool IsZen4OrLater() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != signature_AMD_ebx) return false;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned family = (eax >> 8 & 15) + (eax >> 20 & 255), model = (eax >> 4 & 15) | (eax >> 12 & 0xf0);
  const bool zen4 = (model >= 0x10 && model < 0x20) || (model >= 0x60 && model < 0xb0);  // family 0x19 is also Zen 3
  return family > 0x19 || (family == 0x19 && zen4);
#else
  return false;
#endif
}

std::atomic<bool>& Follows() {
  static std::atomic<bool> follows = IsZen4OrLater();
  return follows;
}

}  // namespace

bool FollowsOneStream() {
  return Follows().load(std::memory_order_relaxed);
}

bool SetFollowsOneStreamForTesting(bool follows) {
  return Follows().exchange(follows);
}

}  // namespace cachalot
