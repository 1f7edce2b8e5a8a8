// Flags, nearest words, conversations, windows through an engine: all that needs no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"
#include "cli/answer_flags.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "cli/nearest.h"
#include "cli/ppl_run.h"
#include "cli/sampling_flags.h"

namespace cachalot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NearestTest, Distances) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("abcd", "abdc"), 1);
  EXPECT_EQ(EditDistance("same", "same"), 0);
}

TEST(NearestTest, Words) {
  const std::vector<std::string> known = {"--temp",  "--threads", "--top-k", "--top-p",
                                          "--min-p", "-m",        "--model"};
  EXPECT_EQ(Nearest("--tmep", known), "--temp");
  EXPECT_EQ(Nearest("--temperature", known), "--temp");
  EXPECT_EQ(Nearest("--thread", known), "--threads");
  EXPECT_EQ(Nearest("--topk", known), "--top-k");
  EXPECT_EQ(Nearest("--modle", known), "--model");
  EXPECT_EQ(Nearest("x", {}), "");
  // What is not near is no help.
  EXPECT_EQ(Nearest("--jinja", known), "");
  EXPECT_EQ(Nearest("-ngl", known), "");
  EXPECT_EQ(Nearest("-x", known), "");
  EXPECT_EQ(NearestHint("--modle", known), "; did you mean '--model'?");
  EXPECT_EQ(NearestHint("--jinja", known), "");
}

struct Values {
  FlagSet set{"test -n N", "A test."};
  int32_t number = 7;
  int64_t seed = -1;
  float temp = 0.5f;
  std::string text, folder, choice = "auto", positional;
  std::vector<std::string> stops;
  std::vector<int32_t> list;
  bool fast = false;

  Values() {
    set.Int("-n,--n-predict", &number, -1, 100, "N", "a number");
    set.Int("-s,--seed", &seed, -1, INT64_MAX, "N", "a seed");
    set.Float("--temp", &temp, 0, 10, "X", "a temperature");
    set.String("-p,--prompt", &text, "TEXT", "a text");
    set.Path("--folder", &folder, "DIR", "a folder");
    set.Choice("-fa,--flash-attn", &choice, {"on", "off", "auto"}, "a choice");
    set.Strings("-r,--stop", &stops, "TEXT", "stops");
    set.Ints("-t,--threads", &list, 1, 8, "N,…", "a list");
    set.Switch("--fast", &fast, "a switch");
    set.Positional("SPEC", &positional, "a thing");
  }
  Status Parse(std::vector<std::string> args) { return set.Parse(args); }
};

TEST(FlagSetTest, EverySpelling) {
  Values v;
  const Status status = v.Parse({"-n", "-1", "--temp=1.5", "-p", "--not-a-flag", "-fa", "off", "--fast", "-r",
                                 "a", "--stop", "b", "-t", "1,2,8", "thing", "-s", "9223372036854775807"});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(v.number, -1);
  EXPECT_FLOAT_EQ(v.temp, 1.5f);
  EXPECT_EQ(v.text, "--not-a-flag");
  EXPECT_EQ(v.choice, "off");
  EXPECT_TRUE(v.fast);
  EXPECT_THAT(v.stops, ElementsAre("a", "b"));
  EXPECT_THAT(v.list, ElementsAre(1, 2, 8));
  EXPECT_EQ(v.positional, "thing");
  EXPECT_EQ(v.seed, INT64_MAX);
  EXPECT_TRUE(v.set.Given("--n-predict"));
  EXPECT_TRUE(v.set.Given("-n"));
}

TEST(FlagSetTest, DefaultsStayAndTheLastCounts) {
  Values v;
  ASSERT_TRUE(v.Parse({}).ok());
  EXPECT_EQ(v.number, 7);
  EXPECT_FALSE(v.set.Given("-n"));
  Values w;
  ASSERT_TRUE(w.Parse({"-n", "3", "-n4", "-p", ""}).ok());
  EXPECT_EQ(w.number, 4);
  EXPECT_TRUE(w.set.Given("-p"));
  Values x;
  ASSERT_TRUE(x.Parse({"-fa=on"}).ok());
  EXPECT_EQ(x.choice, "on");
}

