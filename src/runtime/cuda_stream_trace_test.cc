// Over a backend whose events are stamped by a device clock that the test sets: of another epoch, and running too fast.
#include "runtime/cuda_stream_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

namespace cachalot {
namespace {

struct FakeEvent {
  double device_us = -1;
};
double g_device_us = 0;  // now
int g_num_events = 0;

CudaBackend FakeBackend() {
  CudaBackend backend = {};
  backend.event_create = [](bool timing, void** event) -> CudaStatus {
    EXPECT_TRUE(timing);
    ++g_num_events;
    *event = new FakeEvent;
    return nullptr;
  };
  backend.event_destroy = [](void* event) -> CudaStatus {
    --g_num_events;
    delete static_cast<FakeEvent*>(event);
    return nullptr;
  };
  backend.event_record = [](void* event, void*) -> CudaStatus {
    static_cast<FakeEvent*>(event)->device_us = g_device_us;
    return nullptr;
  };
  backend.event_synchronize = [](void*) -> CudaStatus { return nullptr; };
  backend.event_elapsed_ms = [](void* begin, void* end, float* ms) -> CudaStatus {
    const double from = static_cast<FakeEvent*>(begin)->device_us, to = static_cast<FakeEvent*>(end)->device_us;
    EXPECT_GE(from, 0) << "recorded";
    EXPECT_GE(to, 0) << "recorded";
    *ms = static_cast<float>((to - from) * 1e-3);
    return nullptr;
  };
  return backend;
}

class CudaStreamTraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = ChromeTrace::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    file_ = std::move(file).value();
    g_device_us = 1e9;
    auto trace = CudaStreamTrace::Create(&backend_, file_.get(), nullptr);
    ASSERT_TRUE(trace.ok()) << trace.status().ToString();
    trace_ = std::move(trace).value();
  }
  void TearDown() override {
    trace_.reset();
    file_.reset();
    std::remove(path_.c_str());
    EXPECT_EQ(g_num_events, 0);
  }
  // Launched, computed and collected: `moves_us` of moves, then `us` of work, on a device that is `ahead_us` further than the host.
  void Run(const StepPlan& plan, bool waits, double moves_us, double us, double ahead_us = 0) {
    CudaStreamTrace::Step& step = steps_[plan.step_id % 2];
    g_device_us += ahead_us;
    FakeEvent done;
    ASSERT_TRUE(trace_->Begin(plan, waits, &step).ok());
    g_device_us += moves_us;
    ASSERT_TRUE(trace_->Work(&step).ok());
    g_device_us += us;
    done.device_us = g_device_us;
    trace_->Launched(plan, step);
    const double wait_us = trace_->NowUs();
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(moves_us + us)));
    ASSERT_TRUE(trace_->Collected(plan.step_id, &step, &done, wait_us).ok());
  }
  static StepPlan Decode(uint64_t id) {
    StepPlan plan;
    plan.step_id = id;
    plan.rows = {{.slot = 0, .q_len = 1, .num_computed = 99}, {.slot = 1, .q_len = 3, .num_computed = 7, .num_drafts = 2}};
    return plan;
  }
  // Spans by name, in the order of the file.
  std::map<std::string, std::vector<nlohmann::json>> Spans() {
    file_->Flush();
    std::map<std::string, std::vector<nlohmann::json>> spans;
    for (const auto& event : nlohmann::json::parse(std::ifstream(path_))) {
      if (event["ph"] == "X") spans[event["name"]].push_back(event);
    }
    return spans;
  }
  static double Begin(const nlohmann::json& span) { return span["ts"]; }
  static double End(const nlohmann::json& span) { return span["ts"].get<double>() + span["dur"].get<double>(); }

  const std::string path_ = ::testing::TempDir() + "cachalot_stream_trace_" + std::to_string(::getpid()) + ".json";
  const CudaBackend backend_ = FakeBackend();
  std::unique_ptr<ChromeTrace> file_;
  std::unique_ptr<CudaStreamTrace> trace_;
  CudaStreamTrace::Step steps_[2];
};

