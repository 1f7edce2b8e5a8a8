// Windows, token inputs, statistics, file listings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/file.h"
#include "formats/safetensors_writer.h"
#include "tasks/model_files.h"
#include "tasks/ppl_windows.h"
#include "tasks/read_bandwidth.h"
#include "tasks/spread.h"
#include "tasks/token_input.h"

namespace cachalot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Count(int32_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

std::string TempPath(const std::string& name) {
  return ::testing::TempDir() + "cachalot_tasks_" + name;
}

TEST(PplWindowsTest, ChunksScoreTheirSecondHalf) {
  const auto chunks = CutChunks(Count(21), 8, 1).value();
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_THAT(chunks[1].tokens, ElementsAre(1, 109, 110, 111, 112, 113, 114, 115));
  // Log-probabilities 4, 5, 6 belong to tokens 5, 6, 7: context - 1 - context / 2 of them.
  EXPECT_EQ(chunks[0].first_scored, 4);
  EXPECT_EQ(chunks[0].num_scored(), 3);
  EXPECT_EQ(CutChunks(Count(8), 8, -1).value()[0].tokens[0], 100);
  EXPECT_THAT(CutChunks(Count(7), 8, 1).status().message(), HasSubstr("7 tokens"));
  EXPECT_FALSE(CutChunks(Count(7), 3, 1).ok());
}

TEST(PplWindowsTest, WindowsScoreEveryToken) {
  const auto windows = CutWindows(Count(16368), 1024, 0).value();
  EXPECT_EQ(windows.size(), 16u);
  int64_t scored = 0;
  for (const auto& window : windows) {
    EXPECT_EQ(window.tokens[0], 0);
    scored += window.num_scored();
  }
  EXPECT_EQ(scored, 16368);
  const auto three = CutWindows(Count(7), 4, 5).value();
  ASSERT_EQ(three.size(), 3u);
  EXPECT_THAT(three[2].tokens, ElementsAre(5, 106));
  EXPECT_FALSE(CutWindows(Count(7), 4, -1).ok());
  EXPECT_FALSE(CutWindows(Count(7), 1, 0).ok());
  EXPECT_FALSE(CutWindows({}, 4, 0).ok());
}

TEST(PplTotalsTest, MeanAndError) {
  PplTotals totals;
  EXPECT_EQ(totals.nll_error(), 0.0);
  totals.Add(std::vector<float>{-1.0f, -2.0f});
  totals.Add(std::vector<float>{-3.0f});
  EXPECT_EQ(totals.count(), 3);
  EXPECT_DOUBLE_EQ(totals.mean_nll(), 2.0);
  EXPECT_DOUBLE_EQ(totals.perplexity(), std::exp(2.0));
  EXPECT_NEAR(totals.nll_error(), std::sqrt((14.0 / 3 - 4.0) / 2), 1e-12);
}

TEST(TokenInputTest, ListsAndFiles) {
  EXPECT_THAT(ReadTokenIds("1,2, 3").value(), ElementsAre(1, 2, 3));
  EXPECT_TRUE(ReadTokenIds("").value().empty());
  for (const char* bad : {"1,-2", "1;2", "abc", "99999999999", "1.5"})
    EXPECT_FALSE(ReadTokenIds(bad).ok()) << bad;
  const std::string json = TempPath("tokens.json");
  ASSERT_TRUE(WriteFileAtomically(json, R"({"tokens": [5, 6]})").ok());
  EXPECT_THAT(ReadTokenIds(json).value(), ElementsAre(5, 6));
  ASSERT_TRUE(WriteFileAtomically(json, "[7]").ok());
  EXPECT_THAT(ReadTokenIds(json).value(), ElementsAre(7));
  for (const char* bad : {"{}", "[-1]", "[\"a\"]", "[1e99]", "nonsense"}) {
    ASSERT_TRUE(WriteFileAtomically(json, bad).ok());
    EXPECT_THAT(ReadTokenIds(json).status().message(), HasSubstr(json)) << bad;
  }
  EXPECT_FALSE(ReadTokenIds(TempPath("absent.json")).ok());
}

TEST(TokenInputTest, Safetensors) {
  SafetensorsWriter writer;
  const int64_t dims[] = {3};
  ASSERT_TRUE(writer.AddTensor("tokens", DType::kI64, dims).ok());
  ASSERT_TRUE(writer.AddTensor("other", DType::kI32, dims).ok());
  ASSERT_TRUE(writer.AddTensor("floats", DType::kF32, dims).ok());
  const std::string path = TempPath("tokens.safetensors");
  ASSERT_TRUE(writer
                  .WriteFile(path,
                             [](const SafetensorsTensor& tensor, ByteSink& sink) -> Status {
                               const int64_t wide[] = {9, 8, 7};
                               const int32_t narrow[] = {1, 2, 3};
                               return tensor.name == "tokens" ? sink.Append(std::as_bytes(std::span(wide)))
                                                              : sink.Append(std::as_bytes(std::span(narrow)));
                             })
                  .ok());
  EXPECT_THAT(ReadTokenIds(path).value(), ElementsAre(9, 8, 7));
  EXPECT_THAT(ReadTokenIds(path + ":other").value(), ElementsAre(1, 2, 3));
  EXPECT_THAT(ReadTokenIds(path + ":absent").status().message(), HasSubstr("absent"));
  EXPECT_THAT(ReadTokenIds(path + ":floats").status().message(), HasSubstr("F32"));
}

TEST(SpreadTest, MedianAndQuartiles) {
  const Spread spread = SpreadOf({5, 1, 3, 2, 4});
  EXPECT_DOUBLE_EQ(spread.median, 3);
  EXPECT_DOUBLE_EQ(spread.iqr, 2);
  EXPECT_DOUBLE_EQ(SpreadOf({1, 2}).median, 1.5);
  EXPECT_DOUBLE_EQ(SpreadOf({7}).max, 7);
}

TEST(ReadBandwidthTest, IsPlausible) {
  ThreadPool pool(2);
  const auto bandwidth = MeasureReadBandwidth(pool, 8 << 20, 2);
  ASSERT_TRUE(bandwidth.ok());
  EXPECT_GT(*bandwidth, 1e7);
  EXPECT_LT(*bandwidth, 1e14);
}

TEST(ModelFilesTest, DummyWithoutFiles) {
  const auto files = ListDummyFiles("deepseek-v3", 0, "").value();
  EXPECT_EQ(files.types[0].dtype, DType::kFP8E4M3);
  EXPECT_NEAR(static_cast<double>(files.tensor_bytes()) / 1e9, 689.0, 5.0);
  EXPECT_FALSE(ListDummyFiles("nothing", 0, "").ok());
  EXPECT_FALSE(ListModelFiles(TempPath("absent.gguf")).ok());
}

}  // namespace
}  // namespace cachalot
