#include "cli/conversation.h"

#include <nlohmann/json.hpp>

namespace cachalot {

void Conversation::SetAnswer(Answer answer) {
  CHECK(!turns_.empty());
  turns_.back().assistant = std::move(answer);
  turns_.back().answered = true;
}

void Conversation::DropLast() {
  CHECK(!turns_.empty());
  turns_.pop_back();
}

std::string Conversation::Json(int indent) const {
  using Json = nlohmann::ordered_json;
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const auto& turn : turns_) {
    messages.push_back({{"role", "user"}, {"content", turn.user}});
    if (!turn.answered) continue;
    Json message = {{"role", "assistant"}, {"content", turn.assistant.content}};
    if (!turn.assistant.reasoning.empty()) message["reasoning_content"] = turn.assistant.reasoning;
    for (const auto& [name, arguments] : turn.assistant.calls) {
      // Mistral's templates insist on nine characters.
      message["tool_calls"].push_back({{"id", fmt::format("call{:05}", message["tool_calls"].size())},
                                       {"type", "function"},
                                       {"function", {{"name", name}, {"arguments", arguments}}}});
    }
    messages.push_back(std::move(message));
  }
  return messages.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Result<Conversation::Fitted> Conversation::Fit(const Encode& encode, int64_t limit) {
  Fitted fitted;
  for (;;) {
    ASSIGN_OR_RETURN(fitted.tokens, encode(Json()));
    if (static_cast<int64_t>(fitted.tokens.size()) <= limit) return fitted;
    if (turns_.size() <= 1) {
      return InvalidArgument(
          "this message makes a prompt of {} tokens; the context has room for {} (-c makes it larger)",
          fitted.tokens.size(), limit);
    }
    turns_.erase(turns_.begin());
    ++fitted.dropped_turns;
  }
}

}  // namespace cachalot
