#include "obs/export/prometheus.h"

#include <fmt/format.h>

#include <cmath>

namespace cachalot {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string Escape(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') out += "\\\\";
    else if (c == '\n') out += "\\n";
    else if (c == '"' && quotes) out += "\\\"";
    else out += c;
  }
  return out;
}

// {a="b",le="0.1"} or nothing.
std::string LabelText(const MetricLabels& labels, const MetricLabels& more, std::string_view le = {}) {
  std::string text;
  const auto add = [&](std::string_view key, std::string_view value) {
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", key, Escape(value, true));
  };
  for (const auto& [key, value] : more) add(key, value);
  for (const auto& [key, value] : labels) add(key, value);
  if (!le.empty()) add("le", le);
  return text.empty() ? "" : "{" + text + "}";
}

void AppendHistogram(const std::string& name, const MetricChild& child, const MetricLabels& more, std::string* out) {
  const Histogram& histogram = *child.histogram;
  uint64_t total = 0;
  for (size_t i = 0; i < histogram.edges().size(); ++i) {
    total += histogram.bucket(i);
    *out += fmt::format("{}_bucket{} {}\n", name, LabelText(child.labels, more, Number(histogram.edges()[i])), total);
  }
  total += histogram.bucket(histogram.edges().size());
  *out += fmt::format("{}_bucket{} {}\n", name, LabelText(child.labels, more, "+Inf"), total);
  *out += fmt::format("{}_sum{} {}\n", name, LabelText(child.labels, more), Number(histogram.sum()));
  *out += fmt::format("{}_count{} {}\n", name, LabelText(child.labels, more), total);
}

void AppendFamily(const std::string& name, const MetricFamily& family, const MetricLabels& more, std::string* out) {
  static constexpr const char* kTypes[] = {"counter", "gauge", "histogram"};
  *out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, Escape(family.help, false), name,
                      kTypes[static_cast<int>(family.type)]);
  for (const auto& child : family.children) {
    if (family.type == MetricType::kHistogram) {
      AppendHistogram(name, *child, more, out);
      continue;
    }
    const std::string value = family.type == MetricType::kCounter ? fmt::format("{}", child->counter->value())
                                                                  : Number(child->gauge->value());
    *out += fmt::format("{}{} {}\n", name, LabelText(child->labels, more), value);
  }
}

}  // namespace

std::string PrometheusText(const MetricRegistry& registry, const PrometheusOptions& options) {
  std::string out;
  registry.ForEach([&](const MetricFamily& family) {
    AppendFamily(family.name, family, {}, &out);
    if (!options.with_aliases) return;
    for (const auto& alias : family.aliases) AppendFamily(alias, family, options.alias_labels, &out);
  });
  return out;
}

}  // namespace cachalot
