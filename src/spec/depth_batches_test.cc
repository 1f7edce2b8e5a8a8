// One engine whose batches change, as a server's do, simulated with times as they were measured on an H200.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "spec/depth_controller.h"

namespace cachalot {
namespace {

// Steps of a small model on a GPU: without drafts, for each draft more, and for a pass of drafting. Over an answer steps get 2.6
// times as slow.
struct BatchCost {
  int32_t rows;
  double base_us, token_us, pass_us;
};
constexpr std::array<BatchCost, 3> kBatches = {{{1, 264, 30, 80}, {8, 313, 8, 95}, {32, 362, 4.2, 100}}};
constexpr int kAnswerTokens = 192;

class Server {
 public:
  double acceptance = 0.7;
  bool together = true;
  double capture_us = 3'000;  // a size's first step takes so much longer, and says nothing; nor does the one after it
  // Drafts that the host makes: it has to know the token before, and the device stands still for so much of a step.
  double wait = 0;
  double available = 1;  // the part of the sequences that can be drafted for

  explicit Server(uint64_t seed) : rng_(seed) {}

  // Tokens a microsecond, of that without drafts, while each sequence of a batch writes an answer.
  double Answer(const BatchCost& cost) {
    if (controller_ == nullptr) controller_ = std::make_unique<DepthController>(/*adaptive=*/true, together);
    std::vector<DraftRecord> records(static_cast<size_t>(cost.rows));
    std::vector<DraftCandidate> candidates(records.size());
    int64_t tokens = 0;
    double us = 0;
    while (tokens < int64_t{kAnswerTokens} * cost.rows) {
      const double progress = static_cast<double>(tokens) / cost.rows / kAnswerTokens;
      const double plain_us = Step(cost, 0, progress);
      for (size_t i = 0; i < records.size(); ++i) {
        candidates[i] = {.record = &records[i], .available = uniform_(rng_) < available ? 4 : 0};
      }
      const double waited_us = Waits(candidates) ? wait * plain_us : 0;
      if (wait > 0 && waited_us == 0) {
        for (DraftCandidate& candidate : candidates) candidate.available = 0;
      }
      if (controller_->Considers()) controller_->Choose(candidates, cost.rows, 1000);
      else controller_->Skip();
      DraftedStep step = {.num_rows = cost.rows, .num_tokens = cost.rows};
      int32_t num_passes = 0, num_drafted = 0;
      for (const DraftCandidate& candidate : candidates) {
        step.num_tokens += candidate.depth;
        num_passes = std::max(num_passes, candidate.depth);
        num_drafted += candidate.depth > 0;
        if (candidate.depth > 0) step.num_accepted += Verify(candidate);
      }
      if (wait == 0) step.num_drafted = num_drafted, step.num_passes = num_passes;
      const int32_t num_drafts = Padded(cost, step.num_tokens - cost.rows);
      const double draft_us = step.num_passes * cost.pass_us * (0.9 + 0.2 * progress);
      const double time = Step(cost, num_drafts, progress) * (0.99 + 0.02 * uniform_(rng_)) + draft_us + waited_us;
      us += time;
      tokens += cost.rows + step.num_accepted;
      if (together && num_drafts > 0 && captured_.insert({cost.rows, num_drafts}).second) us += capture_us, num_one_off_ = 2;
      if (num_one_off_ > 0) {
        --num_one_off_;
        continue;
      }
      if (waited_us > 0 && num_drafts == 0) continue;  // the scheduler tells nothing of such steps either
      step.step_us = static_cast<int64_t>(time);
      step.draft_us = static_cast<int64_t>(draft_us);
      step.context = tokens;
      controller_->ObserveStep(step);
    }
    return static_cast<double>(tokens) / us / (cost.rows / cost.base_us);
  }

 private:
  static double Step(const BatchCost& cost, int32_t num_drafts, double progress) {
    return (0.55 + 0.9 * progress) * (cost.base_us + cost.token_us * num_drafts);
  }
  // Captured steps come in halves of a token for each sequence.
  int32_t Padded(const BatchCost& cost, int32_t num_drafts) const {
    const int32_t part = together ? std::max(1, cost.rows / 2) : 1;
    return (num_drafts + part - 1) / part * part;
  }
  bool Waits(const std::vector<DraftCandidate>& candidates) {
    std::vector<DraftCandidate> known = candidates;
    return wait > 0 && controller_->CanPay() && controller_->Considers() &&
           controller_->WouldDraft(known, static_cast<int32_t>(known.size()), 1000);
  }
  int32_t Verify(const DraftCandidate& candidate) {
    int32_t right = 0;
    while (right < candidate.depth && uniform_(rng_) < acceptance) ++right;
    controller_->ObserveRow(candidate.record, candidate.depth, right);
    return right;
  }

  std::unique_ptr<DepthController> controller_;
  std::mt19937_64 rng_;
  std::uniform_real_distribution<double> uniform_;
  std::set<std::pair<int32_t, int32_t>> captured_;
  int num_one_off_ = 0;
};

// Rates against none, by batch, of batches of 1, 8, 32, 1, 8, … after the first of each.
std::array<double, 3> Rates(const Server& like) {
  constexpr uint64_t kSeeds = 8;
  constexpr int kRounds = 4;
  std::array<double, 3> rates = {};
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Server server(seed);
    server.acceptance = like.acceptance, server.together = like.together;
    server.wait = like.wait, server.available = like.available;
    for (int round = 0; round <= kRounds; ++round) {
      for (size_t b = 0; b < kBatches.size(); ++b) {
        const double rate = server.Answer(kBatches[b]);
        if (round > 0) rates[b] += rate / (kSeeds * kRounds);
      }
    }
  }
  return rates;
}

// What one draft always would bring.
double AlwaysOne(const BatchCost& cost, double acceptance) {
  return (1 + acceptance) * cost.base_us / (cost.base_us + cost.token_us * cost.rows + cost.pass_us);
}

// Sizes of 8 sequences with 4 tokens each are not those of 32, and the end of one answer not the beginning of the next.
TEST(DepthBatches, OneEngineForAll) {
  for (const bool together : {true, false}) {
    for (const double acceptance : {0.0, 0.4, 0.7}) {
      Server server(0);
      server.acceptance = acceptance, server.together = together;
      const auto rates = Rates(server);
      for (size_t b = 0; b < kBatches.size(); ++b) {
        const double best = std::max(1.0, AlwaysOne(kBatches[b], acceptance));
        EXPECT_GT(rates[b], 0.98) << kBatches[b].rows << " sequences, " << acceptance << (together ? ", together" : "");
        if (together) EXPECT_GT(rates[b], 0.94 * best) << kBatches[b].rows << " sequences, " << acceptance;
      }
    }
  }
}

// The same for drafts that the host makes, for all sequences or some of them.
TEST(DepthBatches, OneEngineForAllOnTheHost) {
  for (const bool together : {true, false}) {
    for (const double acceptance : {0.0, 0.4, 0.7}) {
      for (const double available : {1.0, 0.3}) {
        Server server(0);
        server.acceptance = acceptance, server.together = together, server.wait = 0.3, server.available = available;
        const auto rates = Rates(server);
        for (size_t b = 0; b < kBatches.size(); ++b) {
          EXPECT_GT(rates[b], 0.98) << kBatches[b].rows << " sequences, " << available << " of them, " << acceptance
                                    << (together ? ", together" : "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
