// What the engine's thread and the connections' threads do to each other: answers over real sockets.
#include <algorithm>
#include <vector>

#include "serve_socket_testing.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using nlohmann::json;
using testing::HasSubstr;

bool IsAscii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 32 && c < 127; });
}

TEST_F(ServeSocketTest, StreamAndWholeAnswerAgree) {
  Start();
  const char* const ask = R"(,"max_tokens":24,"seed":5,"ignore_eos":true,"logprobs":2)";
  const json whole = Complete(ask);
  ASSERT_TRUE(whole.contains("choices")) << whole.dump();
  EXPECT_EQ(whole["usage"]["completion_tokens"], 24);
  SocketClient client(port());
  client.Send(Completion((std::string(ask) + R"(,"stream":true,"stream_options":{"include_usage":true})").c_str()));
  const std::string stream = client.ReadUntil("data: [DONE]");
  std::string text;
  std::vector<std::string> tokens;
  json usage;
  size_t at = 0;
  while ((at = stream.find("data: {", at)) != std::string::npos) {
    const size_t end = stream.find("\n\n", at);
    const json chunk = json::parse(stream.substr(at + 6, end - at - 6), nullptr, false);
    ASSERT_TRUE(chunk.is_object()) << stream;
    if (chunk["choices"].empty()) usage = chunk["usage"];
    for (const auto& choice : chunk["choices"]) {
      text += choice["text"].get<std::string>();
      for (const auto& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
    }
    at = end;
  }
  EXPECT_EQ(text, whole["choices"][0]["text"].get<std::string>());
  EXPECT_EQ(json(tokens), whole["choices"][0]["logprobs"]["tokens"]);
  EXPECT_EQ(tokens.size(), 24u);
  EXPECT_EQ(usage, whole["usage"]);
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, ChoicesBelongToTheirPrompts) {
  Start();
  const json all = json::parse(BodyOf(Ask(port(), PostText("/v1/completions",
      R"({"prompt":["taneba","ba","neta"],"n":2,"seed":3,"max_tokens":8,"ignore_eos":true})"))), nullptr, false);
  ASSERT_EQ(all["choices"].size(), 6u);
  for (int prompt = 0; prompt < 3; ++prompt) {
    for (int i = 0; i < 2; ++i) {
      const char* const texts[] = {"taneba", "ba", "neta"};
      const json body = {{"prompt", texts[prompt]}, {"seed", 3 + i}, {"max_tokens", 8}, {"ignore_eos", true}};
      const json one = json::parse(BodyOf(Ask(port(), PostText("/v1/completions", body.dump()))), nullptr, false);
      EXPECT_EQ(all["choices"][static_cast<size_t>(2 * prompt + i)]["text"], one["choices"][0]["text"]);
    }
  }
  const json best = Complete(R"(,"best_of":4,"n":2,"logprobs":0,"max_tokens":6,"ignore_eos":true)");
  ASSERT_EQ(best["choices"].size(), 2u);
  const auto sum = [](const json& choice) {
    double total = 0;
    for (const double value : choice["logprobs"]["token_logprobs"]) total += value;
    return total;
  };
  EXPECT_GE(sum(best["choices"][0]), sum(best["choices"][1]));
  EXPECT_EQ(best["usage"]["completion_tokens"], 24);
}

TEST_F(ServeSocketTest, BadWordsAreNotSaid) {
  Start({}, 4);
  const std::string ask = R"(,"max_tokens":40,"seed":11,"ignore_eos":true,"return_token_ids":true)";
  const std::string text = Complete(ask.c_str())["choices"][0]["text"];
  std::vector<std::string> words;  // pieces of what it would say
  for (size_t at = 4; at + 3 <= text.size() && words.size() < 6; at += 7) {
    const json piece = text.substr(at, 3);
    if (!piece.get<std::string>().empty() && IsAscii(piece.get<std::string>())) words.push_back(piece.get<std::string>());
  }
  ASSERT_FALSE(words.empty()) << text;
  const std::string more = ask + ",\"bad_words\":" + json(words).dump();
  const json alone = Complete(more.c_str());
  ASSERT_TRUE(alone.contains("choices")) << alone.dump();
  const std::vector<int32_t> said = alone["choices"][0]["token_ids"];
  EXPECT_EQ(said.size(), 40u);
  for (const std::string& word : words) {
    const auto ids = *bundle_->tokenizer->Encode(word, {.add_special = false});
    EXPECT_EQ(std::search(said.begin(), said.end(), ids.begin(), ids.end()), said.end()) << word;
  }
  // Others beside it change nothing.
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      if (i % 2) Complete(ask.c_str());
      else EXPECT_EQ(Complete(more.c_str())["choices"], alone["choices"]);
    });
  }
  for (auto& thread : threads) thread.join();
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, EchoWithLogprobs) {
  Start();
  const json echo = Complete(R"(,"echo":true,"logprobs":0,"max_tokens":0)");
  ASSERT_TRUE(echo.contains("choices")) << echo.dump();
  const json& choice = echo["choices"][0];
  EXPECT_EQ(choice["text"], "taneba");
  EXPECT_EQ(choice["finish_reason"], "length");
  const size_t count = choice["logprobs"]["tokens"].size();
  EXPECT_EQ(count, echo["usage"]["prompt_tokens"]);
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  for (size_t i = 1; i < count; ++i) EXPECT_LT(choice["logprobs"]["token_logprobs"][i], 0.0);
}

