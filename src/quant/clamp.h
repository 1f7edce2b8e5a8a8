// Float to a small integer without undefined behaviour: overflow clamps, NaN gives 0.
#pragma once

namespace cachalot {

inline int TruncateClamped(float value, int low, int high) {
  if (!(value == value)) return 0;
  if (value <= static_cast<float>(low)) return low;
  if (value >= static_cast<float>(high)) return high;
  return static_cast<int>(value);
}

}  // namespace cachalot
