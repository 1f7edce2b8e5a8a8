#include "tokenizer/chat/json_prefix.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace cachalot {
namespace {

// Wherever an object is cut off, Rest() completes it.
TEST(JsonPrefix, EveryBeginningIsCompleted) {
  for (const std::string text : {
           R"({})", R"( {"a":1})", R"({"a": [1, -2.5e+10, 0, 0.25, 1E3, -0], "b": {"c": {}}, "d": []})",
           R"({"\"q\\\u00e9": "\n\/ \ud83d\ude00", "": "ß"})", R"({ "t" : true , "f" : false , "n" : null , "x" : [ [ ] , { } ] })"}) {
    JsonPrefix prefix;
    for (size_t i = 0; i < text.size(); ++i) {
      const std::string whole = text.substr(0, i) + prefix.Rest();
      const bool whole_text = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;  // not within a character
      EXPECT_TRUE(!whole_text || nlohmann::json::accept(whole)) << whole;
      EXPECT_FALSE(prefix.complete()) << text.substr(0, i);
      ASSERT_TRUE(prefix.Push(text[i])) << text.substr(0, i + 1);
    }
    EXPECT_TRUE(prefix.complete());
    EXPECT_EQ(prefix.Rest(), "");
  }
}

TEST(JsonPrefix, WhatNoObjectGoesOnLikeIsRefused) {
  const auto refused = [](std::string_view text) {
    JsonPrefix prefix;
    for (size_t i = 0; i < text.size(); ++i) {
      if (!prefix.Push(text[i])) return i + 1 == text.size();
    }
    return false;
  };
  for (const char* text : {"[", "x", "\"", "{1", "{,", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":01", "{\"a\":-}", "{\"a\":1.}", "{\"a\":.",
                           "{\"a\":1e}", "{\"a\":+", "{\"a\":tr}", "{\"a\":[1,]", "{\"a\":[1}", "{\"a\":\"\n", "{\"a\":\"\\x", "{\"a\":\"\\u00g",
                           "{}x", "{\"a\":1 2", "{\"a\":1]"}) {
    EXPECT_TRUE(refused(text)) << text;
  }
  JsonPrefix deep;
  std::string text = "{\"a\":" + std::string(JsonPrefix::kMaxDepth, '[');
  for (size_t i = 0; i + 1 < text.size(); ++i) ASSERT_TRUE(deep.Push(text[i]));
  EXPECT_FALSE(deep.Push('['));
}

// Bytes at random: what is taken can always be completed.
TEST(JsonPrefix, WhateverIsTakenCanBeCompleted) {
  std::mt19937 rng(7);
  constexpr std::string_view kBytes = "{}[]\",:\\ut10.-+eE \nfalsenr";
  for (int round = 0; round < 3000; ++round) {
    JsonPrefix prefix;
    std::string taken;
    for (int i = 0; i < 200 && !prefix.complete(); ++i) {
      const char c = kBytes[rng() % kBytes.size()];
      if (prefix.Push(c)) taken += c;
      if (i % 8 == 0) {
        EXPECT_TRUE(nlohmann::json::accept(taken + prefix.Rest())) << taken << " | " << prefix.Rest();
      }
    }
    EXPECT_TRUE(nlohmann::json::parse(taken + prefix.Rest()).is_object());
  }
}

}  // namespace
}  // namespace cachalot
