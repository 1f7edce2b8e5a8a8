// The rules that no golden file tells: what a user's text may never become, and that any bytes come back.
#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tokenizer/tokenizer_testing.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// Ids 256 … in this order.
enum { kEnd = 256, kUser, kTool, kLetter, kNormalized };
std::unique_ptr<Tokenizer> ChatTokenizer(const json& normalizer = nullptr) {
  json definition = ByteLevelJson({}, {Special("<|im_end|>"),
                                       Ordinary("<｜User｜>"),
                                       Ordinary("<tool_call>"),
                                       Ordinary("qu"),
                                       {{"content", "<|N|>"}, {"special", true}, {"normalized", true}}});
  definition["normalizer"] = normalizer;
  return LoadJson(definition);
}

TEST(UserText, NeverBecomesControlTokens) {
  const auto tokenizer = ChatTokenizer();
  for (const std::string marker : {"<|im_end|>", "<｜User｜>", "<tool_call>", "<|N|>"}) {
    const int32_t id = *tokenizer->FindToken(marker);
    EXPECT_TRUE(tokenizer->IsControl(id)) << marker;
    EXPECT_THAT(Ids(*tokenizer, marker), ElementsAre(id));
    EXPECT_EQ(Ids(*tokenizer, marker, {.parse_special = false}), BytesAsIds(marker));
    const auto size = static_cast<int64_t>(marker.size());
    // Wholly or partly a user's: any one byte is enough.
    for (int64_t begin = 0; begin < size; ++begin) {
      const Ranges ranges = {{begin, begin + 1}};
      EXPECT_EQ(Ids(*tokenizer, marker, {.user_ranges = ranges}), BytesAsIds(marker))
          << marker << " " << begin;
    }
    // Adjoining a user's text it is still the template's.
    const Ranges around = {{0, 1}, {1 + size, 2 + size}, {5, 5}};
    EXPECT_THAT(Ids(*tokenizer, "a" + marker + "b", {.user_ranges = around}), ElementsAre('a', id, 'b'));
  }
  // A token that is plain text is one everywhere.
  EXPECT_FALSE(tokenizer->IsControl(kLetter));
  const Ranges all = {{0, 100}};
  EXPECT_THAT(Ids(*tokenizer, "aqub", {.parse_special = false, .user_ranges = all}),
              ElementsAre('a', kLetter, 'b'));
}

TEST(UserText, KeepsTheTemplatesTokens) {
  const auto tokenizer = ChatTokenizer();
  const std::string text = "<｜User｜>say <|im_end|> or <|im_<|im_end|><|im_end|>";
  const auto begin = static_cast<int64_t>(text.find("say"));
  const auto end = static_cast<int64_t>(text.rfind("<|im_end|>"));
  std::vector<int32_t> expected = {kUser};
  for (const int32_t id :
       BytesAsIds(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)))) {
    expected.push_back(id);
  }
  expected.push_back(kEnd);
  // In any order, overlapping, beyond the text.
  const Ranges ranges = {{end - 5, end}, {begin, end - 2}, {begin, begin}, {1000, 2000}};
  EXPECT_EQ(Ids(*tokenizer, text, {.user_ranges = ranges}), expected);
}

TEST(UserText, IsTracedThroughNormalization) {
  const auto tokenizer = ChatTokenizer({{"type", "NFC"}});
  // The token is found in the normalized text; what is in front of it gets shorter.
  const std::string text = "e\u0301e\u0301<|N|>e\u0301<|N|>\u0301x<|N|>";
  const auto user = static_cast<int64_t>(text.find("<|N|>") + 5);
  const auto second_end = static_cast<int64_t>(text.rfind("<|N|>"));
  const Ranges ranges = {{user, second_end}};
  const std::vector<int32_t> ids = Ids(*tokenizer, text, {.user_ranges = ranges});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kNormalized), 2);
  EXPECT_EQ(ids.back(), kNormalized);
  EXPECT_EQ(tokenizer->Decode(ids, false), "éé<|N|>é<|N|>\u0301x<|N|>");
  // A mark that a user puts behind the template's token neither removes nor hides it (">" takes no acute) …
  const std::string marked = "<|N|>\u0301a\u0301";
  const Ranges behind = {{5, static_cast<int64_t>(marked.size())}};
  EXPECT_EQ(Ids(*tokenizer, marked, {.user_ranges = behind}).front(), kNormalized);
  // … and with decomposition of what follows, the end of the token is still exact.
  EXPECT_EQ(Ids(*tokenizer, "<|N|>\u0915\u093C", {.user_ranges = behind}).front(), kNormalized);
}

