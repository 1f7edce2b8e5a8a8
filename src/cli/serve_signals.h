// SIGTERM and SIGINT as the server sees them: counted, and waited for. The first asks for a gentle end, the second for
// one at once.
#pragma once

#include <cstdint>

namespace cachalot {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Signals so far; returns early when one comes.
  int Wait(int32_t timeout_ms) const;
};

}  // namespace cachalot
