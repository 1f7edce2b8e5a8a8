#include "cli/kv_compare.h"

#include <algorithm>
#include <cmath>

#include "engine/logit_kl.h"

namespace cachalot {
namespace {

// Logits of all positions but the last.
Result<std::vector<float>> LogitsOf(Session* session, const PplWindow& window, int64_t vocab) {
  Request request;
  request.prompt_ids = window.tokens;
  request.all_logits = true;
  std::vector<float> logits;
  bool finished = false;
  Status status;
  RETURN_IF_ERROR(session->engine()
                      .Submit(std::move(request),
                              [&](const RequestOutput& output) {
                                logits.insert(logits.end(), output.logits.begin(), output.logits.end());
                                if (!output.error.ok()) status = output.error;
                                finished = output.finished;
                              })
                      .status());
  while (!finished && status.ok()) RETURN_IF_ERROR(session->engine().Step());
  RETURN_IF_ERROR(status);
  const size_t wanted = (window.tokens.size() - 1) * static_cast<size_t>(vocab);
  if (logits.size() < wanted) return Internal("{} logits came back, {} are wanted", logits.size(), wanted);
  logits.resize(wanted);
  return logits;
}

}  // namespace

Result<KvComparison> CompareKv(Session* base, Session* other, std::span<const PplWindow> windows,
                               const std::function<bool(int64_t done, int64_t total)>& progress) {
  const int64_t vocab = base->bundle().spec.vocab_size;
  KvComparison result;
  for (size_t w = 0; w < windows.size(); ++w) {
    const PplWindow& window = windows[w];
    ASSIGN_OR_RETURN(const auto p_logits, LogitsOf(base, window, vocab));
    ASSIGN_OR_RETURN(const auto q_logits, LogitsOf(other, window, vocab));
    std::vector<float> p_logprobs, q_logprobs;
    for (size_t i = static_cast<size_t>(window.first_scored); i + 1 < window.tokens.size(); ++i) {
      const auto p = std::span(p_logits).subspan(i * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
      const auto q = std::span(q_logits).subspan(i * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
      const double kl = LogitKl(p, q);
      if (!std::isfinite(kl)) return Internal("window {}, position {}: a logit is no finite number", w, i);
      const auto next = static_cast<size_t>(window.tokens[i + 1]);
      p_logprobs.push_back(static_cast<float>(p[next] - LogNormaliser(p)));
      q_logprobs.push_back(static_cast<float>(q[next] - LogNormaliser(q)));
      result.kl_sum += kl;
      result.kl_largest = std::max(result.kl_largest, kl);
      result.same_top += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
      ++result.positions;
    }
    result.base.Add(p_logprobs);
    result.other.Add(q_logprobs);
    if (progress && !progress(static_cast<int64_t>(w) + 1, static_cast<int64_t>(windows.size()))) {
      return Cancelled("stopped after {} of {} windows", w + 1, windows.size());
    }
  }
  return result;
}

}  // namespace cachalot
