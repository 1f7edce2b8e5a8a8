#include "tasks/kv_curves.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace cachalot {
namespace {

// In the order of first appearance.
std::vector<std::string> Policies(const std::vector<KvSimulation>& results) {
  std::vector<std::string> names;
  for (const KvSimulation& result : results) {
    if (std::find(names.begin(), names.end(), result.policy) == names.end()) names.push_back(result.policy);
  }
  return names;
}

std::vector<int32_t> Sizes(const std::vector<KvSimulation>& results) {
  std::vector<int32_t> sizes;
  for (const KvSimulation& result : results) sizes.push_back(result.num_blocks);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::string Escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

// Colours that people with red-green blindness can tell apart, too.
constexpr std::array kColours = {"#0072b2", "#999999", "#d55e00", "#009e73",
                                 "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
constexpr double kLeft = 60, kTop = 40, kWidth = 480, kHeight = 300, kLegend = 110;

struct Axes {
  double low_size = 1, high_size = 1;  // logarithms
  double low_ratio = 0, high_ratio = 1;
  double X(int32_t num_blocks) const {
    return kLeft + kWidth * (std::log(static_cast<double>(num_blocks)) - low_size) / (high_size - low_size);
  }
  double Y(double ratio) const { return kTop + kHeight * (high_ratio - ratio) / (high_ratio - low_ratio); }
};

Axes AxesOf(const std::vector<KvSimulation>& results, const std::vector<int32_t>& sizes) {
  Axes axes;
  axes.low_size = std::log(static_cast<double>(sizes.front()));
  axes.high_size = std::log(static_cast<double>(sizes.back()));
  if (sizes.size() == 1) axes.high_size += 1;
  double low = 1, high = 0;
  for (const KvSimulation& result : results) {
    low = std::min(low, 1 - result.hit_ratio());
    high = std::max(high, 1 - result.hit_ratio());
  }
  axes.low_ratio = std::floor(low * 10) / 10;  // to whole tenths
  axes.high_ratio = std::max(axes.low_ratio + 0.1, std::ceil(high * 10) / 10);
  return axes;
}

std::string Grid(const Axes& axes, const std::vector<int32_t>& sizes) {
  std::string svg;
  const auto first = static_cast<int>(std::lround(axes.low_ratio * 10)),
             last = static_cast<int>(std::lround(axes.high_ratio * 10));
  for (int tenth = first; tenth <= last; ++tenth) {
    const double y = axes.Y(tenth / 10.0);
    svg += fmt::format(
        "<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#ddd\"/><text x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{:.1f}</text>\n",
        kLeft, y, kLeft + kWidth, kLeft - 6, y + 4, tenth / 10.0);
  }
  for (int32_t size : sizes) {
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" "
        "text-anchor=\"middle\">{4}</text>\n",
        axes.X(size), kTop, kTop + kHeight, kTop + kHeight + 16, size);
  }
  return svg;
}

}  // namespace

std::string CurvesCsv(const std::vector<KvSimulation>& results) {
  std::string csv = "policy,blocks,lookups,hits,hit_ratio,miss_ratio,evictions\n";
  for (const KvSimulation& result : results) {
    csv += fmt::format("{},{},{},{},{:.6f},{:.6f},{}\n", result.policy, result.num_blocks, result.num_lookups,
                       result.num_hits, result.hit_ratio(), 1 - result.hit_ratio(), result.num_evictions);
  }
  return csv;
}

std::string CurvesTable(const std::vector<KvSimulation>& results) {
  const std::vector<int32_t> sizes = Sizes(results);
  std::string table = fmt::format("{:<12}", "hit ratio");
  for (int32_t size : sizes) table += fmt::format("{:>10}", size);
  table += '\n';
  for (const std::string& policy : Policies(results)) {
    table += fmt::format("{:<12}", policy);
    for (int32_t size : sizes) {
      const auto found = std::find_if(results.begin(), results.end(), [&](const KvSimulation& result) {
        return result.policy == policy && result.num_blocks == size;
      });
      table +=
          found == results.end() ? fmt::format("{:>10}", "") : fmt::format("{:>10.4f}", found->hit_ratio());
    }
    table += '\n';
  }
  return table;
}

std::string CurvesSvg(const std::vector<KvSimulation>& results, const std::string& title) {
  if (results.empty()) return "";
  const std::vector<int32_t> sizes = Sizes(results);
  const Axes axes = AxesOf(results, sizes);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fff\"/>\n<text x=\"{2:.0f}\" y=\"20\" "
      "font-size=\"14\">{3}</text>\n",
      kLeft + kWidth + kLegend, kTop + kHeight + 50, kLeft, Escape(title));
  svg += Grid(axes, sizes);
  svg += fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">blocks (log); miss ratio of blocks, strict "
      "prefix</text>\n",
      kLeft + kWidth / 2, kTop + kHeight + 36);
  size_t number = 0;
  for (const std::string& policy : Policies(results)) {
    std::vector<const KvSimulation*> points;
    for (const KvSimulation& result : results) {
      if (result.policy == policy) points.push_back(&result);
    }
    std::sort(points.begin(), points.end(),
              [](const auto* a, const auto* b) { return a->num_blocks < b->num_blocks; });
    std::string path, dots;
    for (const KvSimulation* point : points) {
      const double x = axes.X(point->num_blocks), y = axes.Y(1 - point->hit_ratio());
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>", x, y);
    }
    const char* colour = kColours[number % kColours.size()];
    const double y = kTop + 10 + 16 * static_cast<double>(number);
    svg += fmt::format(
        "<path d=\"{0}\" fill=\"none\" stroke=\"{1}\" stroke-width=\"1.5\"/><g fill=\"{1}\">{2}</g>\n"
        "<path d=\"M{3:.0f} {4:.0f}h16\" stroke=\"{1}\" stroke-width=\"2\"/><text x=\"{5:.0f}\" "
        "y=\"{6:.0f}\">{7}</text>\n",
        path, colour, dots, kLeft + kWidth + 10, y, kLeft + kWidth + 30, y + 4, Escape(policy));
    ++number;
  }
  return svg + "</svg>\n";
}

}  // namespace cachalot
