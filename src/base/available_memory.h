// How much memory a new model may take on this machine.
#pragma once

#include <cstdint>

namespace cachalot {

// Free memory and page cache that can be given up, within the limit of this process's control group;
// INT64_MAX when the system does not say.
int64_t AvailableMemoryBytes();

inline double GiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace cachalot
