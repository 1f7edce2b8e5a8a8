// What clients send, right and wrong, against a model that has only its tokenizer and template.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "server/api/chat_request.h"
#include "server/api/completion_request.h"
#include "server/api/json_text.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using testing::HasSubstr;

class RequestParsing : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ModelOptions options;
    options.dummy = "tiny-llama";
    options.context = 256;
    Result<ModelBundle> bundle = PlanModel(options);
    ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = new ModelBundle(std::move(*bundle));
    ASSERT_NE(bundle_->tokenizer, nullptr);
    facts_ = new ModelFacts;
    facts_->names = {"tiny", "alias"};
    facts_->vocab_size = bundle_->tokenizer->vocab_size();
    facts_->max_context = 256;
    facts_->stop_ids.assign(bundle_->tokenizer->stop_ids().begin(), bundle_->tokenizer->stop_ids().end());
  }
  static void TearDownTestSuite() {
    delete bundle_;
    delete facts_;
  }

  static std::optional<ApiError> Parse(bool chat, const std::string& body, GenerationParams* params) {
    ChatJson json;
    if (auto error = ParseBody(body, &json)) return error;
    *params = {};
    return chat ? ParseChatRequest(json, *bundle_, *facts_, params) : ParseCompletionRequest(json, *bundle_, *facts_, params);
  }
  static GenerationParams Chat(const std::string& fields) {
    GenerationParams params;
    const auto error = Parse(true, R"({"messages":[{"role":"user","content":"taneba"}])" + fields + "}", &params);
    EXPECT_FALSE(error.has_value()) << fields << ": " << error->message;
    return params;
  }
  static GenerationParams Complete(const std::string& fields) {
    GenerationParams params;
    const auto error = Parse(false, R"({"prompt":"taneba")" + fields + "}", &params);
    EXPECT_FALSE(error.has_value()) << fields << ": " << error->message;
    return params;
  }
  // The error for a wrong field beside a good request.
  static ApiError Wrong(bool chat, const std::string& fields) {
    GenerationParams params;
    const std::string good = chat ? R"("messages":[{"role":"user","content":"taneba"}])" : R"("prompt":"taneba")";
    const auto error = Parse(chat, "{" + good + "," + fields + "}", &params);
    EXPECT_TRUE(error.has_value()) << fields << " was accepted";
    return error.value_or(ApiError{});
  }

  static inline ModelBundle* bundle_ = nullptr;
  static inline ModelFacts* facts_ = nullptr;
};

TEST_F(RequestParsing, BadWords) {
  const GenerationParams params = Complete(R"(,"bad_words":["neba"," neba","ta"])");
  const auto encode = [](const char* text) { return *bundle_->tokenizer->Encode(text, {.add_special = false}); };
  const std::vector<std::vector<int32_t>> want = {encode("neba"), encode(" neba"), encode("ta"), encode(" ta")};
  EXPECT_EQ(params.bad_word_ids, want);
  EXPECT_EQ(MakeEngineRequest(params, *facts_, 0).bad_words, want);
  EXPECT_EQ(Chat(R"(,"bad_words":"neba")").bad_word_ids.size(), 2u);
  EXPECT_TRUE(Complete(R"(,"bad_words":[])").bad_word_ids.empty());
  EXPECT_THAT(Wrong(false, R"("bad_words":[3])").message, HasSubstr("bad_words[0] is 3"));
  EXPECT_THAT(Wrong(true, R"("bad_words":[""])").message, HasSubstr("bad_words[0]"));
  EXPECT_THAT(Wrong(true, "\"bad_words\":[\"" + std::string(1025, 'a') + "\"]").message, HasSubstr("1025"));
}

TEST_F(RequestParsing, Defaults) {
  const GenerationParams chat = Chat("");
  EXPECT_EQ(chat.sampling.temperature, 1.0f);
  EXPECT_EQ(chat.sampling.top_p, 1.0f);
  EXPECT_EQ(chat.max_tokens, -1);
  EXPECT_EQ(chat.num_top_logprobs, -1);
  EXPECT_FALSE(chat.stream);
  EXPECT_EQ(chat.model, "tiny");
  EXPECT_EQ(Complete("").max_tokens, 16);
  const Request request = MakeEngineRequest(chat, *facts_, 0);
  EXPECT_EQ(request.max_tokens, 256 - static_cast<int32_t>(request.prompt_ids.size()));
  EXPECT_EQ(request.stop_ids, facts_->stop_ids);
}

