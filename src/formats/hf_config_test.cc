#include "formats/hf_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace cachalot {
namespace {

HfConfig Parsed(std::string_view text) {
  return HfConfig::Parse(text, "config.json").value();
}

std::string ErrorOf(std::string_view text) {
  return HfConfig::Parse(text, "config.json").status().ToString();
}

TEST(HfConfig, ReadsEachType) {
  const HfConfig config =
      Parsed(R"({"architectures": ["LlamaForCausalLM"], "i": 7, "big": 4096.0, "f": 1e-6, "fi": 3,
      "b": true, "s": "silu", "list": [1, 2], "one": 5, "names": ["a", "b"], "none": null, "sub": {"x": 1}})");
  EXPECT_EQ(config.architectures(), std::vector<std::string>{"LlamaForCausalLM"});
  EXPECT_EQ(*config.Int("i", 1, 7), 7);
  EXPECT_EQ(*config.Int("big", 1, 1 << 20), 4096);
  EXPECT_EQ(*config.Float("f"), 1e-6);
  EXPECT_EQ(*config.Float("fi"), 3.0);
  EXPECT_TRUE(*config.Bool("b"));
  EXPECT_EQ(*config.String("s"), "silu");
  EXPECT_EQ(*config.IntList("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*config.IntList("one"), std::vector<int64_t>{5});
  EXPECT_EQ(*config.StringList("names"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*(*config.Object("sub")).Int("x", 0, 9), 1);
  EXPECT_TRUE(config.Has("i"));
  EXPECT_FALSE(config.Has("none"));
  EXPECT_FALSE(config.Has("absent"));
}

TEST(HfConfig, ADefaultStandsForAbsentAndNullButNotForWrong) {
  const HfConfig config = Parsed(R"({"none": null, "i": "four", "f": [], "b": 1, "s": 2})");
  for (const char* key : {"none", "absent"}) {
    EXPECT_EQ(*config.IntOr(key, 3, 0, 9), 3);
    EXPECT_EQ(*config.FloatOr(key, 0.5), 0.5);
    EXPECT_EQ(*config.BoolOr(key, true), true);
    EXPECT_EQ(*config.StringOr(key, "x"), "x");
  }
  EXPECT_EQ(config.IntOr("i", 3, 0, 9).status().ToString(),
            "invalid_argument: config.json: i = \"four\": must be an integer in 0..9");
  EXPECT_EQ(config.FloatOr("f", 1.0).status().ToString(),
            "invalid_argument: config.json: f = []: must be a finite number");
  EXPECT_EQ(config.BoolOr("b", true).status().ToString(),
            "invalid_argument: config.json: b = 1: must be true or false");
  EXPECT_EQ(config.StringOr("s", "").status().ToString(),
            "invalid_argument: config.json: s = 2: must be a string");
}

TEST(HfConfig, ErrorsNameFileFieldValueAndLimits) {
  const HfConfig config = Parsed(R"({"n": 0, "m": 18446744073709551615, "h": 1.5, "huge": 1e300, "f": -2.5,
      "l": [1, 2, 300], "w": ["a", 1], "sub": {"factor": "x"}})");
  EXPECT_EQ(config.Int("n", 1, 64).status().message(), "config.json: n = 0: must be an integer in 1..64");
  EXPECT_EQ(config.Int("m", 1, INT64_MAX).status().message(),
            "config.json: m = 18446744073709551615: must be an integer of at least 1");
  EXPECT_EQ(config.Int("h", 0, 9).status().message(), "config.json: h = 1.5: must be an integer in 0..9");
  EXPECT_FALSE(config.Int("huge", INT64_MIN, INT64_MAX).ok());
  EXPECT_EQ(config.Float("f", 0, 1).status().message(), "config.json: f = -2.5: must be a number in 0..1");
  EXPECT_EQ(config.Int("gone", 1, 2).status().ToString(),
            "not_found: config.json: gone is missing, it must be an integer in 1..2");
  EXPECT_EQ(config.IntList("l", 0, 255).status().message(),
            "config.json: l[2] = 300: must be an integer in 0..255");
  EXPECT_EQ(config.StringList("w").status().message(), "config.json: w[1] = 1: must be a string");
  EXPECT_EQ(config.Object("n").status().message(), "config.json: n = 0: must be an object");
  EXPECT_EQ((*config.Object("sub")).Float("factor").status().message(),
            "config.json: sub: factor = \"x\": must be a finite number");
}

TEST(HfConfig, RefusesWhatIsNoConfig) {
  EXPECT_EQ(ErrorOf("[1]"), "corrupt: config.json: holds array, not an object");
  EXPECT_EQ(ErrorOf(R"({"architectures": "Llama"})"), "ok");  // one name counts as a list of one
  EXPECT_EQ(ErrorOf(R"({"architectures": [1]})"),
            "invalid_argument: config.json: architectures[0] = 1: must be a string");
  EXPECT_EQ(ErrorOf(R"({"rope_scaling": 3})"),
            "invalid_argument: config.json: rope_scaling = 3: must be an object");
  EXPECT_NE(ErrorOf("{").find("corrupt: config.json: no valid JSON at byte"), std::string::npos);
  EXPECT_EQ(HfConfig::Load("/nonexistent").status().code(), StatusCode::kNotFound);
}

TEST(HfConfig, PresentsTheFifthSpellingAsTheClassicOne) {
  const HfConfig plain = Parsed(R"({"dtype": "bfloat16",
      "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5}})");
  EXPECT_EQ(*plain.Float("rope_theta"), 500000.0);
  EXPECT_EQ(*plain.Float("partial_rotary_factor"), 0.5);
  EXPECT_FALSE(plain.Has("rope_scaling"));
  EXPECT_EQ(*plain.String("torch_dtype"), "bfloat16");

  const HfConfig yarn = Parsed(R"({"rope_theta": 1.0,
      "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40}})");
  EXPECT_EQ(*yarn.Float("rope_theta"), 10000.0);
  const HfConfig scaling = *yarn.Object("rope_scaling");
  EXPECT_EQ(*scaling.String("rope_type"), "yarn");
  EXPECT_EQ(*scaling.Float("factor"), 40.0);
  EXPECT_FALSE(scaling.Has("rope_theta"));
}

TEST(HfConfig, ClassicSpellingStaysAndOldTypeGetsItsNewName) {
  const HfConfig config = Parsed(R"({"torch_dtype": "float16", "dtype": "float32", "rope_theta": 10000,
      "rope_scaling": {"type": "linear", "factor": 2.0}})");
  EXPECT_EQ(*config.String("torch_dtype"), "float16");
  EXPECT_EQ(*config.Float("rope_theta"), 10000.0);
  EXPECT_EQ(*(*config.Object("rope_scaling")).String("rope_type"), "linear");
  const HfConfig off = Parsed(R"({"rope_theta": 10000.0, "rope_scaling": {"type": "default"}})");
  EXPECT_FALSE(off.Has("rope_scaling"));
}

TEST(HfConfig, RopePerLayerTypeIsRefusedButReadable) {
  const HfConfig config = Parsed(R"({"rope_theta": 10000.0, "rope_parameters": {
      "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}})");
  EXPECT_TRUE(config.has_rope_per_layer_type());
  EXPECT_EQ(config.Float("rope_theta").status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(config.FloatOr("rope_theta", 1.0).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(config.Object("rope_scaling").status().ToString(),
            "unsupported: config.json: rope_scaling is given per layer type in rope_parameters, which is not "
            "supported "
            "for this model");
  const HfConfig full = *(*config.Object("rope_parameters")).Object("full_attention");
  EXPECT_EQ(full.place(), "config.json: rope_parameters: full_attention");
  EXPECT_EQ(*full.Float("rope_theta"), 1000000.0);
}

TEST(HfConfig, ReadsTheSharedConfigs) {
  const std::string golden = std::string(CACHALOT_SOURCE_DIR) + "/../shared/golden";
  if (!IsDirectory(golden)) GTEST_SKIP() << golden << " is not there";
  int num_read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    if (!entry.is_directory()) continue;
    auto config = HfConfig::Load(entry.path().string());
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_EQ(config->architectures().size(), 1u);
    EXPECT_EQ(*config->Int("vocab_size", 1, 1 << 20), 320);
    const bool per_layer_type = entry.path().filename() == "deepseek-v4";
    EXPECT_EQ(config->has_rope_per_layer_type(), per_layer_type);
    EXPECT_EQ(config->Float("rope_theta").ok(), !per_layer_type);
    ++num_read;
  }
  EXPECT_GT(num_read, 5);
}

}  // namespace
}  // namespace cachalot
