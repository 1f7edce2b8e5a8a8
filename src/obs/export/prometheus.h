// The registry as Prometheus' text format (version 0.0.4).
#pragma once

#include <string>

#include "obs/metrics.h"

namespace cachalot {

struct PrometheusOptions {
  bool with_aliases = false;      // each family under its aliases too, with `alias_labels` on every sample
  MetricLabels alias_labels;
};

std::string PrometheusText(const MetricRegistry& registry, const PrometheusOptions& options = {});

}  // namespace cachalot