TEST_F(CudaStreamTraceTest, StepsLieBetweenLaunchAndWait) {
  // A clock of the device that runs 1 % too fast, is too slow, and that jumps by minutes.
  const double ahead[] = {0, 3, 3, 3, 3, 3, -2, -2, 0, 2e8, 0, 0, 3, 5e8, 0, 0};
  uint64_t id = 0;
  for (const double us : ahead) Run(Decode(++id), false, 0, 300, us);
  const auto spans = Spans();
  ASSERT_EQ(spans.at("decode").size(), std::size(ahead));
  double last = 0;
  for (size_t i = 0; i < std::size(ahead); ++i) {
    const auto &step = spans.at("decode")[i], &launch = spans.at("launch op by op")[i], &wait = spans.at("wait")[i], &ops = spans.at("ops")[i];
    EXPECT_EQ(step["args"]["step"], i + 1);
    EXPECT_EQ(launch["args"]["step"], i + 1);
    EXPECT_EQ(wait["args"]["step"], i + 1);
    EXPECT_EQ(step["args"]["sequences"], 2);
    EXPECT_EQ(step["args"]["tokens"], 4);
    EXPECT_EQ(step["args"]["kv_tokens"], 110);
    EXPECT_EQ(step["tid"], static_cast<int>(CudaStreamTrace::kCompute));
    EXPECT_EQ(wait["tid"], static_cast<int>(CudaStreamTrace::kHost));
    EXPECT_NEAR(step["dur"], 300, 0.1) << "step " << i + 1 << ": whatever the clocks say of each other, a step is as long as it was";
    EXPECT_GE(Begin(step), Begin(launch) - 0.01) << "step " << i + 1;
    EXPECT_LE(End(step), End(wait) + 0.01) << "step " << i + 1;
    EXPECT_GE(Begin(step), last - 0.01);
    EXPECT_EQ(ops["ts"], step["ts"]);
    last = End(step);
  }
}

TEST_F(CudaStreamTraceTest, TellsKindsAndParts) {
  StepPlan plan = Decode(1);
  Run(plan, false, 0, 50);
  plan.step_id = 2;
  plan.rows.push_back({.slot = 2, .q_len = 64});
  Run(plan, true, 40, 60);
  plan.step_id = 3;
  plan.rows.erase(plan.rows.begin(), plan.rows.begin() + 2);
  plan.swap_ins.push_back({});
  Run(plan, false, 30, 70);
  StepPlan moves;
  moves.step_id = 4;
  moves.swap_outs.push_back({});
  Run(moves, true, 20, 5);
  auto spans = Spans();
  EXPECT_EQ(spans["decode"].size(), 1u);
  ASSERT_EQ(spans["mixed"].size(), 1u);
  EXPECT_EQ(spans["mixed"][0]["args"]["tokens"], 68);
  EXPECT_EQ(spans["prefill"].size(), 1u);
  EXPECT_EQ(spans["moves"].size(), 1u);
  EXPECT_EQ(spans["ops"].size(), 3u) << "none of moves alone";
  ASSERT_EQ(spans["waits for copies"].size(), 1u);
  EXPECT_NEAR(spans["waits for copies"][0]["dur"], 40, 0.1);
  EXPECT_EQ(spans["waits for copies"][0]["ts"], spans["mixed"][0]["ts"]);
  EXPECT_NEAR(End(spans["waits for copies"][0]), Begin(spans["ops"][1]), 0.01);
  EXPECT_NEAR(spans["moves blocks"][0]["dur"], 30, 0.1);
  EXPECT_NEAR(spans["waits for copies, moves blocks"][0]["dur"], 20, 0.1);
}

TEST_F(CudaStreamTraceTest, GraphsHaveABucket) {
  CudaStreamTrace::Step step;
  FakeEvent done;
  const StepPlan plan = Decode(7);
  ASSERT_TRUE(trace_->Begin(plan, false, &step).ok());
  trace_->Host("capture", trace_->NowUs(), 7);
  step.bucket = 4;
  g_device_us += 10;
  done.device_us = g_device_us;
  trace_->Launched(plan, step);
  ASSERT_TRUE(trace_->Collected(7, &step, &done, trace_->NowUs()).ok());
  auto spans = Spans();
  EXPECT_EQ(spans["decode"][0]["args"]["bucket"], 4);
  EXPECT_EQ(spans["graph"].size(), 1u);
  EXPECT_EQ(spans["launch of a graph"].size(), 1u);
  EXPECT_EQ(spans["capture"].size(), 1u);
  trace_.reset();  // while its step lives
}

TEST_F(CudaStreamTraceTest, CopiesHaveALane) {
  FakeEvent begin = {g_device_us + 5}, end = {g_device_us + 25}, next = {g_device_us + 40};
  ASSERT_TRUE(trace_->Copies(&begin, &end, 3, 4096, true, false).ok());
  ASSERT_TRUE(trace_->Copies(&end, &next, 2, 1024, false, true).ok());
  ASSERT_TRUE(trace_->Copies(&next, &next, 2, 8, true, true).ok());
  auto spans = Spans();
  ASSERT_EQ(spans["KV in"].size(), 1u);
  EXPECT_EQ(spans["KV in"][0]["tid"], static_cast<int>(CudaStreamTrace::kCopies));
  EXPECT_NEAR(spans["KV in"][0]["dur"], 20, 0.1);
  EXPECT_EQ(spans["KV in"][0]["args"]["blocks"], 3);
  EXPECT_EQ(spans["KV in"][0]["args"]["bytes"], 4096);
  EXPECT_NEAR(spans["KV out"][0]["dur"], 15, 0.1);
  EXPECT_EQ(spans["KV in and out"].size(), 1u);
}

}  // namespace
}  // namespace cachalot
