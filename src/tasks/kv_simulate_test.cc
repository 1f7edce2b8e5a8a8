#include "tasks/kv_simulate.h"

#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "tasks/kv_curves.h"

namespace cachalot {
namespace {

// The first 1,000 requests of Mooncake's conversation trace (Apache-2.0), without lengths.
KvTrace Piece() {
  const auto trace = ReadKvTrace(CACHALOT_SOURCE_DIR "/tests/data/kv/conversation.jsonl");
  EXPECT_TRUE(trace.ok()) << trace.status().ToString();
  return *trace;
}

int64_t Hits(const KvTrace& trace, const std::string& policy, int32_t num_blocks) {
  const auto result = SimulateKv(trace, policy, num_blocks);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result->num_hits;
}

// Counted by a separate program, over an ordered list and over the known future.
TEST(KvSimulate, KnownRatiosOfAPieceOfATrace) {
  const KvTrace trace = Piece();
  EXPECT_EQ(trace.requests.size(), 1000u);
  EXPECT_EQ(trace.num_lookups, 27305);
  EXPECT_EQ(trace.num_distinct, 21514);
  const std::map<int32_t, std::pair<int64_t, int64_t>> known = {{500, {999, 2728}},
                                                                {1000, {1038, 4017}},
                                                                {2000, {1151, 5403}},
                                                                {4000, {2165, 5791}},
                                                                {8000, {4303, 5791}}};
  for (const auto& [num_blocks, hits] : known) {
    EXPECT_EQ(Hits(trace, "lru", num_blocks), hits.first) << num_blocks;
    EXPECT_EQ(Hits(trace, "belady", num_blocks), hits.second) << num_blocks;
  }
}

TEST(KvSimulate, EveryPolicyStaysBelowTheCeiling) {
  const KvTrace trace = Piece();
  const int64_t all = Hits(trace, "belady", 1 << 16);
  for (const std::string& policy : SimulatedPolicies()) {
    EXPECT_EQ(Hits(trace, policy, 1 << 16), all) << policy << ": nothing has to go";
    const int64_t hits = Hits(trace, policy, 1000);
    EXPECT_LE(hits, Hits(trace, "belady", 1000)) << policy;
    EXPECT_GT(hits, 900) << policy;
    EXPECT_EQ(hits, Hits(trace, policy, 1000)) << policy << " twice";
  }
  EXPECT_GT(Hits(trace, "lru-k", 1000), Hits(trace, "lru", 1000));
  EXPECT_EQ(Hits(trace, "lru", 1), 1000 - 1) << "all begin alike, and no request is lost for being too large";
}

TEST(KvSimulate, TheWholeTraces) {
  const std::string shared = CACHALOT_SOURCE_DIR "/../shared/traces/mooncake-";
  if (!FileExists(shared + "conversation.jsonl")) GTEST_SKIP() << "the whole traces are not there";
  const auto ratio = [](const KvTrace& trace, const std::string& policy, int32_t num_blocks) {
    return static_cast<double>(Hits(trace, policy, num_blocks)) / static_cast<double>(trace.num_lookups);
  };
  const KvTrace conversation = *ReadKvTrace(shared + "conversation.jsonl");
  EXPECT_GE(ratio(conversation, "lru-k", 2000), 1.8 * ratio(conversation, "lru", 2000));
  for (int32_t size : {20000, 60000}) {
    EXPECT_GE(ratio(conversation, "lru-k", size), 0.99 * ratio(conversation, "lru", size)) << size;
  }
  const KvTrace synthetic = *ReadKvTrace(shared + "synthetic.jsonl");
  for (int32_t size : {1000, 15000}) {
    EXPECT_GE(ratio(synthetic, "lru-k", size), 0.99 * ratio(synthetic, "lru", size)) << size;
  }
}

TEST(KvTrace, RecordsOfOurOwn) {
  const std::string text =
      R"({"arrival_us":50,"choices":[{"prompt_ids":[1,2,3,4,5,6],"result":{"token_ids":[7,8,9]}}]})"
      "\n\n"
      R"({"arrival_us":20,"choices":[{"prompt_ids":[1,2,3,4],"result":{"token_ids":[]}},{"prompt_ids":[1,2,3,4],"result":{"token_ids":[]}}]})"
      "\n";
  const auto trace = ParseKvTrace(text, "here", {.block_tokens = 2});
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->requests[0].time_us, 20) << "in order of arrival";
  EXPECT_EQ(trace->requests[0].blocks.size(), 2u);
  EXPECT_EQ(trace->requests[0].num_looked_up, 1) << "one token is always computed";
  EXPECT_EQ(trace->requests[2].blocks.size(), 4u) << "the answer's last token is not";
  EXPECT_EQ(trace->num_lookups, 1 + 1 + 2);
  EXPECT_EQ(trace->num_distinct, 4);
  EXPECT_EQ(Hits(*trace, "lru", 10), 0 + 1 + 2);
  EXPECT_EQ(Hits(*trace, "lru", 1), 0 + 1 + 1);
}

TEST(KvTrace, SaysWhatIsWrong) {
  const auto error = [](const char* text) { return ParseKvTrace(text, "t.jsonl").status().ToString(); };
  EXPECT_NE(error("{\"a\":1}\n").find("t.jsonl:1"), std::string::npos);
  EXPECT_NE(error("{\"timestamp\":0,\"hash_ids\":[1]}\n{\"timestamp\":0,\"hash_ids\":[-1.5,\"x\"]}")
                .find("t.jsonl:2"),
            std::string::npos);
  EXPECT_NE(error("{").find("t.jsonl:1"), std::string::npos);
  EXPECT_NE(error("").find("no request"), std::string::npos);
  EXPECT_NE(error("{\"timestamp\":1e300,\"hash_ids\":[1]}").find("timestamp"), std::string::npos);
  EXPECT_FALSE(ReadKvTrace("/nonexistent").ok());
  EXPECT_FALSE(SimulateKv(Piece(), "lru", 0).ok());
  EXPECT_FALSE(SimulateKv(Piece(), "clock", 10).ok());
}

TEST(KvCurves, TableCsvAndPicture) {
  const std::vector<KvSimulation> results = {
      {.policy = "lru", .num_blocks = 10, .num_hits = 1, .num_lookups = 4},
      {.policy = "lru", .num_blocks = 100, .num_hits = 3, .num_lookups = 4},
      {.policy = "arc", .num_blocks = 10, .num_hits = 2, .num_lookups = 4}};
  EXPECT_EQ(CurvesTable(results),
            "hit ratio           10       100\n"
            "lru             0.2500    0.7500\n"
            "arc             0.5000          \n");
  EXPECT_EQ(
      CurvesCsv(results),
      "policy,blocks,lookups,hits,hit_ratio,miss_ratio,evictions\n"
      "lru,10,4,1,0.250000,0.750000,0\nlru,100,4,3,0.750000,0.250000,0\narc,10,4,2,0.500000,0.500000,0\n");
  const std::string svg = CurvesSvg(results, "a < b");
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("M60.0 65.0L540.0 315.0"), std::string::npos) << svg;
  EXPECT_EQ(svg, CurvesSvg(results, "a < b"));
}

}  // namespace
}  // namespace cachalot
