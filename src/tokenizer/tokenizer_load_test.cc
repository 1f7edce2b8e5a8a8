// How tokenizers are loaded: which of several files counts, what ends a generation, what is said of broken
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf.h"
#include "formats/gguf_writer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_testing.h"

namespace cachalot {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Folder, WhichFileCounts) {
  const json definition = ByteLevelJson({}, {Special("<s>"), Special("<|im_end|>"), Special("<|endoftext|>"),
                                             Ordinary("<think>"), Special("<stop>")});
  const TempFolder folder;
  folder.Write("tokenizer.json", definition.dump());
  auto tokenizer = Tokenizer::FromFolder(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->bos_id(), -1);
  EXPECT_EQ((*tokenizer)->eos_id(), -1);
  EXPECT_THAT((*tokenizer)->stop_ids(), ElementsAre(257, 258));
  EXPECT_EQ((*tokenizer)->chat_template(), "");
  EXPECT_FALSE((*tokenizer)->add_bos());
  EXPECT_EQ((*tokenizer)->vocab_size(), 261);

  folder.Write("config.json", R"({"bos_token_id": 256, "eos_token_id": 258})");
  tokenizer = Tokenizer::FromFolder(folder.path());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->bos_id(), 256);
  EXPECT_EQ((*tokenizer)->eos_id(), 258);

  folder.Write("generation_config.json", R"({"eos_token_id": [257, 260, 99999, "x"], "pad_token_id": 258})");
  tokenizer = Tokenizer::FromFolder(folder.path());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->eos_id(), 257);
  EXPECT_EQ((*tokenizer)->pad_id(), 258);
  EXPECT_THAT((*tokenizer)->stop_ids(), ElementsAre(257, 258, 260));

  folder.Write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "<stop>", "add_bos_token": true,
    "additional_special_tokens": ["<think>"], "added_tokens_decoder": {"261": {"content": "<new>", "special": true}},
    "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  tokenizer = Tokenizer::FromFolder(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->eos_id(), 260);
  EXPECT_EQ((*tokenizer)->eos_text(), "<stop>");
  EXPECT_EQ((*tokenizer)->bos_text(), "<s>");
  EXPECT_TRUE((*tokenizer)->add_bos());
  EXPECT_TRUE((*tokenizer)->IsSpecial(259));
  EXPECT_EQ((*tokenizer)->chat_template(), "D");
  EXPECT_EQ((*tokenizer)->named_chat_templates().at("tool_use"), "T");
  EXPECT_THAT(Ids(**tokenizer, "<new>a"), ElementsAre(256, 261, 'a'));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<int32_t>{256, 'a', 260}), "a");

  folder.Write("chat_template.jinja", "J");
  tokenizer = Tokenizer::FromFolder(folder.path());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->chat_template(), "J");
}

// V3.2: the post-processor writes BOS, tokenizer_config.json says no.
TEST(Folder, ConfigurationOutranksPostProcessor) {
  json definition = ByteLevelJson({}, {Special("<s>")});
  definition["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<s>", {{"ids", {256}}}}}}};
  EXPECT_THAT(Ids(*LoadJson(definition, {{"bos_token", "<s>"}}), "a"), ElementsAre(256, 'a'));
  EXPECT_THAT(Ids(*LoadJson(definition, {{"bos_token", "<s>"}, {"add_bos_token", nullptr}}), "a"),
              ElementsAre(256, 'a'));
  EXPECT_THAT(Ids(*LoadJson(definition, {{"bos_token", "<s>"}, {"add_bos_token", false}}), "a"),
              ElementsAre('a'));
}

