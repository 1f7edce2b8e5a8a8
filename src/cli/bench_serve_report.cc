#include "cli/bench_serve_report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Percentiles& p) {
  return {{"count", p.count}, {"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90}, {"p95", p.p95}, {"p99", p.p99}, {"max", p.max}};
}

std::string TableRow(const char* name, const Percentiles& p) {
  return fmt::format("{:<18}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name, p.mean, p.p50, p.p90, p.p95, p.p99, p.max);
}

std::string XmlText(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '&') out += "&amp;";
    else out += c;
  }
  return out;
}

}  // namespace

Result<ServiceLevel> ParseServiceLevel(const std::string& text) {
  ServiceLevel level;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string piece = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = piece.find(':');
    double value = -1;
    const char* last = piece.data() + piece.size();
    bool good = colon != std::string::npos;
    if (good) {
      const auto [stop, error] = std::from_chars(piece.data() + colon + 1, last, value);
      good = error == std::errc() && stop == last && std::isfinite(value) && value >= 0;
    }
    const std::string name = piece.substr(0, std::min(colon, piece.size()));
    if (good && name == "ttft") level.ttft_ms = value;
    else if (good && (name == "itl" || name == "tpot")) level.itl_ms = value;
    else if (good && name == "e2e") level.e2e_ms = value;
    else return InvalidArgument("--slo: '{}' is not like ttft:300, itl:50 or e2e:10000 (milliseconds)", piece);
  }
  return level;
}

Percentiles PercentilesOf(std::vector<double> values) {
  Percentiles p;
  p.count = static_cast<int64_t>(values.size());
  if (values.empty()) return p;
  std::sort(values.begin(), values.end());
  p.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  // Between the two nearest values, as numpy does.
  const auto at = [&](double part) {
    const double place = part * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
  };
  p.p50 = at(0.5);
  p.p90 = at(0.9);
  p.p95 = at(0.95);
  p.p99 = at(0.99);
  p.max = values.back();
  return p;
}

ServeReport MakeReport(const std::vector<RequestTiming>& timings, const ServiceLevel& level) {
  ServeReport report;
  int64_t first_us = INT64_MAX;
  int64_t last_us = 0;
  for (const RequestTiming& timing : timings) {
    if (timing.sent_us == 0) continue;
    first_us = std::min(first_us, timing.sent_us);
    last_us = std::max(last_us, timing.end_us);
    if (!timing.ok()) {
      ++report.failed;
      if (report.first_error.empty()) report.first_error = timing.error;
      continue;
    }
    ++report.completed;
    report.prompt_tokens += timing.prompt_tokens;
    report.cached_tokens += timing.cached_tokens;
    report.output_tokens += timing.output_tokens;
    const double e2e = static_cast<double>(timing.end_us - timing.sent_us) * 1e-3;
    report.e2e_ms.push_back(e2e);
    double ttft = e2e;
    double itl = 0;
    if (!timing.token_us.empty()) {
      ttft = static_cast<double>(timing.token_us[0] - timing.sent_us) * 1e-3;
      for (size_t i = 1; i < timing.token_us.size(); ++i) {
        report.itl_ms.push_back(static_cast<double>(timing.token_us[i] - timing.token_us[i - 1]) * 1e-3);
      }
      if (timing.token_us.size() > 1) {
        itl = static_cast<double>(timing.token_us.back() - timing.token_us[0]) * 1e-3 / static_cast<double>(timing.token_us.size() - 1);
      }
    }
    report.ttft_ms.push_back(ttft);
    const auto within = [](double value, double limit) { return limit < 0 || value <= limit; };
    report.good += within(ttft, level.ttft_ms) && within(itl, level.itl_ms) && within(e2e, level.e2e_ms);
  }
  if (last_us > first_us) report.seconds = static_cast<double>(last_us - first_us) * 1e-6;
  return report;
}