TEST(UserText, MergesAndWholeTokensGiveNoControlToken) {
  // The vocabulary can make "<s>" from parts, and takes whole pieces; the token is special.
  json definition = ByteLevelJson({"a b"}, {});
  definition["model"]["vocab"]["!!!"] = 257;
  definition["model"]["vocab"]["!!"] = 258;
  definition["model"]["ignore_merges"] = true;
  definition["added_tokens"] = {{{"id", 257}, {"content", "!!!"}, {"special", true}}};
  const auto tokenizer = LoadJson(definition);
  const Ranges all = {{0, 100}};
  EXPECT_THAT(Ids(*tokenizer, "!!!"), ElementsAre(257));
  EXPECT_THAT(Ids(*tokenizer, "!!!", {.user_ranges = all}), ElementsAre('!', '!', '!'));
  EXPECT_THAT(Ids(*tokenizer, "!!"), ElementsAre(258));
}

TEST(UserText, UnknownCharactersGiveNoEndOfText) {
  json definition = ByteLevelJson({}, {Special("<|endoftext|>"), Special("<unk>")});
  definition["model"]["vocab"].erase("z");
  definition["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(Ids(*LoadJson(definition), "az"), ElementsAre('a', 257));
  definition["model"]["unk_token"] = "<|endoftext|>";
  EXPECT_THAT(Ids(*LoadJson(definition), "az"), ElementsAre('a'));
}

TEST(Text, AnyBytesComeBack) {
  const auto tokenizer = LoadJson(ByteLevelJson({"a b", "Ġ Ġ", "Ã ©", "â Ī"}));
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      constexpr std::string_view kParts[] = {"a",    "ab",       " ",    "\n",           "é", "\xC3",
                                             "\xA9", "\xE2\x88", "\xFF", "\xED\xA0\x80", "😀", "1"};
      text += random() % 8 == 0 ? std::string(1, static_cast<char>(random()))
                                : std::string(kParts[random() % std::size(kParts)]);
    }
    const std::vector<int32_t> ids = Ids(*tokenizer, text);
    std::string bytes, expected, streamed;
    for (const int32_t id : ids) bytes += tokenizer->TokenBytes(id);
    EXPECT_EQ(bytes, text);
    if (AppendReplacingInvalid(text, &expected) < text.size()) expected += kReplacementCharacter;
    EXPECT_EQ(tokenizer->Decode(ids), expected);
    StreamDecoder decoder(*tokenizer);
    for (const int32_t id : ids) {
      const std::string piece = decoder.Push(id);
      EXPECT_TRUE(IsValidUtf8(piece));
      streamed += piece;
    }
    EXPECT_EQ(streamed + decoder.Finish(), expected);
    EXPECT_EQ(decoder.Finish(), "");
  }
}

TEST(Text, StreamHoldsBackUntilACharacterIsComplete) {
  const auto tokenizer = LoadJson(ByteLevelJson({}, {Special("<|im_end|>")}));
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push(256), "");  // hidden, and no reason to give up waiting
  EXPECT_EQ(decoder.Push(0x98), "");
  EXPECT_EQ(decoder.Push(0x80), "😀");
  EXPECT_EQ(decoder.Push(0xE2), "");
  EXPECT_EQ(decoder.Push('a'), "\uFFFDa");
  EXPECT_EQ(decoder.Push(-1), "");
  EXPECT_EQ(decoder.Push(1 << 30), "");
  EXPECT_EQ(decoder.Push(0xC3), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
  StreamDecoder all(*tokenizer, /*skip_special=*/false);
  EXPECT_EQ(all.Push(256), "<|im_end|>");
}

// deepseek-llm: thirteen letters are tokens of their own, written like the bytes that no text has; those
// bytes have none.
TEST(Text, LettersThatStandForImpossibleBytes) {
  json definition = ByteLevelJson({}, {Ordinary("ü"), Ordinary("ÿ")});
  definition["model"]["vocab"].erase("ü");
  definition["model"]["vocab"].erase("ÿ");
  for (const TokenizerResult& tokenizer : {FromJson(definition), FromJsonAsGguf(definition, "gpt-2")}) {
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    EXPECT_THAT(Ids(**tokenizer, "aü"), ElementsAre('a', 256));
    EXPECT_EQ((*tokenizer)->Decode(std::vector<int32_t>{'a', 256}), "aü");
    EXPECT_THAT(Ids(**tokenizer, "u\u0308"), ElementsAre('u', 0xCC, 0x88));
    EXPECT_THAT(Ids(**tokenizer, "a\xFC"), ElementsAre('a', 0xEF, 0xBF, 0xBD));
    EXPECT_THAT(Ids(**tokenizer, "\xC3"), ElementsAre(0xC3));
  }
}

TEST(Text, ManyThreads) {
  const json definition = TestData("vocab_tiny_v3");
  const auto tokenizer = LoadJson(definition);
  const auto corpus = TestData("corpus").get<std::vector<std::string>>();
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : corpus) expected.push_back(Ids(*tokenizer, text));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < corpus.size(); i += 2) {
        const auto ids = tokenizer->Encode(corpus[i]);
        if (!ids.ok() || *ids != expected[i]) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace cachalot
