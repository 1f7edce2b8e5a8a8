#include "obs/export/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace cachalot {
namespace {

class ChromeTraceTest : public ::testing::Test {
 protected:
  void TearDown() override { std::remove(path_.c_str()); }
  std::unique_ptr<ChromeTrace> Open(int64_t max_bytes = ChromeTrace::kMaxFileBytes) {
    auto trace = ChromeTrace::Open(path_, max_bytes);
    EXPECT_TRUE(trace.ok()) << trace.status().ToString();
    return std::move(trace).value();
  }
  std::string Text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  // Throws where the file is no JSON.
  nlohmann::json Events() const { return nlohmann::json::parse(Text()); }

  const std::string path_ = ::testing::TempDir() + "cachalot_chrome_trace_" + std::to_string(::getpid()) + ".json";
};

TEST_F(ChromeTraceTest, IsWholeWheneverTheProgramEnds) {
  auto trace = Open();
  EXPECT_EQ(Events().size(), 0u);
  trace->NameLane(3, "compute stream");
  trace->Flush();
  EXPECT_EQ(Events().size(), 2u);
  size_t written = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    const ChromeTrace::Arg args[] = {{"step", i}, {"tokens", -1}};
    trace->Add(3, "decode", 10.0 * static_cast<double>(i), 9.5, args);
    if (i % 100 == 0) {
      const size_t size = Events().size();  // as another process would find it
      EXPECT_GE(size, written);
      written = size;
    }
  }
  EXPECT_GT(written, 1000u) << "it is written as it grows";
  trace.reset();
  const nlohmann::json events = Events();
  ASSERT_EQ(events.size(), 3002u);
  EXPECT_EQ(events[0]["ph"], "M");
  EXPECT_EQ(events[0]["args"]["name"], "compute stream");
  EXPECT_EQ(events[2002]["name"], "decode");
  EXPECT_EQ(events[2002]["tid"], 3);
  EXPECT_EQ(events[2002]["ts"], 20000.0);
  EXPECT_EQ(events[2002]["dur"], 9.5);
  EXPECT_EQ(events[2002]["args"]["step"], 2000);
  EXPECT_EQ(events[2002]["args"]["tokens"], -1);
}

TEST_F(ChromeTraceTest, StaysWithinItsBytes) {
  auto trace = Open(8000);
  for (int i = 0; i < 1000; ++i) trace->Add(1, "decode", i, 1);
  EXPECT_GT(trace->num_spans(), 50);
  EXPECT_EQ(trace->num_spans() + trace->num_left_out(), 1000);
  const auto kept = static_cast<size_t>(trace->num_spans());
  trace.reset();
  EXPECT_LE(Text().size(), 8000u);
  EXPECT_EQ(Events().size(), kept);
}

TEST_F(ChromeTraceTest, ReplacesALongerFile) {
  { std::ofstream(path_) << std::string(5000, 'x'); }
  auto trace = Open();
  EXPECT_EQ(Events().size(), 0u);
  trace->Add(0, "a", 0, -1.0);
  trace.reset();
  EXPECT_EQ(Events()[0]["dur"], 0.0) << "no span ends before it begins";
}

TEST_F(ChromeTraceTest, NeedsARegularFile) {
  EXPECT_EQ(ChromeTrace::Open("/dev/null").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ChromeTrace::Open("/nowhere/at/all.json").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot
