#include "obs/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace cachalot {
namespace {

void AddTo(std::atomic<double>* value, double delta) {
  double old = value->load(std::memory_order_relaxed);
  while (!value->compare_exchange_weak(old, old + delta, std::memory_order_relaxed)) {
  }
}

}  // namespace

void Gauge::Add(double delta) {
  AddTo(&value_, delta);
}

Histogram::Histogram(std::vector<double> edges)
    : edges_(std::move(edges)), buckets_(new std::atomic<uint64_t>[edges_.size() + 1]) {
  CHECK(std::is_sorted(edges_.begin(), edges_.end()));
  for (size_t i = 0; i <= edges_.size(); ++i) buckets_[i].store(0, std::memory_order_relaxed);
}

void Histogram::Observe(double value, uint64_t times) {
  if (std::isnan(value)) return;
  const auto edge = std::lower_bound(edges_.begin(), edges_.end(), value);
  buckets_[static_cast<size_t>(edge - edges_.begin())].fetch_add(times, std::memory_order_relaxed);
  AddTo(&sum_, value * static_cast<double>(times));
}

uint64_t Histogram::count() const {
  uint64_t total = 0;
  for (size_t i = 0; i <= edges_.size(); ++i) total += bucket(i);
  return total;
}

std::vector<double> LatencyEdges() {
  return {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
          0.1,    0.15,   0.2,    0.3,   0.5,   0.75,  1,     1.5,    2,    3,     5,    7.5,  10,   20,
          30,     60,     120,    300,   600};
}

std::vector<double> SizeEdges(double max) {
  std::vector<double> edges;
  for (double decade = 1; decade <= max; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (decade * step <= max) edges.push_back(decade * step);
    }
  }
  return edges;
}

MetricFamily& MetricRegistry::Family(std::string_view name, std::string_view help, MetricType type) {
  for (const auto& family : families_) {
    if (family->name != name) continue;
    CHECK(family->type == type) << name << " has two types";
    return *family;
  }
  auto family = std::make_unique<MetricFamily>();
  family->name = name;
  family->help = help;
  family->type = type;
  families_.push_back(std::move(family));
  return *families_.back();
}

MetricChild& MetricRegistry::Child(MetricFamily& family, MetricLabels labels) {
  for (const auto& child : family.children) {
    if (child->labels == labels) return *child;
  }
  family.children.push_back(std::make_unique<MetricChild>());
  family.children.back()->labels = std::move(labels);
  return *family.children.back();
}

Counter* MetricRegistry::AddCounter(std::string_view name, std::string_view help, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  MetricChild& child = Child(Family(name, help, MetricType::kCounter), std::move(labels));
  if (!child.counter) child.counter = std::make_unique<Counter>();
  return child.counter.get();
}

Gauge* MetricRegistry::AddGauge(std::string_view name, std::string_view help, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  MetricChild& child = Child(Family(name, help, MetricType::kGauge), std::move(labels));
  if (!child.gauge) child.gauge = std::make_unique<Gauge>();
  return child.gauge.get();
}

Histogram* MetricRegistry::AddHistogram(std::string_view name, std::string_view help, std::vector<double> edges,
                                        MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  MetricChild& child = Child(Family(name, help, MetricType::kHistogram), std::move(labels));
  if (!child.histogram) child.histogram = std::make_unique<Histogram>(std::move(edges));
  return child.histogram.get();
}

void MetricRegistry::Alias(std::string_view name, std::string_view alias) {
  const std::lock_guard lock(mutex_);
  for (const auto& family : families_) {
    if (family->name == name) {
      family->aliases.emplace_back(alias);
      return;
    }
  }
  CHECK(false) << name << " is no metric";
}

}  // namespace cachalot