TEST(FlagSetTest, ErrorsNameValueAndLimit) {
  const auto message = [](std::vector<std::string> args) {
    return Values().Parse(std::move(args)).message();
  };
  EXPECT_THAT(message({"-n", "101"}), HasSubstr("-n: '101' is no whole number in -1..100"));
  EXPECT_THAT(message({"-n", "1x"}), HasSubstr("'1x'"));
  EXPECT_THAT(message({"--folder", ""}), HasSubstr("--folder: ''"));
  EXPECT_THAT(message({"--folder="}), HasSubstr("--folder: ''"));
  EXPECT_THAT(message({"-n", ""}), HasSubstr("''"));
  EXPECT_THAT(message({"--temp", "nan"}), HasSubstr("'nan'"));
  EXPECT_THAT(message({"--temp", "11"}), HasSubstr("0..10"));
  EXPECT_THAT(message({"-t", "1,9"}), HasSubstr("'9'"));
  EXPECT_THAT(message({"-fa", "onn"}), HasSubstr("did you mean 'on'"));
  EXPECT_THAT(message({"--tmep", "1"}), HasSubstr("unknown flag --tmep; did you mean '--temp'?"));
  EXPECT_THAT(message({"--prompts=x"}), HasSubstr("did you mean '--prompt'?"));
  EXPECT_THAT(message({"a", "b"}), HasSubstr("'b' is not expected"));
  EXPECT_THAT(message({"-n"}), HasSubstr("-n needs a value"));
  EXPECT_THAT(message({"-ngl", "99"}), HasSubstr("unknown flag -ngl"));
  EXPECT_THAT(message({"--fast=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(message({"-x"}), HasSubstr("unknown flag -x"));
}

TEST(FlagSetTest, AChoiceMayStandBare) {
  const auto parse = [](std::vector<std::string> args, std::string* choice) {
    bool fast = false;
    FlagSet set("test", "");
    set.Choice("-fa,--flash-attn", choice, {"on", "off", "auto"}, "a choice", "on");
    set.Switch("-f,--fast", &fast, "a switch");
    const Status status = set.Parse(args);
    return status.ok() ? std::string(fast ? "fast" : "") : status.message();
  };
  std::string choice;
  EXPECT_EQ(parse({"-fa"}, &choice), "");
  EXPECT_EQ(choice, "on");
  EXPECT_EQ(parse({"-fa", "-f"}, &(choice = "")), "fast");
  EXPECT_EQ(choice, "on");
  EXPECT_EQ(parse({"-fa", "off", "-f"}, &choice), "fast");
  EXPECT_EQ(choice, "off");
  EXPECT_EQ(parse({"--flash-attn=auto"}, &choice), "");
  EXPECT_EQ(choice, "auto");
  EXPECT_THAT(parse({"-fa", "onn"}, &choice), HasSubstr("did you mean 'on'"));
}

TEST(FlagSetTest, HelpNamesEverything) {
  Values v;
  ASSERT_TRUE(v.Parse({"--help"}).ok());
  EXPECT_TRUE(v.set.help_wanted());
  for (const auto& name : v.set.Names()) {
    if (name != "--help") {
      EXPECT_THAT(v.set.Help(), HasSubstr(name));
    }
  }
}

TEST(ModelFlagsTest, WhatDoesNotFitIsRefused) {
  const auto resolve = [](std::vector<std::string> args) {
    FlagSet set("test", "");
    ModelFlags flags;
    flags.Declare(&set);
    flags.DeclareTrace(&set);
    const Status parsed = set.Parse(args);
    return parsed.ok() ? flags.Resolve() : parsed;
  };
  EXPECT_TRUE(resolve({"-m", "x", "-fa", "on", "-ctk", "bf16", "-ctv", "bf16"}).ok());
  EXPECT_THAT(resolve({}).message(), HasSubstr("no model"));
  EXPECT_TRUE(resolve({"-m", "x", "-fa"}).ok());
  EXPECT_THAT(resolve({"-m", "x", "--dummy", "y"}).message(), HasSubstr("only one"));
  EXPECT_THAT(resolve({"-m", "x", "-hf", "org/model"}).message(), HasSubstr("only one"));
  EXPECT_TRUE(resolve({"-hf", "org/model:Q8_0", "--offline"}).ok());
  EXPECT_THAT(resolve({"--dummy", "nosuch"}).message(), HasSubstr("nosuch"));
  EXPECT_THAT(resolve({"--dummy", "tiny-llama", "--dummy-type", "iq1_m"}).message(), HasSubstr("IQ1_M"));
  EXPECT_THAT(resolve({"-m", "x", "--flash-attn", "off"}).message(), HasSubstr("fused"));
  EXPECT_THAT(resolve({"-m", "x", "--device", "cpu", "--trace-streams", "t.json"}).message(), HasSubstr("no streams"));
  EXPECT_THAT(resolve({"-m", "x", "--draft-max", "2"}).message(), HasSubstr("--draft-max says nothing without --spec"));
  EXPECT_TRUE(resolve({"-m", "x", "--spec", "ngram", "--draft-max", "16"}).ok());
  EXPECT_THAT(resolve({"-m", "x", "-ctk", "f32"}).message(), HasSubstr("-ctv f16"));
  EXPECT_TRUE(resolve({"-m", "x", "-ctk", "q8_0", "-ctv", "q8_0"}).ok());
  EXPECT_THAT(resolve({"-m", "x", "-ctk", "q5_0", "-ctv", "q8_0"}).message(), HasSubstr("q6_0/q8_0"));
  EXPECT_TRUE(resolve({"-m", "x", "--enable-deepseek-kv"}).ok());
  EXPECT_TRUE(resolve({"-m", "x", "--enable-deepseek-kv", "--kv-type", "k6v8"}).ok());
  EXPECT_THAT(resolve({"-m", "x", "--enable-deepseek-kv", "--kv-type", "fp8"}).message(), HasSubstr("--kv-type k6v8"));
  EXPECT_THAT(resolve({"-m", "x", "--enable-deepseek-kv", "-ctk", "q8_0", "-ctv", "q8_0"}).message(), HasSubstr("k8v8 is asked"));
}

// What is wrong on the command line is told as such, before a model is opened.
TEST(CommandsTest, WrongCommandLinesExitWith2) {
  const auto exit_code = [](std::vector<std::string> args) { return Dispatch(args); };
  EXPECT_EQ(exit_code({"bench", "-m", "none", "-p", "0", "-n", "0"}), 2);
  EXPECT_EQ(exit_code({"detokenize", "-m", "none", "--ids", "-1"}), 2);
  EXPECT_EQ(exit_code({"logits", "-m", "none", "--tokens", "1,x", "--out", "o"}), 2);
  EXPECT_EQ(exit_code({"quantize", "none", "o", "Q8_0", "--leave-output-tensor", "--output-tensor-type", "q8_0"}), 2);
  EXPECT_EQ(exit_code({"run", "-m", "none", "-p", "x", "--raw", "--tools", "t.json"}), 2);
  EXPECT_EQ(exit_code({"run", "--dummy", "nosuch", "-p", "x"}), 2);
  EXPECT_EQ(exit_code({"dummy", "tiny-llama", "--type", "iq1_m", "-o", "x.gguf"}), 2);
  EXPECT_EQ(exit_code({"quantize", "a.gguf", "b.gguf"}), 2);
  EXPECT_EQ(exit_code({"quantize", "a.gguf", "b.gguf", "q9"}), 2);
  EXPECT_EQ(exit_code({"quantize", "a.gguf", "b.gguf", "q8_0", "--tensor-type", "x"}), 2);
  EXPECT_EQ(exit_code({"bench", "--dummy", "tiny-llama", "--device", "cpu", "--trace-streams", ::testing::TempDir() + "no_trace.json"}), 2);
  EXPECT_EQ(exit_code({"bench", "--dummy", "tiny-llama", "--trace-streams", "/nowhere/at/all.json"}), 2);
  EXPECT_EQ(exit_code({"nosuch"}), 2);
  EXPECT_EQ(exit_code({"quantize", "none.gguf", "b.gguf", "q8_0"}), 1);
  EXPECT_EQ(exit_code({"pull"}), 2);
  EXPECT_EQ(exit_code({"pull", "no-slash"}), 2);
  EXPECT_EQ(exit_code({"run", "-hf", "org/../x", "-p", "x"}), 2);
  EXPECT_EQ(exit_code({"imatrix", "-m", "none", "-p", "x"}), 2);
  // The output is the model itself.
  const std::string model = ::testing::TempDir() + "cachalot_cli_model.gguf";
  ASSERT_TRUE(WriteFileAtomically(model, "not really").ok());
  EXPECT_EQ(exit_code({"logits", "-m", model, "--tokens", "1", "--out", model}), 2);
  EXPECT_EQ(ReadTextFile(model, 100).value(), "not really");
  std::remove(model.c_str());
}

TEST(HubFlagsTest, TheEnvironmentOfHuggingfaceHub) {
  const std::string home = ::testing::TempDir() + "cachalot_hf_home";
  std::filesystem::create_directories(home);
  ASSERT_TRUE(WriteFileAtomically(home + "/token", "hf_of_the_file\n").ok());
  for (const char* name : {"HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"}) ::unsetenv(name);
  ::setenv("HF_HOME", home.c_str(), 1);
  HubOptions options = HubOptionsFromEnvironment();
  EXPECT_EQ(options.cache, home + "/hub");
  EXPECT_EQ(options.server.token, "hf_of_the_file");
  EXPECT_FALSE(options.offline);
  ::setenv("HF_TOKEN", "hf_given", 1);
  ::setenv("HF_HUB_CACHE", "/elsewhere", 1);
  ::setenv("HF_ENDPOINT", "http://mirror", 1);
  ::setenv("HF_HUB_OFFLINE", "yes", 1);
  options = HubOptionsFromEnvironment();
  EXPECT_EQ(options.cache, "/elsewhere");
  EXPECT_EQ(options.server.token, "hf_given");
  EXPECT_EQ(options.server.endpoint, "http://mirror");
  EXPECT_TRUE(options.offline);
  for (const char* name : {"HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"}) ::unsetenv(name);
  std::filesystem::remove_all(home);
}

TEST(SamplingFlagsTest, ModelDefaultsYieldToFlags) {
  FlagSet set("test", "");
  SamplingFlags flags;
  flags.Declare(&set);
  const std::vector<std::string> args = {"--temp", "0.1", "-l", "5+1.5", "-l", "6-2", "--stop", "a\\nb"};
  ASSERT_TRUE(set.Parse(args).ok());
  GenerationDefaults model;
  model.temperature = 0.6f;
  model.top_p = 0.9f;
  ASSERT_TRUE(flags.Resolve().ok());
  flags.TakeDefaults(set, model);
  const Request request = flags.MakeRequest();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.1f);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 40);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(request.sampling.logit_bias[1].token_id, 6);
  EXPECT_FLOAT_EQ(request.sampling.logit_bias[1].bias, -2.0f);
  EXPECT_THAT(request.stop_strings, ElementsAre("a\nb"));
  EXPECT_GE(flags.seed, 0);
  for (const char* bad : {"5", "x+1", "5+", "-5+1", "5+nan", "+1"})
    EXPECT_FALSE(ParseLogitBias(bad).ok()) << bad;
}

std::string Printed(const std::string& answer, ShowReasoning mode, bool color, AnswerPrinter** last = nullptr) {
  Output output;
  static std::unique_ptr<AnswerPrinter> printer;
  printer = std::make_unique<AnswerPrinter>(&output, AnswerFormat{.tools = ToolSyntax::kHermes}, mode, color);
  testing::internal::CaptureStdout();
  for (const char c : answer) EXPECT_TRUE(printer->Push(std::string_view(&c, 1)).ok());
  EXPECT_TRUE(printer->Finish().ok());
  if (last != nullptr) *last = printer.get();
  return testing::internal::GetCapturedStdout();
}

TEST(AnswerPrinterTest, ShowsThePartsApart) {
  const std::string answer =
      "<think>\nwhy\n</think>\n\nLook.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  AnswerPrinter* printer = nullptr;
  EXPECT_EQ(Printed(answer, ShowReasoning::kShow, false, &printer), "<think>\nwhy\n</think>\n\nLook.\n→ f({\"a\": 1})\n");
  EXPECT_EQ(printer->content(), "Look.");
  EXPECT_EQ(printer->reasoning(), "why");
  ASSERT_EQ(printer->calls().size(), 1u);
  EXPECT_EQ(printer->calls()[0].arguments, "{\"a\": 1}");
  EXPECT_EQ(Printed(answer, ShowReasoning::kHide, false), "Look.\n→ f({\"a\": 1})\n");
  EXPECT_EQ(Printed("<think>why</think>because", ShowReasoning::kShow, true), "\x1b[2mwhy\x1b[0m\n\nbecause\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(Printed("<think>why</think>because", ShowReasoning::kSeparate, true), "because\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "why\n");
}

TEST(ConversationTest, KeepsReasoningAndCalls) {
  Conversation conversation;
  conversation.AddUser("q");
  conversation.SetAnswer({.content = "a", .reasoning = "r", .calls = {{"f", "{}"}}});
  EXPECT_EQ(conversation.Json(),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"r","tool_calls":)"
            R"([{"id":"call00000","type":"function","function":{"name":"f","arguments":"{}"}}]}])");
}

