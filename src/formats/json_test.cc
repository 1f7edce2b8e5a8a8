#include "formats/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cachalot {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Status ErrorOf(std::string_view text, JsonLimits limits = {}) {
  return ParseJson(text, "a.json", limits).status();
}

TEST(Json, ReadsWhatTheLibraryReads) {
  for (const char* text :
       {"null", "true", "-1", "18446744073709551615", "1.5e3", R"("ä\u00e4\n")", "[]", "{}",
        "[[],{},[1,[2,{}]],3]", R"({"a": {"b": [1, 2, {"c": null}], "d": "e"}, "f": [false]})",
        "\xef\xbb\xbf{\"bom\": 1}"}) {
    auto value = ParseJson(text, "a.json");
    ASSERT_TRUE(value.ok()) << text << ": " << value.status().ToString();
    EXPECT_EQ(*value, nlohmann::json::parse(text)) << text;
  }
}

TEST(Json, TheLastOfEqualKeysCountsUnlessForbidden) {
  constexpr std::string_view kText = R"({"a": [1], "b": 2, "a": {"c": 3}})";
  EXPECT_EQ((*ParseJson(kText, "a.json"))["a"]["c"], 3);
  const Status status = ErrorOf(kText, {.unique_keys = true});
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "a.json: key 'a' is given twice");
}

TEST(Json, BoundsDepth) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(ErrorOf(nested(64)).ok());
  EXPECT_EQ(ErrorOf(nested(65)).message(), "a.json: JSON nested more than 64 deep");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(ErrorOf(objects).message(), "a.json: JSON nested more than 64 deep");
}

TEST(Json, BoundsSizeAndNumberOfValues) {
  EXPECT_EQ(ErrorOf("[1, 2]", {.max_bytes = 5}).message(), "a.json: 6 bytes of JSON, the limit is 5");
  EXPECT_TRUE(ErrorOf("[1, 2, 3]", {.max_values = 4}).ok());
  EXPECT_EQ(ErrorOf("[1, 2, 3, 4]", {.max_values = 4}).message(), "a.json: more than 4 JSON values");
}

TEST(Json, NamesThePlaceOfWhatIsWrong) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\" 1}", "nul", "NaN", "[Infinity]", "1e999", "\"\\x\"", "\"open", "[1] 2",
        "\"\x80\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\\ud800\"", "\"\n\"", "{1: 2}"}) {
    const Status status = ErrorOf(text);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << text;
    EXPECT_THAT(status.message(), StartsWith("a.json: no valid JSON at byte ")) << text;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }
  EXPECT_THAT(ErrorOf("[1, 2, oops]").message(), HasSubstr("line 1, column 8"));
  EXPECT_LT(ErrorOf('"' + std::string(100'000, 'a') + "\x01").message().size(), 400u);
}

TEST(Json, ReadsFilesUnderTheLimit) {
  EXPECT_EQ(ParseJsonFile("/nonexistent.json").status().code(), StatusCode::kNotFound);
  const std::string path = ::testing::TempDir() + "/cachalot_json_test.json";
  FILE* file = std::fopen(path.c_str(), "w");
  std::fputs("[1, 2, 3]", file);
  std::fclose(file);
  EXPECT_EQ((*ParseJsonFile(path)).size(), 3u);
  EXPECT_THAT(ParseJsonFile(path, {.max_bytes = 3}).status().message(), HasSubstr("the limit is 3"));
  std::remove(path.c_str());
}

TEST(Json, PreviewIsShortAndOnOneLine) {
  EXPECT_EQ(JsonPreview(nlohmann::json("a\nb")), "\"a\\x0ab\"");
  EXPECT_EQ(JsonPreview(nlohmann::json::parse("[1, [2], {\"a\": 3}]")), "[1, …, …]");
  EXPECT_EQ(JsonPreview(nlohmann::json::parse("{\"a\": 3}")), "an object of 1");
  EXPECT_EQ(JsonPreview(1.5), "1.5");
  EXPECT_LT(JsonPreview(nlohmann::json(std::vector<int>(100'000, 7))).size(), 80u);
}

}  // namespace
}  // namespace cachalot
