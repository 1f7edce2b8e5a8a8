#include "tokenizer/chat/answer_parser.h"

#include <gtest/gtest.h>

#include "tokenizer/chat/answer_testing.h"

namespace cachalot {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

struct Case {
  ToolSyntax syntax;
  std::string text;
  std::string reasoning, content;
  Calls calls;
  bool in_reasoning = false;
  int num_open = 0;  // calls that have no end
};

constexpr ToolSyntax kNone = ToolSyntax::kNone, kHermes = ToolSyntax::kHermes, kLlama = ToolSyntax::kLlama,
                     kMistral = ToolSyntax::kMistral, kV3 = ToolSyntax::kDeepSeekV3, kV31 = ToolSyntax::kDeepSeekV31,
                     kV32 = ToolSyntax::kDeepSeekV32;

AnswerFormat FormatOf(const Case& c) {
  return {.in_reasoning = c.in_reasoning, .tools = c.syntax, .tool_names = {"f", "get_weather", "wetter_für"}};
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      // Reasoning.
      {kNone, "<think>\nwhy\n</think>\n\nbecause", "why", "because", {}},
      {kNone, "  \n<think>why</think>because", "why", "because", {}},
      {kNone, "\n\nwhy </think>  because <think>x</think>", "why", "because <think>x</think>", {}, true},
      {kNone, "no tags", "", "no tags", {}},
      {kNone, "  a <think>x</think>", "", "  a <think>x</think>", {}},
      {kNone, "<think>cut off", "cut off", "", {}},
      {kNone, "<think>a < b </thin", "a < b </thin", "", {}},
      {kNone, "</think>x", "", "x", {}, true},
      {kNone, "<think></think>", "", "", {}},
      {kNone, "<thin", "", "<thin", {}},
      {kNone, "", "", "", {}, true},
      {kNone, "ü</think>ö", "ü", "ö", {}, true},
      {kNone, "<tool_call>{\"name\": \"f\"}</tool_call>", "", "<tool_call>{\"name\": \"f\"}</tool_call>", {}},

      // Qwen.
      {kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", "", {{"f", "{\"a\": 1}"}}},
      {kHermes,
       "<think>\nLook.\n</think>\n\nI ask.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": {\"b\": [\"}\"]}}}\n"
       "</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>",
       "Look.", "I ask.", {{"f", "{\"a\": {\"b\": [\"}\"]}}"}, {"get_weather", "{}"}}},
      {kHermes, "<tool_call>{\"arguments\": {\"x\": \"é\\u00e9\"}, \"name\": \"wetter_f\\u00fcr\"}</tool_call>", "", "",
       {{"wetter_für", "{\"x\": \"é\\u00e9\"}"}}},
      {kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"</tool_call> <tool_call>\"}}</tool_call>", "", "",
       {{"f", "{\"x\":\"</tool_call> <tool_call>\"}"}}},
      {kHermes, "<tool_call>{\"name\": \"f\"}</tool_call> done", "", "done", {{"f", "{}"}}},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", "", "", {{"f", "{\"a\": \"b"}}, false, 1},
      {kHermes, "<tool_call>{\"name\": \"f\"", "", "", {{"f", ""}}, false, 1},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}", "", "", {{"f", "{}"}}},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool", "", "", {{"f", "{}"}}},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b\n</tool_call>then", "", "then", {{"f", "{\"a\": \"b\n"}}},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>", "", "", {{"f", "{\"a\": 1}"}}},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}\n</tool_call>", "", "", {{"f", "{\"a\": 1}"}}},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}} trailing", "", "trailing", {{"f", "{\"a\": 1}"}}},
      {kHermes, "<tool_call>{\"name\": \"f\", arguments: {\"a\": 1}}</tool_call>", "", "", {{"f", "arguments: {\"a\": 1}}"}}},
      {kHermes, "<tool_call>\nhello\n</tool_call>", "", "hello\n", {}},
      {kHermes, "<tool_call>{\"nam", "", "", {}},
      {kHermes, "<tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": 7}", "", "", {{"f", "7"}}},
      {kHermes, "a </tool_call> b <tool_cal", "", "a b <tool_cal", {}},
      {kHermes, "<tool_call>{\"id\": [1, \"x\"], \"name\": \"f\", \"arguments\": \"{}\", \"more\": null}</tool_call>", "", "",
       {{"f", "\"{}\""}}},

      // Llama.
      {kLlama, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Köln\"}}", "", "",
       {{"get_weather", "{\"city\": \"Köln\"}"}}},
      {kLlama, "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {\"a\": 2}}", "",
       "", {{"f", "{}"}, {"f", "{\"a\": 2}"}}},
      {kLlama, "<|python_tag|>brave_search.call(query=\"a, b (c)\", n=3, x=True)", "", "",
       {{"brave_search", "{\"query\":\"a, b (c)\",\"n\":3,\"x\":true}"}}},
      {kLlama, "<|python_tag|>print(1)", "", "print(1)", {}},
      {kLlama, "{\"name\": \"John\", \"age\": 5}", "", "{\"name\": \"John\", \"age\": 5}", {}},
      {kLlama, " {\"city\": 1} and", "", " {\"city\": 1} and", {}},
      {kLlama, "Say {\"name\": \"f\"}", "", "Say {\"name\": \"f\"}", {}},
      {kLlama, "{\"name\": \"f\", \"parameters\": {\"a\": [1, 2", "", "", {{"f", "{\"a\": [1, 2"}}, false, 1},
      {kLlama, "{\"name\": \"f\", \"param", "", "", {{"f", ""}}, false, 1},
      {kLlama, "{\"name\": \"get_", "", "", {}},
      {kLlama, "{\"name\": \"Jo", "", "{\"name\": \"Jo", {}},
      {kLlama, "<|python_tag|>f.ca", "", "", {}},
      {kLlama, "<|python_tag|>get_w", "", "", {}},
      {kLlama, "<|python_tag|>print", "", "print", {}},
      {kLlama, "<|python_tag|>f.call(", "", "", {{"f", ""}}, false, 1},
      {kLlama, "<|python_tag|>f.call(a=\"b, c\", n=3", "", "", {{"f", "{\"a\":\"b, c\""}}, false, 1},
      {kLlama, "{\"name\": \"f\", \"parameters\": {}} That is all.", "", "That is all.", {{"f", "{}"}}},
      {kLlama, "{\"name\": ", "", "", {}},
      {kLlama, " {\"nam", "", "", {}},
      {kLlama, "{\"nick", "", "{\"nick", {}},
      {kLlama, "{\"id\": 5", "", "{\"id\": 5", {}},
      {kLlama, "{ \"parameters\": {\"a\": 1}, ", "", "{ \"parameters\": {\"a\": 1}, ", {}},
      {kLlama, "{\n \"type\": \"function\", \"na", "", "", {}},

      // Mistral.
      {kMistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}, {\"name\": \"get_weather\", \"arguments\": {}, \"id\": \"x\"}]",
       "", "", {{"f", "{\"a\": \"]\"}"}, {"get_weather", "{}"}}},
      {kMistral, "Well. [TOOL_CALLS]{\"name\": \"f\", \"arguments\": {\"t\": \"[TOOL_CALLS]\"}}", "", "Well. ",
       {{"f", "{\"t\": \"[TOOL_CALLS]\"}"}}},
      {kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{\"b\": \"[ARGS]\"}", "", "",
       {{"f", "{\"a\": 1}"}, {"get_weather", "{\"b\": \"[ARGS]\"}"}}},
      {kMistral, "[TOOL_CALLS]f[ARGS]", "", "", {{"f", ""}}, false, 1},
      {kMistral, "[TOOL_CALLS]f [ARGS]{\"a\": [", "", "", {{"f", "{\"a\": ["}}, false, 1},
      {kMistral, "[TOOL_CALLS]f[ARGS][TOOL_CALLS]f[AR", "", "", {{"f", "{}"}}},
      {kMistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [", "", "", {{"f", "{\"a\": ["}}, false, 1},
      {kMistral, "[TOOL_CALLS]f", "", "", {}},
      {kMistral, "see [ARGS] and [TOOL", "", "see [ARGS] and [TOOL", {}},
      {kMistral, "[TOOL_CALLS] [{\"arguments\": 1}] x", "", "{\"arguments\": 1}] x", {}},

      // DeepSeek.
      {kV3,
       "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"`` `\"}\n```<｜tool▁call▁end｜>\n"
       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"北京\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "", "Let me see.", {{"f", "{\"a\": \"`` `\"}"}, {"get_weather", "{\"city\": \"北京\"}"}}},
      {kV3, "ok</think>\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{\"a\": 1}<｜tool▁call▁end｜>", "ok", "",
       {{"f", "{\"a\": 1}"}}, true},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": [1\n```<｜tool▁call▁end｜>", "", "", {{"f", "{\"a\": [1"}}},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n``", "", "", {{"f", ""}}, false, 1},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "", "", {}},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get", "", "", {}},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f<｜tool▁call▁end｜>", "", "", {{"f", "{}"}}},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"b ", "", "", {{"f", "{\"a\": \"b "}}, false, 1},
      {kV3, "<｜tool▁call▁begin｜>func", "", "", {}},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json {\"a\": 1}```<｜tool▁call▁end｜>", "", "", {{"f", "{\"a\": 1}"}}},
      {kV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n```<｜tool▁call▁end｜>", "", "", {{"f", "{}"}}},
      {kV31,
       "Hm. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
       "{\"q\": {}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "", "Hm. ", {{"f", "{\"a\": 1}"}, {"get_weather", "{\"q\": {}}"}}},
      {kV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>no json<｜tool▁call▁end｜>", "", "", {{"f", "no json"}}},
      {kV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "", "", {{"f", "{}"}, {"f", "{}"}}},
      {kV31, "<｜tool▁call▁begin｜>get", "", "", {}},
      {kV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "", "", {{"f", ""}}, false, 1},
      {kV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call", "", "", {{"f", "{\"a\": 1}"}}},
      {kV31, "<｜tool▁sep｜>x<｜tool▁calls▁end｜><｜tool", "", "x", {}},

      // DeepSeek V3.2.
      {kV32,
       "Sure.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">say \"hi\"\n"
       "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">[1, {\"a\": 2}]</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
       "<｜DSML｜invoke name=\"get_weather\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       "", "Sure.", {{"f", "{\"s\": \"say \\\"hi\\\"\\n\", \"n\": [1, {\"a\": 2}]}"}, {"get_weather", "{}"}}},
      {kV32, "so</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n{\"a\": 1}\n</｜DSML｜invoke>", "so", "",
       {{"f", "{\"a\": 1}"}}, true},
      {kV32, "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" string=\"true\">cut", "", "", {{"f", "{\"s\": \"cut"}}, false, 1},
      {kV32, "<｜DSML｜invoke name=\"f\">\n", "", "", {{"f", ""}}, false, 1},
      {kV32, "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" string=\"false\">1</｜DSML｜parameter>\n", "", "", {{"f", "{\"s\": 1"}}, false, 1},
      {kV32, "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" string=\"true\">cut</｜DSML｜invoke>", "", "", {{"f", "{\"s\": \"cut\"}"}}},
      {kV32, "<｜DSML｜invoke name=\"f", "", "", {}},
      {kV32, "a</｜DSML｜parameter> b <｜DSML｜", "", "ab ", {}},
  };
  return cases;
}

TEST(AnswerParser, EverySplitGivesTheSame) {
  for (const Case& c : Cases()) {
    const std::string_view text = c.text;
    const ParsedAnswer whole = ParseAnswer(FormatOf(c), {text});
    EXPECT_EQ(whole.reasoning, c.reasoning) << text;
    EXPECT_EQ(whole.content, c.content) << text;
    EXPECT_EQ(whole.calls, c.calls) << text;
    EXPECT_EQ(whole.raw, text);
    EXPECT_EQ(whole.num_ended, static_cast<int>(whole.calls.size()) - c.num_open) << text;
    for (size_t i = 0; i <= text.size(); ++i) {
      ASSERT_EQ(ParseAnswer(FormatOf(c), {text.substr(0, i), text.substr(i)}), whole) << text << " cut at " << i;
      if (text.size() > 100) continue;
      for (size_t j = i; j <= text.size(); ++j) {
        ASSERT_EQ(ParseAnswer(FormatOf(c), {text.substr(0, i), text.substr(i, j - i), text.substr(j)}), whole)
            << text << " cut at " << i << " and " << j;
      }
    }
  }
}

// An answer may end anywhere: no part of the markup shows, what was said is not taken back, and no more of a call is there than
// was written.
TEST(AnswerParser, EveryPrefixIsAnAnswer) {
  for (const Case& c : Cases()) {
    const ParsedAnswer whole = ParseAnswer(FormatOf(c), {c.text});
    for (size_t n = 0; n < c.text.size(); ++n) {
      const std::string text = c.text.substr(0, n);
      const ParsedAnswer parsed = ParseAnswer(FormatOf(c), {text});
      ASSERT_EQ(parsed.raw, text);
      ASSERT_LE(parsed.calls.size(), whole.calls.size()) << text;
      ASSERT_GE(parsed.num_ended + 1, static_cast<int>(parsed.calls.size())) << text;
      for (size_t i = 0; i < parsed.calls.size(); ++i) {
        const bool is_last = i + 1 == parsed.calls.size();
        ASSERT_EQ(parsed.calls[i].first, whole.calls[i].first) << text;
        ASSERT_TRUE(is_last || parsed.calls[i].second == whole.calls[i].second) << text;
        const std::string& arguments = parsed.calls[i].second;
        if (arguments.find("｜") != arguments.npos || arguments.find("\n<") != arguments.npos) continue;  // a tag's part, in a string
        ASSERT_TRUE(whole.calls[i].second.starts_with(arguments)) << text << ": " << arguments;
        if (!is_last) continue;
        // {} is there if it was written, or the call ended.
        const bool ended = parsed.num_ended == static_cast<int>(parsed.calls.size());
        ASSERT_TRUE(ended ? !arguments.empty() : arguments != "{}") << text;
      }
      if (c.syntax == kNone) continue;
      for (const char* tag : {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                              "<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", "function"}) {
        ASSERT_EQ(parsed.content.find(tag), std::string::npos) << text;
      }
    }
  }
}

TEST(AnswerParser, CodeIsNoCallThatIsCutOff) {
  for (const std::string code : {"f.call(a=\"b\") + f.ca", "f.call(1", "f.call(a=1) # more", "f.calls", "print(f.ca"}) {
    const ParsedAnswer parsed = ParseAnswer(FormatOf({kLlama, "", "", "", {}}), {"<|python_tag|>" + code});
    EXPECT_EQ(parsed.content, code);
    EXPECT_TRUE(parsed.calls.empty()) << code;
  }
}

// One call in each way of writing it: what is delivered of it when the answer ends behind its first n bytes.
TEST(AnswerParser, ACallThatIsCutOffIsWhatWasWrittenOfIt) {
  struct Way {
    ToolSyntax syntax;
    std::string before, middle, close;  // around name and arguments
    std::string space = "";             // what the name has to be followed by to be whole
  };
  const std::string name = "get_weather", arguments = R"({"city": "Köln [`1`]", "days": [1, {"a": null}]})";
  const Way ways[] = {
      {kHermes, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\""},
      {kLlama, "{\"name\": \"", "\", \"parameters\": ", "}", "\""},
      {kLlama, "<|python_tag|>{\"type\": \"function\", \"name\": \"", "\", \"parameters\": ", "}", "\""},
      {kMistral, "[TOOL_CALLS] [{\"name\": \"", "\", \"arguments\": ", "}]", "\""},
      {kMistral, "[TOOL_CALLS]", "[ARGS]", "", "[ARGS]"},
      {kMistral, "[TOOL_CALLS]", "[CALL_ID]123456789[ARGS]", "", "[CALL_ID]123456789[ARGS]"},
      {kV3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "\n"},
      {kV31, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "<｜tool▁sep｜>"},
      {kV32, "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", "\">\n", "\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", "\">"},
  };
  for (const Way& way : ways) {
    const std::string head = way.before + name + way.middle, text = head + arguments + way.close;
    for (size_t n = way.before.size(); n <= text.size(); ++n) {
      const std::string cut = text.substr(0, n);
      const ParsedAnswer parsed = ParseAnswer(FormatOf({way.syntax, "", "", "", {}}), {cut});
      ASSERT_EQ(parsed.raw, cut);
      ASSERT_EQ(parsed.content, "") << cut;
      const bool has_name = n >= way.before.size() + name.size() + way.space.size();
      ASSERT_EQ(parsed.calls.size(), has_name ? 1u : 0u) << cut;
      if (!has_name) continue;
      ASSERT_EQ(parsed.calls[0].first, name) << cut;
      ASSERT_EQ(parsed.num_ended, n >= head.size() + arguments.size() ? 1 : 0) << cut;
      // White space at a cut, and backticks, may be what stands around the arguments.
      std::string written = n > head.size() ? arguments.substr(0, n - head.size()) : "";
      std::string got = parsed.calls[0].second;
      while (written.ends_with(' ') && got != written) written.pop_back();
      ASSERT_EQ(got, written) << cut;
    }
  }
}

TEST(AnswerParser, ReasoningAsTheTemplatePrintsIt) {
  AnswerFormat format;
  format.space = {.printed = true, .after_open = "\n", .before_close = "\n", .after_close = "\n\n"};
  for (const bool inside : {false, true}) {
    format.in_reasoning = inside;
    const std::string text = std::string(inside ? "" : "<think>") + "\n\n why \n\n</think>\n\n\nbecause";
    for (size_t i = 0; i <= text.size(); ++i) {
      const ParsedAnswer parsed = ParseAnswer(format, {std::string_view(text).substr(0, i), std::string_view(text).substr(i)});
      ASSERT_EQ(parsed.reasoning, "\n why \n") << i;
      ASSERT_EQ(parsed.content, "\nbecause") << i;
      ASSERT_EQ(parsed.raw, text);
    }
  }
  format.space = {.printed = true, .after_open = "", .before_close = "", .after_close = ""};
  EXPECT_EQ(ParseAnswer(format, {"\n why \n</think>\nbecause"}).reasoning, "\n why \n");
}

TEST(AnswerParser, OffLeavesEverything) {
  EXPECT_EQ(ParseAnswer({.split_reasoning = false, .in_reasoning = true}, {"<think>a</think>"}).content, "<think>a</think>");
}

// Pieces come out as soon as they are decided.
TEST(AnswerParser, ArgumentsStream) {
  AnswerParser parser({.tools = kHermes});
  std::vector<AnswerEvent> events;
  parser.Push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"bc", &events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "f");
  EXPECT_EQ(events[1].text, "{\"a\": \"bc");
}

// Time grows with the text, and what is held back does not.
TEST(AnswerParser, LongTextsAreCheapAndNotHeld) {
  const std::vector<std::pair<ToolSyntax, std::string>> begins = {
      {kHermes, "<tool_call>{\"x\": \""},  {kHermes, "<tool_call>{\"arguments\": {\"a\": \"<tool_call>"}, {kLlama, "{\"name\": \""},
      {kLlama, "<|python_tag|>f.call("},   {kMistral, "[TOOL_CALLS]"},                {kV3, "<｜tool▁call▁begin｜>"},
      {kV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"}, {kV32, "<｜DSML｜invoke name=\""}, {kNone, "<think>"},  {kHermes, " \n"}};
  for (const auto& [syntax, begin] : begins) {
    for (const std::string& unit : {begin, std::string(" "), std::string("`"), std::string("<tool_call>{")}) {
      AnswerParser parser({.tools = syntax, .tool_names = {"f"}, .keep_raw = true});
      std::vector<AnswerEvent> events;
      size_t in = 0, out = 0, most = 0;
      const auto push = [&](const std::string& text) {
        events.clear();
        parser.Push(text, &events);
        in += text.size();
        for (const auto& event : events) out += event.raw.size();
        most = std::max(most, in - out);
      };
      push(begin);
      while (in < 200'000) push(unit);
      EXPECT_LE(most, AnswerParser::kMaxHeldBytes + 64) << begin << " then " << unit;
    }
  }
}

TEST(ToolSyntax, NamesAreFoundAgain) {
  for (const ToolSyntax syntax : AllToolSyntaxes()) {
    EXPECT_EQ(FindToolSyntax(ToolSyntaxName(syntax)), syntax);
    EXPECT_FALSE(ToolSyntaxMarks(syntax).empty());
  }
  EXPECT_EQ(FindToolSyntax("none"), kNone);
  EXPECT_FALSE(FindToolSyntax("qwen9").has_value());
}

}  // namespace
}  // namespace cachalot