TEST(Folder, BrokenFilesAreNamed) {
  struct Case {
    const char* path;  // of what is replaced
    json value;
    StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {"/model/type", "Unigram", StatusCode::kUnsupported, "model type 'Unigram'"},
      {"/model/vocab", json::array({{"a", 0.5}}), StatusCode::kUnsupported, "supported are BPE"},
      {"/model/vocab/a", "x", StatusCode::kCorrupt, "the id of 'a'"},
      {"/model/vocab/a", 1.5, StatusCode::kCorrupt, "the id of 'a'"},
      {"/model/vocab/a", -7, StatusCode::kInvalidArgument, "'a' has id -7"},
      {"/model/vocab/a", 1u << 30, StatusCode::kInvalidArgument, "the limit is"},
      {"/model/vocab/a", 98, StatusCode::kInvalidArgument, "both have id 98"},
      {"/model/merges/0", "ab", StatusCode::kCorrupt, "'ab' is not two tokens"},
      {"/model/merges/0", json::array({"a"}), StatusCode::kCorrupt, "fewer than two"},
      {"/model/merges/0", json::array({"a", "b", "c"}), StatusCode::kCorrupt, "more than two"},
      {"/model/merges/0", 3, StatusCode::kCorrupt, "model.merges"},
      {"/model/merges/0", "a zzz", StatusCode::kInvalidArgument, "model.merges[0]: 'a' and 'zzz'"},
      {"/model/continuing_subword_prefix", "##", StatusCode::kUnsupported, "continuing_subword_prefix '##'"},
      {"/model/byte_fallback", 1, StatusCode::kInvalidArgument, "byte_fallback is 1"},
      {"/normalizer", {{"type", "Lowercase"}}, StatusCode::kUnsupported, "normalizer 'Lowercase'"},
      {"/normalizer", 5, StatusCode::kInvalidArgument, "normalizer is 5"},
      {"/normalizer", json::object(), StatusCode::kNotFound, "normalizer has no type"},
      {"/pre_tokenizer",
       {{"type", "BertPreTokenizer"}},
       StatusCode::kUnsupported,
       "pre_tokenizer 'BertPreTokenizer'"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}},
       StatusCode::kInvalidArgument,
       "regular expression '(a'"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "\\b"}}}, {"behavior", "Isolated"}},
       StatusCode::kUnsupported,
       "\\b at byte 0"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Odd"}},
       StatusCode::kUnsupported,
       "behavior 'Odd'"},
      {"/decoder", {{"type", "WordPiece"}}, StatusCode::kUnsupported, "decoder 'WordPiece'"},
      {"/post_processor",
       {{"type", "BertProcessing"}},
       StatusCode::kUnsupported,
       "post_processor 'BertProcessing'"},
      {"/post_processor",
       {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "<x>"}}}}}}},
       StatusCode::kInvalidArgument,
       "'<x>'"},
      {"/added_tokens", 1, StatusCode::kInvalidArgument, "added_tokens"},
      {"/added_tokens", json::array({{{"content", "x"}}}), StatusCode::kInvalidArgument, "without id"},
      {"/added_tokens", json::array({{{"id", 300}, {"content", std::string(2000, 'x')}}}),
       StatusCode::kUnsupported, "2000 bytes"},
  };
  for (const Case& c : cases) {
    json definition = ByteLevelJson({"a b"}, {Special("<s>")});
    definition[json::json_pointer(c.path)] = c.value;
    const TokenizerResult result = FromJson(definition);
    ASSERT_FALSE(result.ok()) << c.path << " " << c.value;
    EXPECT_EQ(result.status().code(), c.code) << result.status().ToString();
    EXPECT_THAT(result.status().message(), HasSubstr(c.message));
    EXPECT_THAT(result.status().message(), HasSubstr("tokenizer.json"));
  }
  const TempFolder folder;
  EXPECT_EQ(Tokenizer::FromFolder(folder.path()).status().code(), StatusCode::kNotFound);
  folder.Write("tokenizer.model", "");
  EXPECT_THAT(Tokenizer::FromFolder(folder.path()).status().message(), HasSubstr("tokenizer.model"));
  for (const char* text : {"", "[", "{\"model\": {\"vocab\": {\"a\": ", "3", "[1, 2]", "{}", "null",
                           "{\"model\": 3}", "{\"model\": {\"vocab\": {}, \"merges\": []}}"}) {
    folder.Write("tokenizer.json", text);
    EXPECT_FALSE(Tokenizer::FromFolder(folder.path()).ok()) << text;
  }
  folder.Write("tokenizer.json", std::string(100000, '['));
  EXPECT_THAT(Tokenizer::FromFolder(folder.path()).status().message(), HasSubstr("deep"));
  folder.Write("tokenizer.json", "{\"model\": {\"vocab\": " + std::string(100000, '['));
  EXPECT_THAT(Tokenizer::FromFolder(folder.path()).status().message(), HasSubstr("an array where a token"));
  folder.Write("tokenizer.json", ByteLevelJson({}).dump());
  folder.Write("tokenizer_config.json", "{\"chat_template\": 3}");
  EXPECT_THAT(Tokenizer::FromFolder(folder.path()).status().message(), HasSubstr("chat_template is 3"));
  folder.Write("tokenizer_config.json", "{");
  EXPECT_THAT(Tokenizer::FromFolder(folder.path()).status().message(), HasSubstr("tokenizer_config.json"));
}

// A GGUF file of two tokens, changed by `change`.
template <typename Change>
TokenizerResult FromTinyGguf(const Change& change) {
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetString("tokenizer.ggml.pre", "qwen2");
  writer.SetStrings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>", "<x>"});
  const int32_t types[] = {1, 1, 1, 1, 3};
  writer.SetI32s("tokenizer.ggml.token_type", types);
  writer.SetStrings("tokenizer.ggml.merges", {"a b"});
  change(&writer);
  const TempFolder folder;
  const std::string path = folder.path() + "/tiny.gguf";
  RETURN_IF_ERROR(writer.Write(path, [](const GgufTensor&, ByteSink&) { return Status::Ok(); }));
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::Open(path));
  return Tokenizer::FromGguf(*file);
}