TEST_F(RequestParsing, EveryFieldArrives) {
  const GenerationParams params = Chat(
      R"(,"model":"alias","temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"presence_penalty":-1,"frequency_penalty":2,
      "repetition_penalty":1.1,"seed":42,"logit_bias":{"5":-100,"6":3.5},"stop":["a","b"],"stop_token_ids":[3],"n":2,"stream":true,
      "stream_options":{"include_usage":true},"max_tokens":9,"max_completion_tokens":8,"logprobs":true,"top_logprobs":3,
      "priority":-4,"cache_salt":"s","user":"u","response_format":{"type":"text"},"tools":[],"unknown":{"x":1})");
  EXPECT_EQ(params.model, "alias");
  EXPECT_EQ(params.sampling.temperature, 0.5f);
  EXPECT_EQ(params.sampling.top_k, 7);
  EXPECT_EQ(params.sampling.seed, 42u);
  ASSERT_EQ(params.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(params.sampling.logit_bias[1].bias, 3.5f);
  EXPECT_EQ(params.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(params.max_tokens, 8);
  EXPECT_EQ(params.num_top_logprobs, 3);
  EXPECT_TRUE(params.stream && params.include_usage);
  EXPECT_EQ(params.priority, -4);
  EXPECT_EQ(params.num_choices(), 2);
  const Request request = MakeEngineRequest(params, *facts_, 0);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.stop_ids.back(), 3);
  EXPECT_EQ(request.cache_salt, "/s");
}

TEST_F(RequestParsing, NullIsAbsent) {
  const GenerationParams params = Chat(R"(,"temperature":null,"stop":null,"n":null,"seed":null,"tools":null,"response_format":null)");
  EXPECT_EQ(params.n, 1);
  EXPECT_TRUE(params.stop_strings.empty());
  EXPECT_EQ(Complete(R"(,"logprobs":null,"max_tokens":null)").max_tokens, 16);
}

TEST_F(RequestParsing, WrongFieldsNameFieldValueAndLimit) {
  struct {
    const char* fields;
    const char* param;
    const char* text;
  } const cases[] = {
      {R"("temperature":-0.5)", "temperature", "-0.5"},
      {R"("temperature":"hot")", "temperature", "a number"},
      {R"("temperature":1e999)", "", "JSON"},
      {R"("top_p":1.5)", "top_p", "1.5"},
      {R"("top_k":1.5)", "top_k", "1.5"},
      {R"("max_tokens":0)", "max_tokens", "0"},
      {R"("max_tokens":99999999999)", "max_tokens", "99999999999"},
      {R"("max_tokens":true)", "max_tokens", "true"},
      {R"("n":0)", "n", "0"},
      {R"("n":100000)", "n", "128"},
      {R"("stop":[""])", "stop", "0 bytes"},
      {R"("stop":[1])", "stop[0]", "1"},
      {R"("stop":{})", "stop", "an object"},
      {R"("logit_bias":{"x":1})", "logit_bias", "\"x\""},
      {R"("logit_bias":{"1000000":1})", "logit_bias", "1000000"},
      {R"("logit_bias":{"1":1000})", "logit_bias", "1000"},
      {R"("logit_bias":[])", "logit_bias", "list"},
      {R"("logit_bias":{"5":-100,"6":1,"05":3})", "logit_bias", "token 5 twice"},
      {R"("logit_bias":{"-0":1,"0":3})", "logit_bias", "token 0 twice"},
      {R"("top_logprobs":5)", "top_logprobs", "logprobs: true"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "21"},
      {R"("stream":"yes")", "stream", "yes"},
      {R"("stream_options":{"include_usage":true})", "stream_options", "stream: true"},
      {R"("stream":true,"stream_options":3)", "stream_options", "3"},
      {R"("seed":"x")", "seed", "x"},
      {R"("seed":1.5)", "seed", "1.5"},
      {R"("user":5)", "user", "5"},
      {R"("response_format":{"type":"json_schema"})", "response_format", "json_schema"},
      {R"("response_format":7)", "response_format", "7"},
      {R"("tools":[{"type":"function"}])", "tools[0].function", "object"},
      {R"("guided_json":{"a":1})", "guided_json", "not supported"},
      {R"("chat_template":"x")", "chat_template", "own template"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs", "list"},
      {R"("min_tokens":4,"max_tokens":3)", "min_tokens", "4"},
      {R"("min_tokens":-1)", "min_tokens", "-1"},
      {R"("prompt_logprobs":21)", "prompt_logprobs", "21"},
      {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", "stream"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens", "0"},
      {R"("include_stop_str_in_output":1)", "include_stop_str_in_output", "1"},
      {R"("return_token_ids":"yes")", "return_token_ids", "yes"},
      {R"("cache_salt":"")", "cache_salt", "empty"},
      {R"("skip_special_tokens":0)", "skip_special_tokens", "true or false"},
      {R"("use_beam_search":true)", "use_beam_search", "beam"},
  };
  for (const auto& c : cases) {
    const ApiError error = Wrong(true, c.fields);
    EXPECT_EQ(error.status, 400) << c.fields;
    EXPECT_EQ(error.param, c.param) << c.fields;
    EXPECT_THAT(error.message, HasSubstr(c.text)) << c.fields;
  }
  EXPECT_EQ(Wrong(true, R"("model":"gpt-4")").status, 404);
  EXPECT_EQ(Wrong(true, R"("model":"gpt-4")").code, "model_not_found");
}

TEST_F(RequestParsing, Messages) {
  const char* const wrong[] = {
      R"({})",
      R"({"messages":null})",
      R"({"messages":[]})",
      R"({"messages":"hello"})",
      R"({"messages":[1]})",
      R"({"messages":[{}]})",
      R"({"messages":[{"role":"robot","content":"x"}]})",
      R"({"messages":[{"role":5,"content":"x"}]})",
      R"({"messages":[{"role":"user"}]})",
      R"({"messages":[{"role":"user","content":null}]})",
      R"({"messages":[{"role":"user","content":5}]})",
      R"({"messages":[{"role":"user","content":[5]}]})",
      R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
      R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
      R"({"messages":[{"role":"assistant","content":"x","tool_calls":7}]})",
      R"([])", R"("x")", "", "{", "\xff", R"({"messages":[{"role":"user","content":"x"}],"documents":"d"})",
  };
  GenerationParams params;
  for (const char* body : wrong) {
    const auto error = Parse(true, body, &params);
    ASSERT_TRUE(error.has_value()) << body;
    EXPECT_EQ(error->status, 400) << body;
    EXPECT_FALSE(error->message.empty());
  }
  const auto ids = [&](const char* body) {
    const auto error = Parse(true, body, &params);
    EXPECT_FALSE(error.has_value()) << body << ": " << error->message;
    return params.prompts.empty() ? std::vector<int32_t>{} : params.prompts[0].ids;
  };
  const auto plain = ids(R"({"messages":[{"role":"system","content":"be"},{"role":"user","content":"taneba"}]})");
  EXPECT_EQ(ids(R"({"messages":[{"role":"developer","content":"be"},{"role":"user","content":[{"type":"text","text":"taneba"}]}]})"), plain);
  EXPECT_FALSE(ids(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null},{"role":"user","content":""}]})").empty());
}