TEST(ConversationTest, DropsTheOldestTurns) {
  Conversation conversation;
  conversation.SetSystem("sys");
  for (int i = 0; i < 4; ++i) {
    conversation.AddUser("user " + std::to_string(i));
    if (i < 3) conversation.SetAnswer({.content = "answer"});
  }
  const auto encode = [](const std::string& json) -> Result<std::vector<int32_t>> {
    return std::vector<int32_t>(json.size());
  };
  const size_t full = conversation.Json().size();
  EXPECT_EQ(conversation.Fit(encode, static_cast<int64_t>(full))->dropped_turns, 0);
  const auto fitted = conversation.Fit(encode, static_cast<int64_t>(full) - 1);
  ASSERT_TRUE(fitted.ok());
  EXPECT_EQ(fitted->dropped_turns, 1);
  EXPECT_EQ(conversation.num_turns(), 3);
  EXPECT_THAT(conversation.Json(), HasSubstr("\"sys\""));
  EXPECT_THAT(conversation.Json(), ::testing::Not(HasSubstr("user 0")));
  EXPECT_THAT(conversation.Fit(encode, 5).status().message(), HasSubstr("room for 5"));
}

TEST(CommandsTest, NamesAreUnique) {
  for (const auto& a : AllCommands()) {
    for (const auto& b : AllCommands()) EXPECT_TRUE(&a == &b || std::string(a.name) != b.name);
  }
}

