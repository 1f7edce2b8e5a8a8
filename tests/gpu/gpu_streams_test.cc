// --trace-streams on a card: every step and every copy of a run is in the file, where it belongs.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fault.h"
#include "golden/tiers_harness.h"

namespace cachalot {
namespace {

using Json = nlohmann::json;
constexpr double kRounding = 1.1;  // us, of an event's time

class GpuStreams : public ::testing::Test {
 protected:
  void SetUp() override {
    setup_.device = "cuda";
    want_ = PlainAnswers(setup_);
    setup_.trace_streams = path_;
    setup_.host_bytes = 64 << 20;
  }
  void TearDown() override { std::remove(path_.c_str()); }
  // Those of a lane, by step where they have one.
  std::vector<Json> Lane(int32_t lane) const {
    std::vector<Json> spans;
    for (const Json& event : Json::parse(std::ifstream(path_))) {
      if (event["ph"] == "X" && event["tid"] == lane) spans.push_back(event);
    }
    return spans;
  }
  static double Begin(const Json& span) { return span["ts"]; }
  static double End(const Json& span) { return span["ts"].get<double>() + span["dur"].get<double>(); }
  static bool IsStep(const Json& span) { return span.contains("args") && span["args"].contains("sequences"); }

  const std::string path_ = ::testing::TempDir() + "cachalot_gpu_streams_" + std::to_string(::getpid()) + ".json";
  TierSetup setup_;
  std::vector<TierAnswer> want_;
};

TEST_F(GpuStreams, EveryStepAndCopyIsTraced) {
  for (const bool graphs : {true, false}) {
    SCOPED_TRACE(graphs ? "graphs" : "ops");
    setup_.gpu_graphs = graphs;
    uint64_t num_steps = 0;
    int64_t num_promoted = 0;
    {
      TierModel model(setup_);
      for (int32_t round = 0; round < 3; ++round) ExpectSameAnswers(model.AskAll(), want_, "traced");
      num_steps = model.engine().stats().steps;
      num_promoted = model.host().promoted_blocks;
      EXPECT_NO_THROW(Lane(2)) << "whole while it is written";
    }
    std::map<int64_t, Json> launches, waits;
    for (const Json& span : Lane(1)) {
      if (span["name"] == "wait") waits[span["args"]["step"]] = span;
      else if (span["name"] != "capture") launches[span["args"]["step"]] = span;
    }
    uint64_t num_traced = 0;
    int64_t num_graphs = 0, num_waiting = 0;
    double last_end = 0;
    for (const Json& span : Lane(2)) {
      num_graphs += span["name"] == "graph";
      num_waiting += span["name"] == "waits for copies";
      if (!IsStep(span)) continue;
      ++num_traced;
      const int64_t step = span["args"]["step"];
      ASSERT_TRUE(launches.count(step) == 1 && waits.count(step) == 1) << step;
      EXPECT_GE(Begin(span), last_end - 0.01) << "step " << step << ": steps of one stream do not overlap";
      EXPECT_GE(Begin(span), Begin(launches[step]) - kRounding) << "step " << step;
      EXPECT_LE(End(span), End(waits[step]) + kRounding) << "step " << step;
      EXPECT_GT(span["dur"], 1) << "step " << step << " took its time";
      last_end = End(span);
    }
    EXPECT_EQ(num_traced, num_steps);
    EXPECT_GE(num_graphs, graphs ? 3 * kTierPrompts * (kTierAnswerTokens - 3) : 0);
    EXPECT_EQ(num_graphs > 0, graphs);
    EXPECT_GT(num_waiting, 0) << "steps wait for the copies in front of them";
    int64_t blocks_in = 0, blocks_out = 0;
    last_end = 0;
    for (const Json& span : Lane(3)) {
      EXPECT_GE(Begin(span), last_end - 0.01) << "copies come one after the other";
      last_end = End(span);
      EXPECT_GT(span["args"]["bytes"], 0);
      (span["name"] == "KV out" ? blocks_out : blocks_in) += span["args"]["blocks"].get<int64_t>();
    }
    EXPECT_GT(blocks_out, 0);
    EXPECT_GE(blocks_in, num_promoted);
  }
}

// What a step waits for is of that step: it is neither kept in a bucket's graph nor lost when the next step takes another one.
TEST_F(GpuStreams, BucketsChangeWhileBlocksMove) {
  {
    TierModel model(setup_);
    ExpectSameAnswers(model.AskAll(), want_, "one by one");
    for (int32_t round = 0; round < 4; ++round) {
      std::vector<TierAnswer> got(kTierPrompts);
      for (int32_t i = 0; i < kTierPrompts; ++i) model.Submit((i + round) % kTierPrompts, &got[static_cast<size_t>((i + round) % kTierPrompts)]);
      model.Run();
      ExpectSameAnswers(got, want_, fmt::format("together, round {}", round));
    }
  }
  std::set<int64_t> buckets;
  bool waits = false;
  for (const Json& span : Lane(2)) {
    if (IsStep(span) && span["args"]["bucket"] > 0) buckets.insert(span["args"]["bucket"].get<int64_t>());
    waits = waits || span["name"] == "waits for copies";
  }
  EXPECT_GE(buckets.size(), 2u);
  EXPECT_TRUE(waits);
}

TEST_F(GpuStreams, GoesOnAfterTheDeviceWasLost) {
  {
    TierModel model(setup_);
    model.Ask(0);
    {
      const ScopedFault lost("device.lost", 3, 1), rebuilt("device.rebuild");
      EXPECT_FALSE(model.Ask(1).error.ok());
    }
    EXPECT_EQ(model.engine().stats().recoveries, 1);
    EXPECT_TRUE(model.Ask(2).Same(want_[2]));
  }
  const auto spans = Lane(2);
  int64_t last = 0;
  double end = 0;
  for (const Json& span : spans) {
    if (!IsStep(span)) continue;
    EXPECT_GT(span["args"]["step"], last);
    EXPECT_GE(Begin(span), end - 0.01);
    last = span["args"]["step"];
    end = End(span);
  }
  EXPECT_GT(last, 30);
}

}  // namespace
}  // namespace cachalot
