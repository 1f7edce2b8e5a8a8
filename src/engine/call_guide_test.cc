#include "engine/call_guide.h"

#include <gtest/gtest.h>

#include "tokenizer/chat/answer_parser.h"
#include "tokenizer/chat/tool_prompt.h"

namespace cachalot {
namespace {

CallRule Rule(std::vector<std::string> names = {}) {
  return {.on = true, .in_prompt = true, .names = std::move(names), .middle = "\", \"arguments\": ", .close = "}\n</tool_call>"};
}

std::string Rest(const CallGuide& guide) { return guide.Rest().text; }

TEST(CallGuide, AnArgumentsObjectAndTheMarkupBehindIt) {
  CallGuide guide(Rule());
  EXPECT_EQ(Rest(guide), "{}}\n</tool_call>");
  EXPECT_FALSE(guide.Push("hello"));
  EXPECT_TRUE(guide.Push("{\"city\": \"Par"));
  EXPECT_EQ(Rest(guide), "\"}}\n</tool_call>");
  EXPECT_TRUE(guide.Push("is\"}"));
  EXPECT_TRUE(guide.open());
  EXPECT_EQ(Rest(guide), "}\n</tool_call>");
  EXPECT_FALSE(guide.Push(", "));
  EXPECT_TRUE(guide.Push("}"));  // without the line break of the template
  EXPECT_EQ(Rest(guide), "\n</tool_call>");
  EXPECT_TRUE(guide.Push("</tool_call>\nand more"));
  EXPECT_FALSE(guide.open());
  EXPECT_TRUE(guide.Push("anything"));
}

TEST(CallGuide, ANameFromTheList) {
  CallGuide guide(Rule({"get", "get_weather", "set"}));
  EXPECT_EQ(Rest(guide), "get\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(guide.Rest().name_bytes, 3u);
  EXPECT_FALSE(guide.Push("put"));
  EXPECT_TRUE(guide.Push("get_w"));
  EXPECT_EQ(Rest(guide), "eather\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(guide.Rest().name_bytes, 6u);
  EXPECT_FALSE(guide.Push("\""));
  EXPECT_TRUE(guide.Push("eather\",\"argum"));
  EXPECT_EQ(guide.Rest().name_bytes, 0u);
  EXPECT_EQ(Rest(guide), "ents\": {}}\n</tool_call>");
  EXPECT_TRUE(guide.Push("ents\":{}}</tool_call>"));
  EXPECT_FALSE(guide.open());
}

// What the parser takes for the name is one of the list.
TEST(CallGuide, NoSpaceInANameNorAroundOneInQuotes) {
  CallGuide quoted(Rule({"get", "get_weather"}));
  EXPECT_FALSE(quoted.Push(" get"));
  EXPECT_FALSE(quoted.Push("get _weather"));
  EXPECT_FALSE(quoted.Push("get \""));
  EXPECT_TRUE(quoted.Push("get\" , \"arguments\": {"));

  CallRule lines = Rule({"get", "get_weather"});
  lines.middle = "\n```json\n";
  CallGuide guide(lines);
  EXPECT_FALSE(guide.Push("ge\nt"));
  EXPECT_FALSE(guide.Push("get\n_weather"));
  EXPECT_TRUE(guide.Push(" get\n"));
  EXPECT_FALSE(guide.Push("_weather"));
  EXPECT_EQ(Rest(guide).substr(0, 10), "\n```json\n{");
  EXPECT_TRUE(guide.Push("```json\n{"));
}

TEST(CallGuide, NothingBeforeItBeginsNorWhereItIsOff) {
  CallRule later = Rule();
  later.in_prompt = false;
  CallGuide guide(later);
  EXPECT_TRUE(guide.Push("thoughts"));
  EXPECT_FALSE(guide.open());
  guide.Begin();
  EXPECT_FALSE(guide.Push("thoughts"));
  guide.End();
  EXPECT_TRUE(guide.Push("thoughts"));
  CallGuide off(CallRule{});
  off.Begin();
  EXPECT_FALSE(off.open());
}

// Cut off anywhere, a call is completed to one that the parser reads as such.
TEST(CallGuide, EveryBeginningOfACallIsCompleted) {
  const std::string text = "get_weather\", \"arguments\": {\"a\": [1, {\"b\": \"\\u00e9\"}], \"c\": true}}\n</tool_call>";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    CallGuide guide(Rule({"get_weather"}));
    ASSERT_TRUE(guide.Push(std::string_view(text).substr(0, cut)));
    AnswerParser parser({.tools = ToolSyntax::kHermes});
    std::vector<AnswerEvent> events;
    parser.Push("<tool_call>\n{\"name\": \"" + text.substr(0, cut) + Rest(guide), &events);
    parser.Finish(&events);
    int ends = 0;
    std::string arguments;
    for (const AnswerEvent& event : events) {
      EXPECT_NE(event.part, AnswerEvent::kContent) << cut << ": " << event.text;
      ends += event.part == AnswerEvent::kCallEnd;
      if (event.part == AnswerEvent::kCallArguments) arguments += event.text;
    }
    EXPECT_EQ(ends, 1) << cut;
    JsonPrefix json;
    for (const char c : arguments) ASSERT_TRUE(json.Push(c)) << arguments;
    EXPECT_TRUE(json.complete()) << arguments;
  }
}

}  // namespace
}  // namespace cachalot