TEST_F(RequestParsing, Prompts) {
  const char* const wrong[] = {
      R"({})",           R"({"prompt":null})",      R"({"prompt":[]})",       R"({"prompt":5})",
      R"({"prompt":{}})", R"({"prompt":[[]]})",     R"({"prompt":[1,"a"]})",  R"({"prompt":["a",1]})",
      R"({"prompt":[-1]})", R"({"prompt":[1.5]})",  R"({"prompt":[[99999999]]})", R"({"prompt":[99999999999999999999]})",
      R"({"prompt":"a","best_of":2,"n":3})",        R"({"prompt":"a","best_of":2,"stream":true})",
      R"({"prompt":"a","logprobs":true})",          R"({"prompt":"a","logprobs":21})",
      R"({"prompt":"a","suffix":"b"})",             R"({"prompt":"a","echo":true,"logprobs":-1})",
  };
  GenerationParams params;
  for (const char* body : wrong) {
    const auto error = Parse(false, body, &params);
    ASSERT_TRUE(error.has_value()) << body;
    EXPECT_EQ(error->status, 400) << body;
  }
  ASSERT_FALSE(Parse(false, R"({"prompt":["ta","neba"],"n":2,"best_of":3})", &params).has_value());
  EXPECT_EQ(params.num_choices(), 6);
  ASSERT_FALSE(Parse(false, R"({"prompt":[[5,6],[7]],"echo":true,"logprobs":0,"max_tokens":0})", &params).has_value());
  EXPECT_EQ(params.prompts[0].ids, (std::vector<int32_t>{5, 6}));
  EXPECT_TRUE(MakeEngineRequest(params, *facts_, 0).prompt_logprobs);
}

