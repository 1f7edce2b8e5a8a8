// From the parts of an answer to the pieces that a client gets of it.
#include <algorithm>
#include <random>
#include <string_view>

#include "server/api/reply.h"

namespace cachalot {
namespace {

// Mistral's templates insist on nine letters and digits.
std::string NewCallId(ToolSyntax syntax) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 generator{std::random_device{}()};
  const bool is_short = syntax == ToolSyntax::kMistral;
  std::string id = is_short ? "" : "call_";
  for (int i = is_short ? 9 : 24; i > 0; --i) id += kDigits[generator() % kDigits.size()];
  return id;
}

bool IsTool(const std::string& name, const std::vector<std::string>& tools) {
  return std::find(tools.begin(), tools.end(), name) != tools.end();
}

}  // namespace

void TakeParts(const std::vector<AnswerEvent>& parts, const GenerationParams& params, Choice* choice, ChoiceDelta* delta) {
  for (const AnswerEvent& part : parts) {
    if (choice->cut) return;
    switch (part.part) {
      case AnswerEvent::kReasoning:
        delta->reasoning += part.text;
        break;
      case AnswerEvent::kContent:
        delta->content += part.text;
        break;
      case AnswerEvent::kMarkup:
        break;
      case AnswerEvent::kCallName:
        choice->leaves_call = params.forces_call && choice->calls.empty() && !IsTool(part.text, params.format.tool_names);
        if (choice->leaves_call) break;
        choice->calls.push_back({NewCallId(params.format.tools), part.text, ""});
        delta->calls.push_back({choice->calls.size() - 1, choice->calls.back()});
        break;
      case AnswerEvent::kCallArguments: {
        if (choice->leaves_call) break;
        const size_t index = choice->calls.size() - 1;
        choice->calls.back().arguments += part.text;
        if (delta->calls.empty() || delta->calls.back().index != index) delta->calls.push_back({index, {}});
        delta->calls.back().part.arguments += part.text;
        break;
      }
      case AnswerEvent::kCallEnd:
        if (!choice->leaves_call) choice->calls.back().ended = true;
        choice->cut = !params.parallel_tool_calls;
        break;
    }
  }
}

}  // namespace cachalot