TEST(Gguf, Settings) {
  TokenizerResult tokenizer = FromTinyGguf([](GgufWriter* w) {
    w->SetU32("tokenizer.ggml.bos_token_id", 4);
    w->SetU32("tokenizer.ggml.eos_token_id", 1);
    w->SetU32("tokenizer.ggml.eot_token_id", 4);
    w->SetU32("tokenizer.ggml.padding_token_id", 4294967295u);
    w->SetBool("tokenizer.ggml.add_bos_token", true);
    w->SetBool("tokenizer.ggml.add_eos_token", true);
    w->SetString("tokenizer.chat_template", "D");
    w->SetStrings("tokenizer.chat_templates", {"rag", "none"});
    w->SetString("tokenizer.chat_template.rag", "R");
  });
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_THAT(Ids(**tokenizer, "abba<|im_end|>"), ElementsAre(4, 2, 1, 0, 3, 1));
  // <|im_end|> ends a generation, whatever its type says.
  EXPECT_THAT((*tokenizer)->stop_ids(), ElementsAre(1, 3, 4));
  EXPECT_TRUE((*tokenizer)->IsSpecial(3));
  EXPECT_TRUE((*tokenizer)->IsControl(3));
  EXPECT_TRUE((*tokenizer)->add_bos());
  EXPECT_EQ((*tokenizer)->pad_id(), -1);
  EXPECT_EQ((*tokenizer)->chat_template(), "D");
  EXPECT_EQ((*tokenizer)->named_chat_templates().size(), 1u);
  EXPECT_EQ((*tokenizer)->description(), "gpt2/qwen2");
}

TEST(Gguf, Llama3AddsBosUnlessToldNotTo) {
  const auto llama3 = [](GgufWriter* w) {
    w->SetString("tokenizer.ggml.pre", "llama-bpe");
    w->SetU32("tokenizer.ggml.bos_token_id", 4);
  };
  EXPECT_TRUE((*FromTinyGguf(llama3))->add_bos());
  const TokenizerResult without = FromTinyGguf([&](GgufWriter* w) {
    llama3(w);
    w->SetBool("tokenizer.ggml.add_bos_token", false);
  });
  EXPECT_FALSE((*without)->add_bos());
}

TEST(Gguf, NormalizesWhereTheOriginalDoes) {
  const json definition = ByteLevelJson({});
  EXPECT_EQ(Ids(**FromJsonAsGguf(definition, "qwen2"), "e\u0301"), BytesAsIds("é"));
  EXPECT_EQ(Ids(**FromJsonAsGguf(definition, "llama-bpe"), "e\u0301"), BytesAsIds("e\u0301"));
}

TEST(Gguf, BrokenFilesAreNamed) {
  const auto expect = [](const TokenizerResult& result, StatusCode code, const char* message) {
    ASSERT_FALSE(result.ok()) << message;
    EXPECT_EQ(result.status().code(), code) << result.status().ToString();
    EXPECT_THAT(result.status().message(), HasSubstr(message));
    EXPECT_THAT(result.status().message(), HasSubstr("tiny.gguf"));
  };
  using W = GgufWriter;
  expect(FromTinyGguf([](W* w) { w->SetString("tokenizer.ggml.model", "bert"); }), StatusCode::kUnsupported,
         "'bert'");
  expect(FromTinyGguf([](W* w) { w->SetString("tokenizer.ggml.pre", "new"); }), StatusCode::kUnsupported,
         "'new' is not known; known are gpt-2,");
  expect(FromTinyGguf([](W* w) { w->SetU32("tokenizer.ggml.pre", 3); }), StatusCode::kInvalidArgument,
         "tokenizer.ggml.pre");
  expect(FromTinyGguf([](W* w) { w->SetU32("tokenizer.ggml.tokens", 3); }), StatusCode::kCorrupt,
         "tokenizer.ggml.tokens");
  expect(FromTinyGguf([](W* w) { w->SetStrings("tokenizer.ggml.tokens", {}); }), StatusCode::kCorrupt,
         "empty");
  expect(FromTinyGguf([](W* w) { w->SetStrings("tokenizer.ggml.tokens", {"a"}); }), StatusCode::kCorrupt,
         "has 5 values for 1 tokens");
  expect(FromTinyGguf([](W* w) { w->SetU32("tokenizer.ggml.merges", 3); }), StatusCode::kCorrupt,
         "tokenizer.ggml.merges");
  expect(FromTinyGguf([](W* w) {
           w->SetStrings("tokenizer.ggml.merges", {"a b", "ab"});
         }),
         StatusCode::kCorrupt, "tokenizer.ggml.merges[1] is 'ab'");
  expect(FromTinyGguf([](W* w) { w->SetString("tokenizer.ggml.bos_token_id", "x"); }),
         StatusCode::kInvalidArgument, "bos_token_id");
}

}  // namespace
}  // namespace cachalot
