#include "base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <sched.h>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace cachalot {
namespace {

// cgroup v2 "quota period" (or "max period"): the number of CPUs' worth of time, 0 when unlimited.
int CgroupCpuLimit() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::max(1, static_cast<int>(std::ceil(std::atof(quota.c_str()) / period)));
}

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports knows no "f16c".
bool HasF16C() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// Tiles are 8 KB of state that Linux saves only for a process that has asked (arch_prctl; its threads inherit it).
bool GetAmx() {
#if defined(__linux__)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTile) == 0 || (edx & kInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// The best that needs nothing but the CPU.
Isa VectorIsa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    HasF16C() && __builtin_cpu_supports("bmi2");
  if (!avx2) return Isa::kRef;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
#else
  return Isa::kRef;
#endif
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kRef: return "ref";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAmx: return "amx";
  }
  return "unknown";
}

Isa BestIsa() {
  const Isa isa = VectorIsa();
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    static const bool amx = GetAmx();
    if (amx) return Isa::kAmx;
  }
#endif
  return isa;
}

Result<Isa> ParseIsa(std::string_view name) {
  if (name == "auto") return VectorIsa();
  for (Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (name != IsaName(isa)) continue;
    const Isa best = isa == Isa::kAmx ? BestIsa() : VectorIsa();
    if (isa > best) return Unsupported("isa '{}': this CPU offers at most {}", name, IsaName(best));
    return isa;
  }
  return InvalidArgument("isa '{}' is none of auto, ref, avx2, avx512, amx", name);
}

int NumPhysicalCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int cores = 0;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    std::set<std::string> seen;  // one entry per physical core: its list of sibling threads
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
      std::string siblings;
      if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
      seen.insert(siblings);
    }
    cores = static_cast<int>(seen.size());
  }
  if (cores == 0) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const int limit = CgroupCpuLimit(); limit > 0) cores = std::min(cores, limit);
  return std::max(1, cores);
}

}  // namespace cachalot
