// Random traffic through the whole policy tower: arrivals, priorities, cancellations, stop strings, failing
// steps and too little memory. Every request ends with what an undisturbed model gives (or a prefix of it),
// and nothing stays.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>

#include "base/clock.h"
#include "base/log.h"
#include "engine/collected_output.h"
#include "engine/fake_executor.h"
#include "engine/tiny_tokenizer.h"

namespace cachalot {
namespace {

struct Traffic {
  Request request;
  std::shared_ptr<std::vector<CollectedOutput>> got =
      std::make_shared<std::vector<CollectedOutput>>();  // by choice
  bool cancelled = false;
};

class Stress {
 public:
  Stress(const Tokenizer* tokenizer, uint64_t seed) : tokenizer_(tokenizer), rng_(seed) {
    ExecutorInfo info{.max_seqs = Random(1, 12),
                      .max_step_tokens = Random(8, 80),
                      .max_context = Random(30, 70),
                      .vocab_size = 50,
                      .depth = Random(0, 1),
                      .max_logit_rows = Random(1, 12),
                      .kv_groups = {{.name = "full",
                                     .block_tokens = Random(1, 8),
                                     .num_blocks = Random(20, 60),
                                     .window = 0,
                                     .block_bytes = 1}}};
    if (Random(0, 1) == 1) {
      info.kv_groups.push_back({.name = "window",
                                .block_tokens = Random(1, 8),
                                .num_blocks = Random(6, 20),
                                .window = Random(1, 16),
                                .block_bytes = 1});
    }
    for (KvGroupInfo& group : info.kv_groups) group.num_swap_blocks = Random(0, 1) * Random(1, 40);
    room_ = info.max_context;
    for (const KvGroupInfo& group : info.kv_groups) {
      // A window rolls on for ever if its pool holds one token more than it, wherever that falls into blocks.
      const int32_t tokens = group.block_tokens * group.num_blocks;
      const bool rolls = group.window > 0 && tokens - group.block_tokens + 1 >= group.window;
      if (!rolls) room_ = std::min(room_, tokens);
    }
    const DraftKind drafts = std::array{DraftKind::kNone, DraftKind::kNgram, DraftKind::kMtp}[seed % 3];
    info.device_drafts = DraftKind::kMtp;
    info.draft_context = Random(0, 1) * Random(1, 20);
    executor_ = std::make_unique<FakeExecutor>(info);
    engine_ =
        *Engine::Create(executor_.get(), tokenizer_,
                        {.max_batch_tokens = Random(1, 80),
                         .prefill_chunk = Random(1, 80),
                         .enable_prefix_caching = Random(0, 3) > 0,
                         .policy = std::array{"fcfs", "priority", "fair"}[static_cast<size_t>(Random(0, 2))],
                         .itl_target_ms = Random(0, 1) * Random(1, 20) * 0.1,
                         .preemption = Random(0, 1) == 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute,
                         .drafts = drafts,
                         .max_drafts = Random(1, 6),
                         .adaptive_drafts = Random(0, 3) == 0,
                         .clock = &clock_});
  }

  void Run(int num_steps) {
    for (int step = 0; step < num_steps; ++step) {
      while (Random(0, 3) == 0) Submit();
      if (Random(0, 5) == 0 && !traffic_.empty()) {
        auto chosen = std::next(traffic_.begin(), Random(0, static_cast<int>(traffic_.size()) - 1));
        chosen->second.cancelled = true;
        engine_->Cancel(chosen->first);
      }
      Step(Random(0, 60) == 0);
    }
    for (int step = 0; engine_->HasWork(); ++step) {
      ASSERT_LT(step, 20000) << "no end";
      Step(false);
    }
    for (int32_t used : engine_->stats().kv_blocks_used) ASSERT_EQ(used, 0);
    for (const auto& [id, traffic] : traffic_) {
      SCOPED_TRACE(fmt::format("request {}", id));
      Check(traffic);
    }
    num_operations_ +=
        static_cast<int64_t>(engine_->stats().generated_tokens + engine_->stats().prompt_tokens);
  }

  int64_t num_operations() const { return num_operations_; }
  int64_t num_recomputes() const { return engine_->stats().recompute_preemptions; }
  int64_t num_swaps() const { return engine_->stats().swap_preemptions; }
  int64_t num_cache_hits() const { return engine_->stats().cache_hit_tokens; }
  int64_t num_accepted() const { return engine_->stats().accepted_tokens; }
  int num_cut() const { return num_cut_; }
  int num_failed() const { return num_failed_; }

 private:
  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }

