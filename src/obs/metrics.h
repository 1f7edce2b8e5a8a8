// Metrics: counters, gauges and histograms behind plain handles. A handle is a few atomics, so the hot path takes no lock.
// Invariant: a handle lives as long as its registry; families are declared at start and never removed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot {

class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  // For a total that is counted elsewhere; it must not fall.
  void AdvanceTo(uint64_t total) { value_.store(total, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double delta);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class Histogram {
 public:
  // edges: upper bounds, ascending; the bucket above the last is implied.
  explicit Histogram(std::vector<double> edges);
  void Observe(double value, uint64_t times = 1);

  std::span<const double> edges() const { return edges_; }
  // Of one bucket, not cumulative; bucket edges().size() is the one above all edges.
  uint64_t bucket(size_t index) const { return buckets_[index].load(std::memory_order_relaxed); }
  uint64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> edges_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;
  std::atomic<double> sum_{0.0};
};

// 100 µs to 10 min: what latencies are sorted into.
std::vector<double> LatencyEdges();
// 1, 2, 5, 10, … up to `max`.
std::vector<double> SizeEdges(double max);

enum class MetricType { kCounter, kGauge, kHistogram };

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

struct MetricChild {
  MetricLabels labels;
  std::unique_ptr<Counter> counter;
  std::unique_ptr<Gauge> gauge;
  std::unique_ptr<Histogram> histogram;
};

struct MetricFamily {
  std::string name;
  std::string help;
  MetricType type = MetricType::kCounter;
  std::vector<std::string> aliases;  // the same values under another project's names
  std::vector<std::unique_ptr<MetricChild>> children;
};

class MetricRegistry {
 public:
  // The same name and labels give the same handle again; a name keeps its type (programmer error otherwise).
  Counter* AddCounter(std::string_view name, std::string_view help, MetricLabels labels = {});
  Gauge* AddGauge(std::string_view name, std::string_view help, MetricLabels labels = {});
  Histogram* AddHistogram(std::string_view name, std::string_view help, std::vector<double> edges, MetricLabels labels = {});
  // Exports the family under this name too, when compatible names are wanted.
  void Alias(std::string_view name, std::string_view alias);

  // Calls visit(const MetricFamily&) for each, in the order in which they were declared.
  template <typename Visit>
  void ForEach(Visit visit) const {
    const std::lock_guard lock(mutex_);
    for (const auto& family : families_) visit(*family);
  }

 private:
  MetricFamily& Family(std::string_view name, std::string_view help, MetricType type);
  static MetricChild& Child(MetricFamily& family, MetricLabels labels);

  mutable std::mutex mutex_;  // declaring and exporting only
  std::vector<std::unique_ptr<MetricFamily>> families_;
};

}  // namespace cachalot
