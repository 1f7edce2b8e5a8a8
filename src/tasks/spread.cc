#include "tasks/spread.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace cachalot {
namespace {

// Linear between the two values around the place.
double Quantile(const std::vector<double>& sorted, double fraction) {
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double low = Quantile(values, 0.25), high = Quantile(values, 0.75);
  return {.median = Quantile(values, 0.5),
          .min = values.front(),
          .max = values.back(),
          .low_quartile = low,
          .high_quartile = high,
          .iqr = high - low};
}

}  // namespace cachalot
