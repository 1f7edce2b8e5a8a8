// Median and spread of repeated measurements.
#pragma once

#include <vector>

namespace cachalot {

struct Spread {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
  double low_quartile = 0.0;
  double high_quartile = 0.0;
  double iqr = 0.0;  // distance between the quartiles
};

// Of at least one value.
Spread SpreadOf(std::vector<double> values);

}  // namespace cachalot
