// GET /metrics: Prometheus' text format.
#include <unistd.h>

#include <fstream>

#include "obs/export/prometheus.h"
#include "server/routes/routes.h"

namespace cachalot {
namespace {

// The second number of /proc/self/statm: resident pages.
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0;
  double resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void MetricsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  ServerMetrics& metrics = *context->metrics;
  if (context->http != nullptr) {
    const HttpCounters counters = context->http->counters();
    metrics.connections->Set(static_cast<double>(counters.connections));
    metrics.slow_readers->AdvanceTo(static_cast<uint64_t>(counters.slow_readers));
  }
  metrics.resident_bytes->Set(ResidentBytes());
  PrometheusOptions options;
  options.with_aliases = context->options.vllm_metrics;
  options.alias_labels = {{"model_name", context->facts.names[0]}, {"engine", "0"}};
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = PrometheusText(context->registry, options);
  exchange->Respond(std::move(response));
}

}  // namespace cachalot
