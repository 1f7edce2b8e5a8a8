// `cachalot bench --beside`: what streams that generate and prompts that are computed do to each other, in one step (chunked mixing) and as
// steps of two runtimes that share a card: on streams of equal and of different priority, and with SMs of their own.
#pragma once

#include <functional>
#include <string>

#include "cli/session.h"

namespace cachalot {

struct BesideCase {
  int32_t batch = 1;     // sequences that generate,
  int32_t depth = 0;     // each behind so many tokens
  int32_t prompt = 0;    // tokens of the prompts that come one after the other
  double seconds = 1.2;  // of each measurement
};

// A table, handed over line by line. `decode` computes both where they share steps, `prompts` the prompts otherwise; both on the GPU, dense models only: kernels of
// mixtures wait for other blocks of their launch, which two launches at once would do for ever.
Status MeasureBeside(Session& decode, Session& prompts, const BesideCase& bench, const StopOnInterrupt& stop,
                     const std::function<Status(const std::string&)>& write);

}  // namespace cachalot
