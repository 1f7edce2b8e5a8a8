// What `bench serve` makes of the times that it noted: percentiles, goodput, and how to show them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench_serve_client.h"

namespace cachalot {

// Milliseconds; below 0: no limit.
struct ServiceLevel {
  double ttft_ms = -1;
  double itl_ms = -1;  // of a request: mean time between its tokens
  double e2e_ms = -1;
  bool any() const { return ttft_ms >= 0 || itl_ms >= 0 || e2e_ms >= 0; }
};
// "ttft:300,itl:50,e2e:10000"
Result<ServiceLevel> ParseServiceLevel(const std::string& text);

struct Percentiles {
  int64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
Percentiles PercentilesOf(std::vector<double> values);

struct ServeReport {
  int64_t completed = 0;
  int64_t failed = 0;
  std::string first_error;
  double seconds = 0;          // from the first request sent to the last answer's end
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t good = 0;            // answered within the service level
  std::vector<double> ttft_ms, itl_ms, e2e_ms;

  double PerSecond(double count) const { return seconds > 0 ? count / seconds : 0.0; }
};
ServeReport MakeReport(const std::vector<RequestTiming>& timings, const ServiceLevel& level);

std::string ReportTable(const ServeReport& report, const ServiceLevel& level);
// settings: a JSON object that says what was measured.
std::string ReportJson(const ServeReport& report, const ServiceLevel& level, const std::string& settings);
// Shares of the requests (and gaps) below each time, on a logarithmic axis.
std::string ReportSvg(const ServeReport& report, const std::string& title);

}  // namespace cachalot
