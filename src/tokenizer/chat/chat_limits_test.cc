// Hostile templates and requests: an error, after bounded steps and with little memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/chat/chat_testing.h"

namespace cachalot {
namespace {

using ::testing::HasSubstr;

ChatTemplateLimits Tight() {
  ChatTemplateLimits limits;
  limits.max_steps = 1'000'000;
  limits.max_output_bytes = 1 << 20;
  limits.max_memory_bytes = 16 << 20;
  return limits;
}

TEST(ChatLimits, HostileTemplatesEnd) {
  const ChatJson messages = ChatJson::parse(R"([{"role":"user","content":"x"}])");
  const ChatJson context = {{"big", std::string(100'000, 'a')}, {"l", {1, 2, 3}}};
  const char* sources[] = {
      // Time.
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% for a in range(100000) %}{{ big in big }}{% endfor %}",
      "{% for a in range(100000) %}{% if big == big ~ '' %}{% endif %}{% endfor %}",
      "{% for a in range(100000) %}{% set x = big|upper %}{% endfor %}",
      "{% for a in range(100000) %}{% set x = range(100000)|list|sort %}{% endfor %}",
      "{% for a in range(100000) %}{{ big.rfind('aab') }}{% endfor %}",
      "{% set x = 'é' ~ big %}{% for a in range(100000) %}{% set y = x[50000] %}{% endfor %}",
      // Memory.
      "{{ 'x' * 1000000000 }}",
      "{{ 'x' * 99999999999999999999 }}",
      "{{ [1] * 1000000000 }}",
      "{% set ns = namespace(s='x') %}{% for a in range(1000) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for a in range(1000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for a in range(1000) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{{ big|replace('', big) }}",
      "{{ big|replace('a', big) }}",
      "{{ big|list|join(big) }}",
      "{{ (big|list)|batch(1000000000, 'x')|list }}",
      "{{ l|slice(1000000000)|list }}",
      "{{ 'a'|center(1000000000) }}",
      "{{ 'a'.zfill(1000000000) }}",
      "{{ 'a\tb'.expandtabs(1000000000) }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '%.1000000000f' % 1.5 }}",
      "{{ '%*d' % (1000000000, 1) }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ '{:.1000000000f}'.format(1.5) }}",
      "{{ 'a\nb'|indent(1000000000) }}",
      "{{ l|tojson(indent=1000000000) }}",
      "{{ range(10000000) }}",
      "{% for a in range(100000) %}{{ big }}{% endfor %}",
      "{% set x %}{% for a in range(100000) %}{{ big }}{% endfor %}{% endset %}",
      "{{ strftime_now('%1000000d') }}",
      "{{ strftime_now(big) }}",
      "{% set ns = namespace(d={}) %}{% for a in range(100000) %}{% set ns.d = dict(ns.d, **{a ~ '': a}) "
      "%}{% endfor %}",
      // Depth.
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
      "{% macro m() %}{% call m() %}{% endcall %}{{ caller }}{% endmacro %}{{ m() }}",
      "{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for a in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[]) %}{% for a in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ "
      "ns.l|tojson }}",
      "{% set ns = namespace(l=[], m=[]) %}{% for a in range(9999) %}{% set ns.l = [ns.l] %}{% set ns.m = "
      "[ns.m] %}"
      "{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace(l=[], m=[]) %}{% for a in range(9999) %}{% set ns.l = [ns.l] %}{% set ns.m = "
      "[ns.m] %}"
      "{% endfor %}{{ ns.l < ns.m }}",
      "{% set ns = namespace(t=()) %}{% for a in range(9999) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {ns.t: "
      "1} }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{% set ns = namespace(i=l) %}{% for a in range(9999) %}{% set ns.i = ns.i|map('abs') %}{% endfor %}"
      "{{ ns.i|list }}",
      "{{ ('[' * 9999 ~ ']' * 9999)|from_json }}",
  };
  for (const char* source : sources) {
    const Result<RenderedPrompt> prompt = RenderWith(source, messages, context, Tight());
    EXPECT_FALSE(prompt.ok()) << source;
    EXPECT_EQ(prompt.status().code(), StatusCode::kExhausted) << source << "\n" << prompt.status().ToString();
  }
}

TEST(ChatLimits, WidthsBeyondAllNumbers) {
  // Found by fuzzing: products and sums of what a template says must not overflow.
  const ChatJson context = {{"l", {1, 2, 3}}};
  for (const char* width : {"99999999999999999999", "-99999999999999999999", "2**62", "-(2**62)", "2**126"}) {
    for (const char* use : {"l|batch(W, 0)|list",
                            "l|slice(W)|list",
                            "'a'|center(W)",
                            "'abc'|truncate(W, leeway=W)",
                            "'a' * W",
                            "[1] * W",
                            "l[W:W:W]",
                            "'abc'[:W]",
                            "range(W, W + 1, W)[::-1]",
                            "'a'.zfill(W)",
                            "'abc'.find('c', W, W)",
                            "'a\t'.expandtabs(W)",
                            "W // -1",
                            "W * W",
                            "(W)|abs",
                            "(W)|round(-3)",
                            "2.5|round(W)",
                            "'%*d' % (W, 1)",
                            "'a'.ljust(W)",
                            "l|tojson(indent=W)"}) {
      std::string source = fmt::format("{{{{ {} }}}}", use);
      for (size_t at = source.find('W'); at != source.npos; at = source.find('W', at))
        source.replace(at, 1, width);
      const Result<RenderedPrompt> prompt = RenderWith(source, ChatJson::array(), context, Tight());
      EXPECT_TRUE(prompt.ok() || !prompt.status().message().empty()) << source;
    }
  }
}

std::string Repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(ChatLimits, DeepSourcesAreRefused) {
  constexpr int kDeep = 50'000;
  const std::string sources[] = {
      "{{ " + Repeat("(", kDeep) + "1" + Repeat(")", kDeep) + " }}",
      "{{ " + Repeat("[", kDeep) + Repeat("]", kDeep) + " }}",
      "{{ " + Repeat("{1:", kDeep) + "1" + Repeat("}", kDeep) + " }}",
      "{{ " + Repeat("not ", kDeep) + "1 }}",
      "{{ " + Repeat("- ", kDeep) + "1 }}",
      "{{ 1" + Repeat(" + 1", kDeep) + " }}",
      "{{ 1" + Repeat(" ** 1", kDeep) + " }}",
      "{{ 1" + Repeat(" and 1", kDeep) + " }}",
      "{{ x" + Repeat(".x", kDeep) + " }}",
      "{{ x" + Repeat("[0]", kDeep) + " }}",
      "{{ x" + Repeat("()", kDeep) + " }}",
      "{{ x" + Repeat("|abs", kDeep) + " }}",
      "{{ " + Repeat("x(", kDeep) + Repeat(")", kDeep) + " }}",
      "{{ " + Repeat("1 if 1 else ", kDeep) + "1 }}",
      "{{ 1" + Repeat(" if 1", kDeep) + " }}",
      Repeat("{% if 1 %}", kDeep) + Repeat("{% endif %}", kDeep),
      Repeat("{% for x in y %}", kDeep) + Repeat("{% endfor %}", kDeep),
      "{% set " + Repeat("(", kDeep) + "x" + Repeat(")", kDeep) + " = 1 %}",
      "{{ 1 }}" + Repeat("{{ a }}", 120'000),  // many nodes
  };
  for (const std::string& source : sources) {
    const Status status = RenderWith(source, ChatJson::array(), ChatJson::object(), Tight()).status();
    EXPECT_EQ(status.code(), StatusCode::kExhausted) << source.substr(0, 40) << "\n" << status.ToString();
  }
  ChatTemplateLimits short_source;
  short_source.max_source_bytes = 10;
  EXPECT_EQ(ChatTemplate::Parse("01234567890", "", "", short_source).status().code(), StatusCode::kExhausted);
}

TEST(ChatLimits, WidthIsNoDepth) {
  // Many names and many ifs: the analysis of variables stays near linear.
  std::string source;
  for (int i = 0; i < 4000; ++i) source += fmt::format("{{% set a{} = {} %}}", i, i);
  for (int i = 0; i < 4000; ++i)
    source += fmt::format("{{% if a{} %}}{{% set b{} = 1 %}}{{% endif %}}", i, i);
  source += Repeat("{% elif x %}", 0) + "{% if 0 %}" + Repeat("{% elif 0 %}{% set q = 1 %}", 2000) +
            "{% endif %}done";
  const Result<RenderedPrompt> prompt = RenderWith(source, ChatJson::array());
  ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
  EXPECT_EQ(prompt->text, "done");
}

TEST(ChatLimits, DeepRequestsAreRefused) {
  ChatJson deep = 1;
  for (int i = 0; i < 1000; ++i) deep = ChatJson::array({deep});
  const ChatJson messages = {{{"role", "user"}, {"content", "x"}, {"extra", deep}}};
  const Status status = RenderWith("{{ messages }}", messages).status();
  EXPECT_EQ(status.code(), StatusCode::kExhausted) << status.ToString();
}

TEST(ChatLimits, LargeRequestsPass) {
  ChatJson messages = ChatJson::array();
  for (int i = 0; i < 50; ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(200'000, 'x')}});
  }
  const Result<RenderedPrompt> prompt =
      RenderWith(ReadChatFile("templates/deepseek-ai-DeepSeek-V3.1.jinja"), messages);
  ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
  EXPECT_GT(prompt->text.size(), 10'000'000u);
  EXPECT_EQ(prompt->user_ranges.size(), 50u);
}

TEST(ChatLimits, DamagedUtf8IsKept) {
  const ChatJson messages = {{{"role", "user"}, {"content", "a\xff\xc3(\xe2\x82"}}};
  const Result<RenderedPrompt> prompt = RenderWith(
      "{{ messages[0].content }}|{{ messages[0].content[::-1] }}|{{ messages[0].content|length }}", messages);
  ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
  EXPECT_EQ(prompt->text,
            "a\xff\xc3(\xe2\x82|\x82\xe2(\xc3\xff"
            "a|6");
}

}  // namespace
}  // namespace cachalot