// An engine whose log-probability of token t is -t, and which finishes requests in the opposite order.
class BackwardsEngine final : public Engine {
 public:
  Result<uint64_t> Submit(Request request, OutputCallback on_output) override {
    waiting_.push_back({std::move(request), std::move(on_output)});
    most_waiting = std::max(most_waiting, waiting_.size());
    return waiting_.size();
  }
  void Cancel(uint64_t) override {}
  bool HasWork() const override { return !waiting_.empty(); }
  Status Step() override {
    auto [request, on_output] = std::move(waiting_.back());
    waiting_.pop_back();
    std::vector<float> logprobs;
    for (size_t i = 1; i < request.prompt_ids.size(); ++i) {
      logprobs.push_back(-static_cast<float>(request.prompt_ids[i]));
    }
    RequestOutput output;
    output.prompt_logprobs = logprobs;
    output.finished = true;
    on_output(output);
    return Status::Ok();
  }
  const EngineStats& stats() const override { return stats_; }
  const StepResult& last_result() const override { return result_; }

  size_t most_waiting = 0;

 private:
  std::vector<std::pair<Request, OutputCallback>> waiting_;
  EngineStats stats_;
  StepResult result_;
};

TEST(ScoreWindowsTest, CountsEachScoredTokenOnce) {
  BackwardsEngine engine;
  std::vector<PplWindow> windows;
  double wanted = 0;
  for (int32_t i = 0; i < 10; ++i) {
    windows.push_back({.tokens = {9, i, i + 1}, .first_scored = i % 2});
    wanted += i % 2 == 0 ? 2 * i + 1 : i + 1;
  }
  int64_t last_done = 0;
  const auto totals = ScoreWindows(engine, windows, 3, [&](int64_t done, int64_t total, const PplTotals&) {
    EXPECT_GT(done, last_done);
    EXPECT_EQ(total, 10);
    last_done = done;
    return true;
  });
  ASSERT_TRUE(totals.ok()) << totals.status().message();
  EXPECT_EQ(totals->count(), 15);
  EXPECT_DOUBLE_EQ(totals->mean_nll(), wanted / 15);
  EXPECT_EQ(engine.most_waiting, 3u);
  EXPECT_EQ(ScoreWindows(engine, windows, 3, [](auto...) { return false; }).status().code(),
            StatusCode::kCancelled);
}

}  // namespace
}  // namespace cachalot