  void Step(bool fails) {
    ScopedFault fault(fails ? Random(0, 1) == 0 ? "device.op" : "device.collect" : "never");
    clock_.Advance(Random(0, 400));
    const Status status = engine_->Step();
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  void Submit() {
    Traffic traffic;
    Request& request = traffic.request;
    const int length = Random(1, Random(0, 4) == 0 ? 40 : 10);
    // Half of them begin alike.
    const int common = Random(0, 1) == 0 ? 0 : Random(1, 40), family = Random(1, 2);
    for (int i = 0; i < length; ++i)
      request.prompt_ids.push_back(i < common ? (i * i + family) % 50 : Random(0, 49));
    if (Random(0, 9) == 0) request.cache_salt = "salt";
    request.max_tokens = Random(0, 30);
    request.sampling.temperature = static_cast<float>(Random(0, 1));
    request.sampling.seed = rng_();
    if (Random(0, 2) == 0) request.sampling.repetition_penalty = 1.2f;
    if (Random(0, 1) == 0) request.stop_ids = {kTinyEndToken, Random(0, 49)};
    request.ignore_eos = Random(0, 5) == 0;
    if (Random(0, 2) == 0) {
      for (int n = Random(1, 3); n > 0; --n) {
        std::string stop;
        for (int m = Random(2, 3); m > 0; --m) stop += static_cast<char>('a' + Random(0, 25));
        request.stop_strings.push_back(stop);
      }
      if (Random(0, 1) == 0)
        request.stop_strings.push_back(std::string(1, static_cast<char>('a' + Random(0, 25))));
    }
    request.num_top_logprobs = Random(-1, 2);
    request.prompt_logprobs = Random(0, 4) == 0;
    request.num_prompt_top_logprobs = request.prompt_logprobs ? Random(0, 3) : 0;
    request.all_logits = Random(0, 6) == 0;
    request.mtp_logits = Random(0, 6) == 0;
    request.priority = Random(-1, 1);
    request.tenant = std::string(Random(0, 1) == 0 ? "a" : "b");
    request.n = Random(0, 3) == 0 ? Random(2, 4) : 1;
    if (Random(0, 9) == 0) request.deadline_us = Random(1, 20000);
    traffic.got->resize(static_cast<size_t>(request.n));
    const auto id = engine_->Submit(request, [got = traffic.got](const RequestOutput& output) {
      got->at(static_cast<size_t>(output.choice)).Take(output);
    });
    const bool fits =
        static_cast<int32_t>(request.prompt_ids.size()) + (request.max_tokens > 0 ? 1 : 0) <= room_;
    if (fits) {
      ASSERT_TRUE(id.ok()) << id.status().ToString();
      traffic_.emplace(*id, std::move(traffic));
    }
  }

  void Check(const Traffic& traffic) {
    for (size_t i = 0; i < traffic.got->size(); ++i) {
      Request own = traffic.request;
      own.sampling.seed += i;
      if (i > 0) own.prompt_logprobs = false;
      CheckChoice(traffic, own, (*traffic.got)[i]);
    }
  }

  void CheckChoice(const Traffic& traffic, const Request& own, const CollectedOutput& got) {
    CollectedOutput want = ExpectedOutput(executor_->model(), own, room_);
    ASSERT_TRUE(got.finished);
    std::string text = tokenizer_->Decode(want.reason == FinishReason::kStop
                                              ? std::span(want.tokens).first(want.tokens.size() - 1)
                                              : std::span(want.tokens));
    size_t cut = std::string::npos, cut_end = std::string::npos;
    for (const std::string& stop : traffic.request.stop_strings) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < cut_end || (at + stop.size() == cut_end && at < cut))
        cut = at, cut_end = at + stop.size();
    }
    if (got.reason == FinishReason::kError || got.reason == FinishReason::kCancelled) {
      ASSERT_TRUE(got.reason == FinishReason::kError ? !got.error.ok() : traffic.cancelled);
      num_failed_ += got.reason == FinishReason::kError;
      ASSERT_LE(got.tokens.size(), want.tokens.size());
      ASSERT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin()));
      ASSERT_TRUE(std::equal(got.logits.begin(), got.logits.end(), want.logits.begin()));
      return;
    }
    if (cut != std::string::npos) {
      ++num_cut_;
      ASSERT_EQ(got.text, text.substr(0, cut));
      ASSERT_EQ(got.reason, FinishReason::kStop);
      ASSERT_LE(got.tokens.size(), want.tokens.size());
      ASSERT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin()));
      return;
    }
    ASSERT_EQ(got.text, text);
    ExpectSame(got, want);
  }

  const Tokenizer* tokenizer_;
  std::mt19937_64 rng_;
  ManualClock clock_;
  int32_t room_ = 0;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  std::map<uint64_t, Traffic> traffic_;
  int64_t num_operations_ = 0;
  int num_cut_ = 0, num_failed_ = 0;
};

TEST(EngineStress, RandomTraffic) {
  const auto tokenizer = TinyTokenizer(::testing::TempDir() + "/cachalot_engine_stress_test");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  ASSERT_TRUE(SetLogLevel("off").ok());  // steps fail on purpose
  int64_t operations = 0, accepted = 0, recomputes = 0, swaps = 0, hits = 0, cut = 0, failed = 0;
  for (uint64_t seed = 1; seed <= 150 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Stress stress(tokenizer->get(), seed);
    stress.Run(200);
    operations += stress.num_operations();
    accepted += stress.num_accepted();
    recomputes += stress.num_recomputes();
    swaps += stress.num_swaps();
    hits += stress.num_cache_hits();
    cut += stress.num_cut();
    failed += stress.num_failed();
  }
  ASSERT_TRUE(SetLogLevel("info").ok());
  // All paths were walked.
  EXPECT_GT(operations, 100000);
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(recomputes, 500);
  EXPECT_GT(swaps, 100);
  EXPECT_GT(hits, 1000);
  EXPECT_GT(cut, 300);
  EXPECT_GT(failed, 200);
}

}  // namespace
}  // namespace cachalot