// What evaluations ask for: the log-probabilities of a text are those that its tokens had when they were generated, and
// nothing of them is missing because the prefix cache knows the text.
TEST_F(ServeSocketTest, EchoTellsWhatGenerationTold) {
  Start();
  const json made = Complete(R"(,"max_tokens":12,"temperature":0,"logprobs":3,"ignore_eos":true,"return_token_ids":true)");
  ASSERT_TRUE(made.contains("choices")) << made.dump();
  const json& answer = made["choices"][0];
  auto ids = answer["prompt_token_ids"].get<std::vector<int>>();
  const size_t num_prompt = ids.size();
  for (const auto& id : answer["token_ids"]) ids.push_back(id);
  ASSERT_EQ(ids.size(), num_prompt + 12);
  for (const int max_tokens : {0, 1}) {
    const json body = {{"prompt", ids}, {"max_tokens", max_tokens}, {"temperature", 0}, {"echo", true}, {"logprobs", 3},
                       {"prompt_logprobs", 1}, {"n", 2}};
    const json echo = json::parse(BodyOf(Ask(port(), PostText("/v1/completions", body.dump()))), nullptr, false);
    ASSERT_TRUE(echo.contains("choices")) << echo.dump();
    EXPECT_EQ(echo["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    for (const json& choice : echo["choices"]) {
      const json& told = choice["logprobs"];
      ASSERT_EQ(told["tokens"].size(), ids.size() + static_cast<size_t>(max_tokens));
      EXPECT_TRUE(told["top_logprobs"][0].is_null());
      ASSERT_EQ(choice["prompt_logprobs"].size(), ids.size());
      EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
      for (size_t i = 0; i < 12; ++i) {
        const size_t at = num_prompt + i;
        EXPECT_EQ(told["tokens"][at], answer["logprobs"]["tokens"][i]);
        // Sampling sums the exponentials in another order.
        EXPECT_NEAR(told["token_logprobs"][at].get<double>(), answer["logprobs"]["token_logprobs"][i].get<double>(), 1e-5);
        const json& top = told["top_logprobs"][at];
        const json& want = answer["logprobs"]["top_logprobs"][i];
        ASSERT_EQ(top.size(), want.size());
        for (const auto& [token, logprob] : want.items()) EXPECT_NEAR(top.value(token, -99.0), logprob.get<double>(), 1e-5) << token;
        const json& entry = choice["prompt_logprobs"][at][std::to_string(ids[at])];
        EXPECT_EQ(entry["logprob"], told["token_logprobs"][at]);
        EXPECT_EQ(entry["rank"], 1) << "greedy";
      }
    }
  }
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, HowAnswersEnd) {
  Start();
  const std::string ask = R"(,"max_tokens":10,"temperature":0,"ignore_eos":true,"return_token_ids":true)";
  const json plain = Complete(ask.c_str())["choices"][0];
  const auto ids = plain["token_ids"].get<std::vector<int>>();
  ASSERT_EQ(ids.size(), 10u);
  const std::string stop = ask + R"(,"stop_token_ids":[)" + std::to_string(ids[0]) + "]";
  EXPECT_EQ(Complete(stop.c_str())["choices"][0]["token_ids"], json({ids[0]}));
  const json longer = Complete((stop + R"(,"min_tokens":4)").c_str())["choices"][0];
  ASSERT_GE(longer["token_ids"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(longer["token_ids"][i], ids[0]);
  const auto text = plain["text"].get<std::string>();
  ASSERT_GE(text.size(), 4u);
  const json body = {{"prompt", "taneba"}, {"max_tokens", 10}, {"temperature", 0}, {"ignore_eos", true}, {"stop", text.substr(2, 2)}};
  const auto with = [&](const json& more) {
    json all = body;
    all.update(more);
    return json::parse(BodyOf(Ask(port(), PostText("/v1/completions", all.dump()))), nullptr, false)["choices"][0];
  };
  const size_t match = text.find(text.substr(2, 2));
  EXPECT_EQ(with(json::object())["text"], text.substr(0, match));
  EXPECT_EQ(with({{"include_stop_str_in_output", true}})["text"], text.substr(0, match + 2));
  EXPECT_EQ(with({{"min_tokens", 10}})["text"], text);
  EXPECT_EQ(with({{"min_tokens", 10}})["finish_reason"], "length");
}

TEST_F(ServeSocketTest, AClientThatGoesFreesEverything) {
  Start();
  const auto num_generated = [&] { return server_->context().loop->GetSnapshot().stats.generated_tokens; };
  for (const bool stream : {true, false}) {
    const int64_t before = num_generated();
    const int cancelled = held_->num_cancelled();
    held_->Hold(4);
    {
      SocketClient client(port());
      client.Send(Completion(stream ? R"(,"max_tokens":240,"ignore_eos":true,"n":3,"stream":true)" : R"(,"max_tokens":240,"ignore_eos":true,"n":3)"));
      if (stream) client.ReadUntil("data: ");
      WaitFor([&] { return server_->context().loop->live() == 3; }, "three live");
    }
    WaitFor([&] { return held_->num_cancelled() > cancelled; }, "cancelled");
    held_->Release();
    WaitUntilAtRest();
    EXPECT_LE(num_generated() - before, 3 * 5);
  }
}

// The port answers before the model is there.
TEST_F(ServeSocketTest, WhileTheModelIsLoaded) {
  ServerOptions options;
  options.http.port = 0;
  options.api_keys = {"secret"};
  options.request_log = "";
  auto listening = Server::Listen(options);
  ASSERT_TRUE(listening.ok()) << listening.status().ToString();
  server_ = std::move(*listening);
  const auto get = [&](const char* path, const char* key = "secret") {
    return Ask(port(), std::string("GET ") + path + " HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer " + key + "\r\n\r\n");
  };
  for (const char* path : {"/health", "/ready", "/v1/models", "/metrics", "/status"}) {
    const std::string told = get(path);
    EXPECT_EQ(StatusOf(told), 503) << path;
    EXPECT_THAT(told, HasSubstr("Retry-After: 1"));
    EXPECT_EQ(json::parse(BodyOf(told))["error"]["code"], "loading");
  }
  EXPECT_EQ(StatusOf(Ask(port(), PostText("/v1/completions", "{}", "x-api-key: secret\r\n"))), 503);
  EXPECT_EQ(StatusOf(get("/v1/models", "wrong")), 401);
  EXPECT_EQ(StatusOf(get("/nowhere")), 404);
  EXPECT_EQ(StatusOf(get("/")), 200);
  EXPECT_EQ(StatusOf(get("/version")), 200);
  ModelOptions model;
  model.dummy = "tiny-llama";
  model.num_threads = 1;
  model.context = 256;
  Result<ModelBundle> bundle = OpenModel(model);
  ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
  bundle_ = std::make_unique<ModelBundle>(std::move(*bundle));
  engine_ = std::move(*Engine::Create(bundle_->runtime.get(), bundle_->tokenizer.get(), {}));
  ASSERT_TRUE(server_->Serve(bundle_.get(), engine_.get(), bundle_->runtime->info()).ok());
  for (const char* path : {"/health", "/ready", "/v1/models", "/metrics"}) EXPECT_EQ(StatusOf(get(path)), 200) << path;
  const json status = json::parse(BodyOf(get("/status")));
  EXPECT_THAT(status["kv_identity"].get<std::string>(), testing::StartsWith("llama-"));
  server_->Stop();
  // One that is stopped before there ever was a model.
  options.http.port = 0;
  ASSERT_TRUE(Server::Listen(options).ok());
  options.request_log = "/dev/null/log";
  EXPECT_THAT(Server::Listen(options).status().message(), testing::HasSubstr("/dev/null/log: cannot be written to"));
  options.request_log = "";
  options.record_dir = "/dev/null/record";
  EXPECT_THAT(Server::Listen(options).status().message(), testing::HasSubstr("--record /dev/null/record: "));
}

TEST_F(ServeSocketTest, StreamsThatBringNothingAreKeptAlive) {
  Start({.sse_keepalive_ms = 40}, 1);
  held_->Hold(4);
  SocketClient first(port());
  first.Send(Completion(R"(,"max_tokens":200,"ignore_eos":true,"stream":true)"));
  first.ReadUntil("data: ");
  SocketClient second(port());  // waits for its turn
  second.Send(Completion(R"(,"max_tokens":2,"stream":true)"));
  const std::string waiting = second.ReadUntil(": ping\n");
  EXPECT_EQ(StatusOf(waiting), 200);
  EXPECT_EQ(waiting.find("data: "), std::string::npos);
  first.Close();
  held_->Release();
  EXPECT_THAT(second.ReadUntil("data: [DONE]"), HasSubstr("data: {"));
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, CompressedBodiesAreNamed) {
  Start();
  const std::string told = Ask(port(), PostText("/v1/completions", "\x1f\x8b\x08", "Content-Encoding: gzip\r\n"));
  EXPECT_EQ(StatusOf(told), 415);
  EXPECT_THAT(told, HasSubstr("gzip"));
  EXPECT_EQ(StatusOf(Ask(port(), PostText("/tokenize", R"({"prompt":"a"})", "Content-Encoding: identity\r\n"))), 200);
}

// What long bodies take is done on other threads (long_work_test.cc); the answers and the errors are the same.
TEST_F(ServeSocketTest, LongBodiesGetTheirAnswers) {
  Start();
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "taneba ";
  const std::string prompt = R"({"prompt":")" + text + "\"}";
  EXPECT_GE(json::parse(BodyOf(Ask(port(), PostText("/tokenize", prompt))))["count"], 20'000);
  EXPECT_EQ(StatusOf(Ask(port(), PostText("/v1/completions", prompt))), 400);
  const std::string filler = R"(,"unknown":")" + std::string(10'000, 'x') + '"';
  EXPECT_EQ(Complete((R"(,"max_tokens":4)" + filler).c_str())["usage"]["completion_tokens"], 4);
  EXPECT_EQ(Complete((R"(,"max_tokens":-4)" + filler).c_str())["error"]["param"], "max_tokens");
  SocketClient stream(port());
  stream.Send(PostText("/v1/chat/completions", R"({"messages":[{"role":"user","content":"taneba"}],"max_tokens":4,"stream":true)" + filler + "}"));
  EXPECT_THAT(stream.ReadUntil("[DONE]"), HasSubstr("[DONE]"));
  EXPECT_THAT(Ask(port(), PostText("/v1/cachalot/cache", R"({"action":"pin","prompt":"taneba")" + filler + "}")), HasSubstr("prompt_tokens"));
  EXPECT_THAT(Ask(port(), PostText("/v1/cachalot/cache", R"({"action":"paint")" + filler + "}")), HasSubstr("paint"));
  EXPECT_THAT(Ask(port(), PostText("/detokenize", R"({"tokens":[-1])" + filler + "}")), HasSubstr("tokens[0]"));
  // Clients that go meanwhile, and a server that stops, leave nothing behind.
  for (int i = 0; i < 4; ++i) {
    SocketClient gone(port());
    gone.Send(PostText("/v1/completions", prompt));
  }
  WaitFor([&] { return server_->context().work->idle(); }, "nothing is left");
  WaitUntilAtRest();
  SocketClient first(port()), second(port());
  first.Send(PostText("/tokenize", prompt));
  second.Send(PostText("/tokenize", prompt));
  server_->Stop();
  first.ReadToEnd();
  second.ReadToEnd();
}

TEST_F(ServeSocketTest, TooManyIs429) {
  Start({.max_waiting = 1}, 1);
  held_->Hold(4);
  SocketClient first(port());
  first.Send(Completion(R"(,"max_tokens":200,"ignore_eos":true,"stream":true)"));
  first.ReadUntil("data: ");
  SocketClient second(port());
  second.Send(Completion(R"(,"max_tokens":1)"));
  WaitFor([&] { return server_->context().loop->live() == 2; }, "two live");
  const std::string third = Ask(port(), Completion(""));
  EXPECT_EQ(StatusOf(third), 429);
  EXPECT_THAT(third, HasSubstr("Retry-After: "));
  EXPECT_THAT(third, HasSubstr("rate_limit_error"));
  first.Close();
  held_->Release();
  EXPECT_EQ(StatusOf(second.ReadResponse()), 200);
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, ContextEndsWithLength) {
  Start({}, 2, 64);
  const json full = Complete(R"(,"max_tokens":1000,"ignore_eos":true)");
  ASSERT_TRUE(full.contains("choices")) << full.dump();
  EXPECT_EQ(full["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(full["usage"]["total_tokens"], 64);
  json body = {{"prompt", std::vector<int>(64, 5)}};
  const std::string refused = Ask(port(), PostText("/v1/completions", body.dump()));
  EXPECT_EQ(StatusOf(refused), 400);
  EXPECT_THAT(refused, HasSubstr("context_length_exceeded"));
}

TEST_F(ServeSocketTest, KeysOnEveryRouteButTheOpenOnes) {
  Start({.api_keys = {"one", "two"}});
  const auto get = [&](const std::string& path, const std::string& header) {
    return StatusOf(Ask(port(), "GET " + path + " HTTP/1.1\r\nHost: t\r\n" + header + "\r\n"));
  };
  for (const char* path : {"/v1/models", "/metrics", "/status", "/version", "/openapi.json", "/nothing"}) {
    EXPECT_EQ(get(path, ""), 401) << path;
    EXPECT_EQ(get(path, "Authorization: Bearer three\r\n"), 401) << path;
    EXPECT_NE(get(path, "Authorization: Bearer two\r\n"), 401) << path;
    EXPECT_NE(get(path, "x-api-key: one\r\n"), 401) << path;
  }
  for (const char* path : {"/health", "/ready", "/", "/web/app.js"}) EXPECT_EQ(get(path, ""), 200) << path;
  EXPECT_EQ(StatusOf(Ask(port(), Completion(""))), 401);
  EXPECT_EQ(StatusOf(Ask(port(), "OPTIONS /v1/models HTTP/1.1\r\nHost: t\r\n\r\n")), 204);
}

TEST_F(ServeSocketTest, CrossOrigin) {
  Start({.cors_origins = {"http://good"}});
  const auto ask = [&](const char* origin) {
    return Ask(port(), std::string("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: ") + origin +
                           "\r\nAccess-Control-Request-Headers: x-stainless-os, authorization\r\n\r\n");
  };
  EXPECT_THAT(ask("http://good"), HasSubstr("Access-Control-Allow-Origin: http://good"));
  EXPECT_THAT(ask("http://good"), HasSubstr("x-stainless-os, authorization"));
  EXPECT_EQ(ask("http://bad").find("Allow-Origin"), std::string::npos);
}

TEST_F(ServeSocketTest, RoutesThatAreNot) {
  Start();
  EXPECT_EQ(StatusOf(Ask(port(), "GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n")), 404);
  const std::string wrong = Ask(port(), "DELETE /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(StatusOf(wrong), 405);
  EXPECT_THAT(wrong, HasSubstr("Allow: GET, HEAD, OPTIONS"));
  EXPECT_EQ(StatusOf(Ask(port(), "GET /v1/models/gpt-9 HTTP/1.1\r\nHost: t\r\n\r\n")), 404);
  EXPECT_EQ(StatusOf(Ask(port(), "GET /v1/models/tiny HTTP/1.1\r\nHost: t\r\n\r\n")), 200);
  EXPECT_EQ(StatusOf(Ask(port(), "GET /web/../server.cc HTTP/1.1\r\nHost: t\r\n\r\n")), 404);
}

TEST_F(ServeSocketTest, MetricsMove) {
  Start({.vllm_metrics = true});
  const auto metric = [&](const std::string& name) {
    const std::string text = BodyOf(Ask(port(), "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n"));
    const size_t at = text.find("\n" + name);
    return at == std::string::npos ? -1.0 : std::strtod(text.c_str() + text.find(' ', at + 1), nullptr);
  };
  EXPECT_EQ(metric("cachalot:generation_tokens_total"), 0);
  for (int i = 0; i < 3; ++i) Complete(R"(,"max_tokens":10,"ignore_eos":true)");
  WaitUntilAtRest();  // the last step's own figures come behind its tokens
  EXPECT_EQ(metric("cachalot:generation_tokens_total"), 30);
  EXPECT_EQ(metric("vllm:generation_tokens_total{"), 30);
  EXPECT_EQ(metric("vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"length\"}"), 3);
  EXPECT_EQ(metric("cachalot:time_to_first_token_seconds_count"), 3);
  EXPECT_EQ(metric("vllm:inter_token_latency_seconds_count"), 27);
  EXPECT_EQ(metric("vllm:e2e_request_latency_seconds_count"), 3);
  EXPECT_EQ(metric("vllm:num_requests_running"), 0);
  EXPECT_EQ(metric("cachalot:http_requests_total{path=\"/v1/completions\",code=\"200\"}"), 3);
  EXPECT_GT(metric("cachalot:engine_steps_total"), 10);
  EXPECT_GT(metric("cachalot:resident_memory_bytes"), 1e6);
}

TEST_F(ServeSocketTest, TheSecondTurnFindsTheFirstInTheCache) {
  Start({.api_keys = {"one", "two"}});
  const std::string words(120, 'a');
  const auto cached = [&](const char* key, const char* salt) {
    const json body = {{"prompt", words}, {"max_tokens", 2}, {"cache_salt", salt}};
    const std::string header = std::string("x-api-key: ") + key + "\r\n";
    const json answer = json::parse(BodyOf(Ask(port(), PostText("/v1/completions", body.dump(), header))), nullptr, false);
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("one", "a"), 0);
  EXPECT_GE(cached("one", "a"), 16);
  EXPECT_EQ(cached("one", "b"), 0) << "a prefix was shared across salts";
  EXPECT_EQ(cached("two", "a"), 0) << "a prefix was shared across keys";
  WaitUntilAtRest();
}

TEST_F(ServeSocketTest, TheCacheIsShownPinnedAndFlushed) {
  Start({.api_keys = {"one", "two"}});
  const std::string words(120, 'a');
  const auto post = [&](const char* key, const json& body) {
    const std::string header = std::string("x-api-key: ") + key + "\r\n";
    return json::parse(BodyOf(Ask(port(), PostText("/v1/cachalot/cache", body.dump(), header))), nullptr, false);
  };
  const auto state = [&] {
    const std::string get = "GET /v1/cachalot/cache HTTP/1.1\r\nHost: x\r\nx-api-key: one\r\nConnection: close\r\n\r\n";
    return json::parse(BodyOf(Ask(port(), get)), nullptr, false);
  };
  const json ask = {{"prompt", words}, {"max_tokens", 2}, {"kv_priority", 3}, {"kv_ttl", 60.5}, {"kv_class", 1}};
  Ask(port(), PostText("/v1/completions", ask.dump(), "x-api-key: one\r\n"));
  WaitUntilAtRest();
  EXPECT_EQ(state()["policy"], "lru-k");
  const int cached = state()["groups"][0]["blocks_cached"];
  EXPECT_GT(cached, 0);
  const json pinned = post("one", {{"action", "pin"}, {"prompt", words}});
  EXPECT_GE(pinned["cached_tokens"], 16) << pinned.dump();
  EXPECT_GT(state()["groups"][0]["blocks_pinned"], 0);
  EXPECT_EQ(post("two", {{"action", "pin"}, {"prompt", words}})["cached_tokens"], 0) << "what is another key's";
  EXPECT_EQ(post("one", {{"action", "unpin"}, {"prompt", words}})["action"], "unpin");
  EXPECT_EQ(state()["groups"][0]["blocks_pinned"], 0);
  EXPECT_EQ(post("one", {{"action", "flush"}})["action"], "flush");
  EXPECT_EQ(state()["groups"][0]["blocks_cached"], 0);
  EXPECT_EQ(post("one", {{"action", "melt"}})["error"]["param"], "action");
  EXPECT_EQ(post("one", {{"action", "pin"}})["error"]["param"], "prompt");
  EXPECT_EQ(post("one", {{"action", "pin"}, {"prompt", {1, -1}}})["error"]["param"], "prompt[1]");
}

TEST_F(ServeSocketTest, ManyStreamsAtOnceGiveWhatOneGives) {
  Start({}, 8);
  const char* const ask = R"(,"max_tokens":12,"temperature":0,"ignore_eos":true)";
  const json wanted = Complete(ask)["choices"][0]["text"];
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 4; ++i) {
        const json answer = json::parse(BodyOf(Ask(port(), Completion(ask))), nullptr, false);
        good += answer.is_object() && answer["choices"][0]["text"] == wanted;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 32);
  WaitUntilAtRest();
}

}  // namespace
}  // namespace cachalot
