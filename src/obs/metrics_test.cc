#include "obs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "obs/export/prometheus.h"

namespace cachalot {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Metrics, CountsFromManyThreads) {
  MetricRegistry registry;
  Counter* counter = registry.AddCounter("a:total", "things");
  Histogram* histogram = registry.AddHistogram("a:seconds", "times", {0.001, 0.01});
  Gauge* gauge = registry.AddGauge("a:now", "now");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        counter->Add();
        gauge->Add(1);
        histogram->Observe(0.5);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter->value(), 4000u);
  EXPECT_EQ(gauge->value(), 4000.0);
  EXPECT_EQ(histogram->count(), 4000u);
  EXPECT_EQ(histogram->sum(), 2000.0);
}

TEST(Metrics, AValueOnAnEdgeBelongsBelowIt) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 2.0, 3.0, std::nan("")}) histogram.Observe(value);
  EXPECT_EQ(histogram.bucket(0), 2u);
  EXPECT_EQ(histogram.bucket(1), 2u);
  EXPECT_EQ(histogram.bucket(2), 1u);
}

TEST(Metrics, SameNameAndLabelsSameHandle) {
  MetricRegistry registry;
  Counter* a = registry.AddCounter("x", "h", {{"k", "1"}});
  EXPECT_EQ(registry.AddCounter("x", "h", {{"k", "1"}}), a);
  EXPECT_NE(registry.AddCounter("x", "h", {{"k", "2"}}), a);
}

TEST(Metrics, LatencyEdgesResolveBelowAMillisecond) {
  EXPECT_LT(LatencyEdges()[2], 0.001);
  EXPECT_EQ(SizeEdges(20), (std::vector<double>{1, 2, 5, 10, 20}));
}

TEST(Prometheus, Text) {
  MetricRegistry registry;
  registry.AddCounter("our:requests_total", "Requests", {{"code", "2\"00\\"}})->Add(3);
  Histogram* histogram = registry.AddHistogram("our:seconds", "Two\nlines", {0.001, 1});
  histogram->Observe(0.0005);
  histogram->Observe(5);
  registry.Alias("our:seconds", "their:seconds");
  EXPECT_EQ(PrometheusText(registry),
            "# HELP our:requests_total Requests\n# TYPE our:requests_total counter\n"
            "our:requests_total{code=\"2\\\"00\\\\\"} 3\n"
            "# HELP our:seconds Two\\nlines\n# TYPE our:seconds histogram\n"
            "our:seconds_bucket{le=\"0.001\"} 1\nour:seconds_bucket{le=\"1\"} 1\nour:seconds_bucket{le=\"+Inf\"} 2\n"
            "our:seconds_sum 5.0005\nour:seconds_count 2\n");
  const std::string both = PrometheusText(registry, {.with_aliases = true, .alias_labels = {{"model_name", "m"}}});
  EXPECT_THAT(both, HasSubstr("their:seconds_count{model_name=\"m\"} 2\n"));
  EXPECT_THAT(both, Not(HasSubstr("their:requests")));
}

}  // namespace
}  // namespace cachalot
