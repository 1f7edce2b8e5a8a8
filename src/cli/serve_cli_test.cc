// The parts of serve and bench serve that need no server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/bench_serve_report.h"
#include "cli/bench_serve_workload.h"
#include "cli/serve_config.h"
#include "server/http/http_client.h"

namespace cachalot {
namespace {

KnownFlag Find(const std::string& name) {
  if (name == "-p" || name == "--port") return {"--port"};
  for (const char* known : {"--host", "--api-key", "-m", "--config", "-x", "-y"}) if (name == known) return {known};
  for (const char* known : {"--mlock", "--deterministic", "--enable-cache", "--no-enable-cache"}) if (name == known) return {known, true};
  return {};
}

TEST(ServeConfig, FlagsByTheirNames) {
  const auto flags = FlagsOfConfig("# a comment\nport = 80 # another\nhost = \"0.0.0.0\"\nmlock = true\ndeterministic = false\n"
                                   "enable-cache = false\napi-key = [\"a\", \"b\"]\nx = 'C:\\y'\n[serve]\nm = \"x.gguf\"\n", "f", Find);
  ASSERT_TRUE(flags.ok()) << flags.status().ToString();
  EXPECT_EQ(*flags, (std::vector<std::string>{"--port=80", "--host=0.0.0.0", "--mlock", "--no-enable-cache", "--api-key=a", "--api-key=b",
                                              "-x=C:\\y", "-m=x.gguf"}));
}

TEST(ServeConfig, WrongValuesNameTheirLine) {
  const auto message = [](const std::string& line) { return FlagsOfConfig("mlock = true\n" + line + "\n", "f", Find).status().message(); };
  EXPECT_EQ(message("port = false"), "f: line 2: port = false: it takes a value");
  EXPECT_EQ(message("mlok = true"), "f: line 2: there is no flag --mlok");
  EXPECT_EQ(message("deterministic = 3"), "f: line 2: deterministic = 3: it is true or false");
  EXPECT_EQ(message("api-key = \"abc"), "f: line 2: api-key = \"abc: the string has no end");
  EXPECT_THAT(message("api-key = \"a\\tb\""), testing::HasSubstr("line 2: api-key = \"a\\tb\": escapes are not read"));
  EXPECT_THAT(message("api-key = \"a\" b"), testing::HasSubstr("something follows the string"));
  EXPECT_THAT(message("port = 3 4"), testing::HasSubstr("a value is a number"));
  EXPECT_THAT(message("m = /path"), testing::HasSubstr("a value is a number"));
}

TEST(ServeConfig, WhatIsWrong) {
  EXPECT_FALSE(FlagsOfConfig("[other]\nport = 1\n", "f", Find).ok());
  EXPECT_FALSE(FlagsOfConfig("config = \"x\"\n", "f", Find).ok());
  EXPECT_FALSE(FlagsOfConfig("= 3\n", "f", Find).ok());
  EXPECT_FALSE(FlagsOfConfig("port = 80\n[serve]\nport = 81\n", "f", Find).ok());
  const auto twice = FlagsOfConfig("# port = 1\napi-key = [\n  \"a = 1\",\n  \"b\"]\nport = 80\n\n[serve]\n\"port\" = 81\n", "f", Find);
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(twice.status().message(), "f: port is given twice, on lines 5 and 8");
  // One after the other, as a parser would make a list of them.
  EXPECT_FALSE(FlagsOfConfig("port = 80\nport = 81\n", "f", Find).ok());
  const auto other_name = FlagsOfConfig("port = 80\np = 81\nx = 1\ny = 2\n", "f", Find);
  ASSERT_FALSE(other_name.ok());
  EXPECT_EQ(other_name.status().message(), "f: port on line 1 and p on line 2 are the same");
  EXPECT_TRUE(FlagsOfConfig("x = 1\ny = 2 # x = 3\n", "f", Find).ok());
  const std::vector<std::string> args = {"--config", "/no/such/file"};
  EXPECT_FALSE(WithConfig(args, Find).ok());
}

TEST(ServeConfig, TheCommandLineComesLast) {
  const std::string path = testing::TempDir() + "serve_config.toml";
  std::ofstream(path) << "port = 1\n";
  const std::vector<std::string> args = {"--config=" + path, "--port", "2"};
  const auto all = WithConfig(args, Find);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->front(), "--port=1");
  EXPECT_EQ(all->back(), "2");
  std::ofstream(path) << "no-enable-cache = true\nmlock = true\n";
  const std::vector<std::string> opposite = {"--config=" + path, "--enable-cache"};
  const auto other = WithConfig(opposite, Find);
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_EQ(*other, (std::vector<std::string>{"--mlock", "--config=" + path, "--enable-cache"}));
}

TEST(BenchServe, PercentilesAsNumpy) {
  const Percentiles p = PercentilesOf({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(p.p50, 2.5);
  EXPECT_DOUBLE_EQ(p.p90, 3.7);
  EXPECT_DOUBLE_EQ(p.max, 4);
  EXPECT_EQ(PercentilesOf({}).count, 0);
}

TEST(BenchServe, GoodputCountsWholeRequests) {
  RequestTiming fast, slow, failed;
  fast.sent_us = slow.sent_us = failed.sent_us = 1'000'000;
  fast.status = slow.status = 200;
  fast.token_us = {1'010'000, 1'020'000, 1'030'000};
  slow.token_us = {1'500'000, 1'510'000};
  fast.end_us = 1'031'000;
  slow.end_us = 2'000'000;
  failed.status = 500;
  failed.error = "x";
  fast.output_tokens = 3;
  slow.output_tokens = 2;
  const auto level = ParseServiceLevel("ttft:100,itl:50");
  ASSERT_TRUE(level.ok());
  const ServeReport report = MakeReport({fast, slow, failed}, *level);
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.good, 1);
  EXPECT_EQ(report.itl_ms.size(), 3u);
  EXPECT_DOUBLE_EQ(report.seconds, 1.0);
  EXPECT_NE(ReportTable(report, *level).find("1 failed"), std::string::npos);
  EXPECT_EQ(ReportSvg(report, "a<b").find("a<b"), std::string::npos);
  EXPECT_FALSE(ParseServiceLevel("ttft=5").ok());
  EXPECT_FALSE(ParseServiceLevel("ttft:-5").ok());
  EXPECT_FALSE(ParseServiceLevel("what:5").ok());
}

TEST(BenchServe, TheSameSeedIsTheSameLoad) {
  WorkloadOptions options;
  options.dataset = "shared-prefix";
  options.num_prefixes = 2;
  options.prefix_len = 50;
  options.num_prompts = 6;
  options.range = 0.5f;
  options.request_rate = 10;
  const auto a = MakeWorkload(options);
  const auto b = MakeWorkload(options);
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(a->size(), 6u);
  for (size_t i = 0; i < a->size(); ++i) {
    EXPECT_EQ((*a)[i].prompt, (*b)[i].prompt);
    EXPECT_EQ((*a)[i].start_us, (*b)[i].start_us);
    EXPECT_GE((*a)[i].start_us, (*a)[i > 0 ? i - 1 : 0].start_us);
  }
  EXPECT_EQ((*a)[0].prompt.substr(0, 50), (*a)[2].prompt.substr(0, 50));
  EXPECT_NE((*a)[0].prompt.substr(0, 50), (*a)[1].prompt.substr(0, 50));
}

TEST(BenchServe, LengthsLikeShareGptAndExactIds) {
  WorkloadOptions options;
  options.dataset = "sharegpt";
  options.num_prompts = 2000;
  options.vocab_size = 1000;
  const auto items = MakeWorkload(options);
  ASSERT_TRUE(items.ok());
  double in = 0, out = 0;
  for (const WorkItem& item : *items) {
    EXPECT_TRUE(item.prompt.empty());
    for (const int32_t id : item.prompt_ids) EXPECT_TRUE(id >= 250 && id < 750) << id;
    in += static_cast<double>(item.prompt_ids.size()) / 2000;
    out += item.output_len / 2000.0;
  }
  EXPECT_NEAR(in, 180, 30);
  EXPECT_NEAR(out, 235, 30);
  options.dataset = "shared-prefix";
  options.num_prompts = 2;
  options.prefix_len = 40;
  options.input_len = 7;
  const auto shared = MakeWorkload(options);
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ((*shared)[0].prompt_ids.size(), 47u);
  EXPECT_TRUE(std::equal((*shared)[0].prompt_ids.begin(), (*shared)[0].prompt_ids.begin() + 40, (*shared)[1].prompt_ids.begin()));
}

TEST(BenchServe, Files) {
  const std::string path = testing::TempDir() + "bench_serve_dataset";
  WorkloadOptions options;
  options.path = path;
  options.dataset = "sharegpt";
  std::ofstream(path) << R"([{"conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"12345678"}]},{"conversations":[]}])";
  auto items = MakeWorkload(options);
  ASSERT_TRUE(items.ok()) << items.status().ToString();
  ASSERT_EQ(items->size(), 1u);
  EXPECT_EQ((*items)[0].output_len, 2);
  options.dataset = "trace";
  std::ofstream(path) << R"({"timestamp":100,"input_length":600,"output_length":5,"hash_ids":[1,2]})" << "\n"
                      << R"({"timestamp":350,"input_length":3,"output_length":7,"hash_ids":[1]})" << "\n"
                      << R"({"id":"x","path":"/v1/completions","arrival_us":400000,"e2e_us":1,"body":{"prompt":"p"},"choices":[]})" << "\n";
  items = MakeWorkload(options);
  ASSERT_TRUE(items.ok()) << items.status().ToString();
  ASSERT_EQ(items->size(), 3u);
  EXPECT_EQ((*items)[1].start_us, 250'000);
  EXPECT_EQ((*items)[2].body, R"({"prompt":"p"})");
  std::ofstream(path) << "{}\n";
  EXPECT_FALSE(MakeWorkload(options).ok());
  std::ofstream(path) << "[1\n";
  EXPECT_FALSE(MakeWorkload(options).ok());
}

TEST(HttpClient, Urls) {
  const auto url = ParseHttpUrl("http://[::1]:80/a/");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, "80");
  EXPECT_EQ(url->path, "/a");
  EXPECT_EQ(ParseHttpUrl("http://h")->port, "80");
  const auto secure = ParseHttpUrl("https://h/v1");
  ASSERT_TRUE(secure.ok());
  EXPECT_TRUE(secure->tls);
  EXPECT_EQ(secure->port, "443");
  for (const char* wrong : {"", "h:80", "ftp://h", "http://", "http://:5", "https://"}) EXPECT_FALSE(ParseHttpUrl(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace cachalot
