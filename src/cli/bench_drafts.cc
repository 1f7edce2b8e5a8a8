#include "cli/bench_drafts.h"

#include <vector>

#include "tasks/spread.h"

namespace cachalot {
namespace {

constexpr const char* kLine = "{:>7} {:>6} {:>8} {:>6} {:>10} {:>7} {:>16} {:>10} {:>16} {:>9}  {}\n";

std::string Quartiles(const Spread& spread) { return fmt::format("{:.3f} .. {:.3f}", spread.low_quartile, spread.high_quartile); }

}  // namespace

std::string DraftPairsHead() {
  return fmt::format(kLine, "threads", "batch", "test", "pairs", "without/s", "ratio", "quartiles", "processor", "quartiles", "drafts", "of which");
}

Result<std::string> CompareDraftPairs(Session& session, std::span<const BenchCase> cases, std::span<const std::string> tests,
                                      int32_t max_drafts, int32_t num_pairs, const StopOnInterrupt& stop) {
  const std::vector<DraftDepth> depths = {{0, false}, {max_drafts, false}, {max_drafts, false, /*anew=*/true}};
  ASSIGN_OR_RETURN(const auto all, MeasureDrafts(session, cases, depths, num_pairs, stop));
  std::string text;
  for (size_t c = 0; c < cases.size(); ++c) {
    const auto& samples = all[c];
    std::vector<double> plain;
    for (const BenchSample& sample : samples[0]) plain.push_back(sample.tokens_per_second());
    for (size_t i = 1; i < depths.size(); ++i) {
      std::vector<double> wall, processor;
      int64_t num_drafts = 0;
      for (size_t pair = 0; pair < samples[0].size(); ++pair) {
        const BenchSample& none = samples[0][pair];
        const BenchSample& some = samples[i][pair];
        const double per_token = none.processor_seconds / static_cast<double>(none.tokens);
        wall.push_back(some.tokens_per_second() / none.tokens_per_second());
        processor.push_back(per_token / (some.processor_seconds / static_cast<double>(some.tokens)));
        num_drafts += some.draft_tokens;
      }
      const Spread by_wall = SpreadOf(wall), by_processor = SpreadOf(processor);
      text += fmt::format(kLine, cases[c].threads, cases[c].batch, tests[c], wall.size(), fmt::format("{:.1f}", SpreadOf(plain).median),
                          fmt::format("{:.3f}", by_wall.median), Quartiles(by_wall), fmt::format("{:.3f}", by_processor.median),
                          Quartiles(by_processor), fmt::format("{:.2f}", static_cast<double>(num_drafts) / static_cast<double>(wall.size())),
                          depths[i].anew ? "an engine that knows nothing, each time" : "one engine");
    }
  }
  return text;
}

}  // namespace cachalot
