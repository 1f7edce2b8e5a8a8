#include "server/record.h"

#include <gtest/gtest.h>

#include <fstream>

#include "server/request_log.h"

namespace cachalot {
namespace {

TEST(Record, RoundTrip) {
  Request request;
  request.prompt_ids = {1, 2, 3};
  request.sampling = {.temperature = 0.7f, .top_k = 5, .seed = 0xffff'ffff'ffff'ffffu, .logit_bias = {{4, -1.5f}},
                      .suppressed_ids = {}};
  request.max_tokens = 7;
  request.stop_strings = {"ü\n"};
  request.stop_ids = {9};
  request.bad_words = {{7}, {8, 9}};
  Choice choice;
  choice.token_ids = {5, 6};
  choice.text = "ab\xff";
  choice.finish_reason = FinishReason::kLength;
  HttpRequest http;
  http.path = "/v1/completions";
  http.body = R"({"prompt":"x"})";
  const std::string line = RecordLine("id-1", http, 123, 456, {request}, {&choice});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Result<RecordedRequest> read = ParseRecordLine(line, "line");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->id, "id-1");
  EXPECT_EQ(read->arrival_us, 123);
  EXPECT_EQ(read->body, http.body);
  ASSERT_EQ(read->choices.size(), 1u);
  EXPECT_EQ(read->choices[0].request.prompt_ids, request.prompt_ids);
  EXPECT_EQ(read->choices[0].request.sampling.seed, request.sampling.seed);
  EXPECT_EQ(read->choices[0].request.sampling.temperature, 0.7f);
  EXPECT_EQ(read->choices[0].request.stop_strings, request.stop_strings);
  EXPECT_EQ(read->choices[0].request.bad_words, request.bad_words);
  EXPECT_EQ(read->choices[0].token_ids, choice.token_ids);
  EXPECT_EQ(read->choices[0].finish_reason, "length");
}

// A server was killed while it wrote; the next one went on behind that.
TEST(Record, TornLinesAreLeftOut) {
  Choice choice;
  HttpRequest http;
  http.path = "/v1/completions";
  const std::string line = RecordLine("id", http, 1, 2, {Request()}, {&choice});
  const std::string path = testing::TempDir() + "torn.jsonl";
  std::ofstream(path) << line << "\n" << line.substr(0, line.size() - 20);
  EXPECT_EQ(ReadRecords(path)->size(), 1u);
  LineWriter::Open(path).value()->Write(line);
  LineWriter::Open(path).value()->Write(line);
  const auto records = ReadRecords(path);
  ASSERT_TRUE(records.ok()) << records.status().ToString();
  EXPECT_EQ(records->size(), 3u);
  std::ofstream(path) << "no record";
  EXPECT_EQ(ReadRecords(path).status().code(), StatusCode::kCorrupt);
}

TEST(Record, DamagedLinesAreErrors) {
  for (const char* line : {"{", "[]", "{}", R"({"id":1})", R"({"id":"a","path":"/","arrival_us":0,"e2e_us":0,"body":{},"choices":[{}]})"}) {
    const auto read = ParseRecordLine(line, "file:3");
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_NE(read.status().message().find("file:3"), std::string::npos);
  }
}

}  // namespace
}  // namespace cachalot
