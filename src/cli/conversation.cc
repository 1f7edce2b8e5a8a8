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

Result<Conversation> Conversation::FromJson(const std::string& messages_json) {
  const nlohmann::json messages = nlohmann::json::parse(messages_json, nullptr, false);
  if (!messages.is_array()) return Corrupt("a conversation that is no JSON list");
  const auto text = [](const nlohmann::json& object, const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Conversation conversation;
  for (const auto& message : messages) {
    if (!message.is_object()) return Corrupt("a message that is no JSON object");
    const std::string role = text(message, "role"), content = text(message, "content");
    if (role == "system") {
      conversation.SetSystem(content);
    } else if (role == "user") {
      conversation.AddUser(content);
    } else if (role == "assistant" && !conversation.turns_.empty() && !conversation.turns_.back().answered) {
      Answer answer{.content = content, .reasoning = text(message, "reasoning_content"), .calls = {}};
      const auto calls = message.find("tool_calls");
      if (calls != message.end() && calls->is_array()) {
        for (const auto& call : *calls) {
          const auto function = call.is_object() ? call.find("function") : call.end();
          if (function == call.end() || !function->is_object()) return Corrupt("a tool call without a function");
          answer.calls.emplace_back(text(*function, "name"), text(*function, "arguments"));
        }
      }
      conversation.SetAnswer(std::move(answer));
    } else {
      return Corrupt("a message of role '{}' where none can be", role);
    }
  }
  return conversation;
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
