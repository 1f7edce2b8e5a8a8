#include "cli/ppl_run.h"

#include <algorithm>
#include <vector>

namespace cachalot {

Result<PplTotals> ScoreWindows(Engine& engine, std::span<const PplWindow> windows, int32_t in_flight,
                               const PplProgress& progress) {
  struct State {
    std::vector<float> logprobs;
    bool finished = false;
  };
  std::vector<State> states(windows.size());
  PplTotals totals;
  size_t next = 0, added = 0, finished = 0;
  Status status;
  while (added < windows.size()) {
    while (next < windows.size() && next - finished < static_cast<size_t>(in_flight)) {
      Request request;
      request.prompt_ids = windows[next].tokens;
      request.prompt_logprobs = true;
      State& state = states[next++];
      RETURN_IF_ERROR(engine
                          .Submit(std::move(request),
                                  [&](const RequestOutput& output) {
                                    state.logprobs.insert(state.logprobs.end(),
                                                          output.prompt_logprobs.begin(),
                                                          output.prompt_logprobs.end());
                                    if (!output.error.ok()) status = output.error;
                                    if (!output.finished) return;
                                    state.finished = true;
                                    ++finished;
                                  })
                          .status());
    }
    RETURN_IF_ERROR(engine.Step());
    RETURN_IF_ERROR(status);
    const size_t before = added;
    for (; added < next && states[added].finished; ++added) {
      const PplWindow& window = windows[added];
      std::vector<float>& logprobs = states[added].logprobs;
      if (logprobs.size() + 1 != window.tokens.size()) {
        return Internal("window {}: {} log-probabilities for {} tokens", added, logprobs.size(),
                        window.tokens.size());
      }
      totals.Add(std::span<const float>(logprobs).subspan(static_cast<size_t>(window.first_scored)));
      logprobs = {};
    }
    if (progress && added > before &&
        !progress(static_cast<int64_t>(added), static_cast<int64_t>(windows.size()), totals)) {
      return Cancelled("stopped after {} of {} windows", added, windows.size());
    }
  }
  return totals;
}

}  // namespace cachalot
