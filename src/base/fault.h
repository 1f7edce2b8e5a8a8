// Fault injection: tests arm a named point, the code at that point asks whether it is hit. Unarmed, asking costs one
// relaxed load. Points: "alloc" (a device allocation fails), "file.read", "file.write", "device.op", "net.slow".
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot {

namespace internal {
extern std::atomic<bool> g_faults_armed;
bool FaultHitsSlow(std::string_view point);
}  // namespace internal

inline bool FaultHits(std::string_view point) {
  return internal::g_faults_armed.load(std::memory_order_relaxed) && internal::FaultHitsSlow(point);
}

// While it lives, the point is hit at calls number `skip`, `skip`+1, …, `skip`+`times`-1 (counted from 0); with `again`
// the count begins anew behind them.
class ScopedFault {
 public:
  explicit ScopedFault(std::string_view point, int64_t skip = 0, int64_t times = 1, bool again = false);
  ~ScopedFault();
  ScopedFault(const ScopedFault&) = delete;
  ScopedFault& operator=(const ScopedFault&) = delete;

 private:
  std::string point_;
};

}  // namespace cachalot