std::string ReportTable(const ServeReport& report, const ServiceLevel& level) {
  std::string text = fmt::format("{} requests answered, {} failed, in {:.2f} s: {:.2f} requests/s\n", report.completed, report.failed,
                                 report.seconds, report.PerSecond(static_cast<double>(report.completed)));
  if (report.failed > 0) text += "first failure: " + report.first_error + "\n";
  text += fmt::format("{} prompt tokens ({} from the cache), {} output tokens: {:.1f} output tokens/s, {:.1f} tokens/s in all\n",
                      report.prompt_tokens, report.cached_tokens, report.output_tokens,
                      report.PerSecond(static_cast<double>(report.output_tokens)),
                      report.PerSecond(static_cast<double>(report.output_tokens + report.prompt_tokens)));
  if (level.any()) {
    text += fmt::format("within the service level: {} of {}, {:.2f} requests/s\n", report.good, report.completed + report.failed,
                        report.PerSecond(static_cast<double>(report.good)));
  }
  text += fmt::format("{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "mean", "p50", "p90", "p95", "p99", "max");
  text += TableRow("first token", PercentilesOf(report.ttft_ms));
  text += TableRow("between tokens", PercentilesOf(report.itl_ms));
  text += TableRow("whole answer", PercentilesOf(report.e2e_ms));
  return text;
}

std::string ReportJson(const ServeReport& report, const ServiceLevel& level, const std::string& settings) {
  Json json = {{"settings", Json::parse(settings, nullptr, false)},
               {"completed", report.completed},
               {"failed", report.failed},
               {"seconds", report.seconds},
               {"requests_per_second", report.PerSecond(static_cast<double>(report.completed))},
               {"prompt_tokens", report.prompt_tokens},
               {"cached_tokens", report.cached_tokens},
               {"output_tokens", report.output_tokens},
               {"output_tokens_per_second", report.PerSecond(static_cast<double>(report.output_tokens))},
               {"ttft_ms", ToJson(PercentilesOf(report.ttft_ms))},
               {"itl_ms", ToJson(PercentilesOf(report.itl_ms))},
               {"e2e_ms", ToJson(PercentilesOf(report.e2e_ms))}};
  if (level.any()) {
    json["goodput"] = {{"ttft_ms", level.ttft_ms},
                       {"itl_ms", level.itl_ms},
                       {"e2e_ms", level.e2e_ms},
                       {"good", report.good},
                       {"requests_per_second", report.PerSecond(static_cast<double>(report.good))}};
  }
  if (!report.first_error.empty()) json["first_error"] = report.first_error;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ReportSvg(const ServeReport& report, const std::string& title) {
  constexpr int kWidth = 720, kHeight = 360, kLeft = 48, kTop = 40, kRight = 16, kBottom = 40;
  struct Curve {
    const char* name;
    const char* color;
    const std::vector<double>* values;
  } const curves[] = {{"first token", "#1f5fae", &report.ttft_ms}, {"between tokens", "#b4501e", &report.itl_ms}, {"whole answer", "#3b7a3b", &report.e2e_ms}};
  double least = 1e300;
  double most = 0;
  for (const auto& curve : curves) {
    for (const double value : *curve.values) {
      least = std::min(least, std::max(value, 0.01));
      most = std::max(most, value);
    }
  }
  const double low = std::floor(std::log10(std::min(least, 1e6)));
  const double high = std::max(std::ceil(std::log10(std::max(most, 0.01))), low + 1);
  const auto x = [&](double ms) {
    return kLeft + (std::log10(std::max(ms, 0.01)) - low) / (high - low) * (kWidth - kLeft - kRight);
  };
  const auto y = [&](double part) { return kTop + (1 - part) * (kHeight - kTop - kBottom); };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n<text x=\"{2}\" y=\"18\" font-size=\"14\">{3}</text>\n",
      kWidth, kHeight, kLeft, XmlText(title));
  for (int tenth = 0; tenth <= 10; tenth += 2) {
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/><text x=\"8\" y=\"{:.1f}\">{} %</text>\n",
                       kLeft, kWidth - kRight, y(tenth / 10.0), y(tenth / 10.0), y(tenth / 10.0) + 4, tenth * 10);
  }
  for (double power = low; power <= high; ++power) {
    const double at = x(std::pow(10.0, power));
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" "
                       "text-anchor=\"middle\">{4} ms</text>\n", at, kTop, kHeight - kBottom, kHeight - kBottom + 18, std::pow(10.0, power));
  }
  int legend = kLeft;
  for (const auto& curve : curves) {
    std::vector<double> sorted = *curve.values;
    std::sort(sorted.begin(), sorted.end());
    std::string points;
    // 400 points draw the same line as a million.
    const size_t step = std::max<size_t>(1, sorted.size() / 400);
    for (size_t i = 0; i < sorted.size(); i += step) {
      points += fmt::format("{:.1f},{:.1f} ", x(sorted[i]), y(static_cast<double>(i + 1) / static_cast<double>(sorted.size())));
    }
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n<text x=\"{}\" y=\"34\" fill=\"{}\">{}</text>\n",
                       points, curve.color, legend, curve.color, curve.name);
    legend += 130;
  }
  return svg + "</svg>\n";
}

}  // namespace cachalot