TEST_F(RequestParsing, FieldsOfOtherServers) {
  GenerationParams params = Complete(
      R"(,"max_tokens":9,"min_tokens":4,"include_stop_str_in_output":true,"skip_special_tokens":false,"return_token_ids":true,
      "prompt_logprobs":2,"echo":true,"logprobs":3)");
  EXPECT_TRUE(params.return_token_ids);
  Request request = MakeEngineRequest(params, *facts_, 0);
  EXPECT_EQ(request.min_tokens, 4);
  EXPECT_TRUE(request.include_stop && !request.skip_special && request.prompt_logprobs);
  EXPECT_EQ(request.num_prompt_top_logprobs, 3) << "of what echo and prompt_logprobs want, the more";
  EXPECT_EQ(MakeEngineRequest(Complete(R"(,"echo":true)"), *facts_, 0).prompt_logprobs, false);

  ASSERT_FALSE(Parse(false, R"({"prompt":[5,6,7,8],"truncate_prompt_tokens":2,"echo":true})", &params).has_value());
  EXPECT_EQ(params.prompts[0].ids, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(params.prompts[0].text, bundle_->tokenizer->Decode(params.prompts[0].ids));
  const ChatJson longer = {{"prompt", std::vector<int>(1000, 5)}, {"truncate_prompt_tokens", -1}};
  ASSERT_FALSE(Parse(false, longer.dump(), &params).has_value());
  EXPECT_EQ(params.prompts[0].ids.size(), 255u);
}

TEST_F(RequestParsing, TheLastMessageGoesOn) {
  const auto prompt = [](const std::string& fields) {
    ChatJson json;
    RenderedPrompt rendered;
    EXPECT_FALSE(ParseBody(fmt::format("{{{}}}", fields), &json).has_value()) << fields;
    const auto error = RenderChat(json, *bundle_, &rendered);
    EXPECT_FALSE(error.has_value()) << fields << ": " << error->message;
    for (const auto& [begin, end] : rendered.user_ranges) EXPECT_LE(end, static_cast<int64_t>(rendered.text.size()));
    return rendered.text;
  };
  const std::string messages = R"("messages":[{"role":"user","content":"ta"},{"role":"assistant","content":"neba ta"}])";
  const std::string whole = prompt(messages + R"(,"add_generation_prompt":false)");
  const std::string cut = prompt(messages + R"(,"continue_final_message":true)");
  EXPECT_TRUE(cut.ends_with("neba ta")) << cut;
  EXPECT_TRUE(whole.starts_with(cut)) << whole;
  for (const char* wrong : {R"("messages":[{"role":"user","content":"ta"}],"continue_final_message":true)",
                            R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":" "}],"continue_final_message":true)",
                            R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"continue_final_message":true,"add_generation_prompt":true)"}) {
    ChatJson json;
    RenderedPrompt rendered;
    ASSERT_FALSE(ParseBody(fmt::format("{{{}}}", wrong), &json).has_value());
    const auto error = RenderChat(json, *bundle_, &rendered);
    ASSERT_TRUE(error.has_value()) << wrong;
    EXPECT_EQ(error->param, "continue_final_message");
  }
}

TEST_F(RequestParsing, LengthsAgainstTheContext) {
  GenerationParams params;
  const auto body = [](int count, const char* more) {
    return ChatJson{{"prompt", std::vector<int>(static_cast<size_t>(count), 5)}}.dump().substr(0, 11 + 2 * static_cast<size_t>(count)) + more + "}";
  };
  EXPECT_FALSE(Parse(false, body(255, ""), &params).has_value());
  EXPECT_EQ(MakeEngineRequest(params, *facts_, 0).max_tokens, 1);
  const auto full = Parse(false, body(256, ""), &params);
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->code, "context_length_exceeded");
  EXPECT_THAT(full->message, HasSubstr("256 tokens"));
  EXPECT_FALSE(Parse(false, body(256, R"(,"max_tokens":0)"), &params).has_value());
  EXPECT_TRUE(Parse(false, body(257, R"(,"max_tokens":0)"), &params).has_value());
  std::string words;
  for (int i = 0; i < 400; ++i) words += "taneba ";
  const auto chat = Parse(true, ChatJson{{"messages", {{{"role", "user"}, {"content", words}}}}}.dump(), &params);
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->code, "context_length_exceeded");
  EXPECT_EQ(chat->param, "messages");
}

TEST_F(RequestParsing, TextsThatCannotFitAreNotTokenised) {
  ModelFacts facts = *facts_;
  facts.max_prompt_bytes = 100;
  GenerationParams params;
  ChatJson body = {{"prompt", std::string(101, 'x')}, {"messages", {{{"role", "user"}, {"content", std::string(101, 'x')}}}}};
  const auto completion = ParseCompletionRequest(body, *bundle_, facts, &params);
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->code, "context_length_exceeded");
  EXPECT_THAT(completion->message, HasSubstr("101 bytes"));
  const auto chat = ParseChatRequest(body, *bundle_, facts, &params);
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->param, "messages");
}

TEST(JsonText, IsAlwaysValid) {
  std::string bytes;
  for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  const auto parsed = ChatJson::parse(JsonString(bytes), nullptr, false);
  ASSERT_TRUE(parsed.is_string());
  EXPECT_EQ(parsed.get<std::string>().substr(0, 128), bytes.substr(0, 128));
  EXPECT_EQ(JsonString("\xe2\x82"), "\"\xef\xbf\xbd\"");
  std::string numbers;
  for (const double value : {-HUGE_VAL, std::nan(""), -0.25}) {
    AppendJsonNumber(value, &numbers);
    numbers += ' ';
  }
  EXPECT_EQ(numbers, "-9999 null -0.25 ");
}

}  // namespace
}  // namespace cachalot
