#include "server/api/chat_request.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace cachalot {
namespace {

constexpr size_t kMaxMessages = 16384;
constexpr int64_t kMaxTopLogprobs = 20;
constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

ApiError Wrong(std::string param, std::string message, std::string code = "") {
  ApiError error;
  error.param = std::move(param);
  error.message = std::move(message);
  error.code = std::move(code);
  return error;
}

// Text alone: a template that knows of images would write their marks without an image behind them.
std::optional<ApiError> CheckContent(const ChatJson& content, const std::string& place) {
  if (content.is_null() || content.is_string()) return std::nullopt;
  if (!content.is_array()) {
    return Wrong(place, fmt::format("{} is {}: must be a string or a list of parts", place, Preview(content)), "invalid_type");
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const ChatJson& part = content[i];
    if (part.is_string()) continue;
    const std::string part_place = fmt::format("{}[{}]", place, i);
    if (!part.is_object()) {
      return Wrong(part_place, fmt::format("{} is {}: must be an object", part_place, Preview(part)), "invalid_type");
    }
    const auto type = part.find("type");
    if (type != part.end() && *type != "text" && *type != "input_text" && *type != "output_text") {
      return Wrong(part_place, fmt::format("{}.type is {}: this model takes text", part_place, Preview(*type)), "unsupported_value");
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) {
      return Wrong(part_place, fmt::format("{}.text must be a string", part_place), "invalid_type");
    }
  }
  return std::nullopt;
}

std::optional<ApiError> CheckCalls(const ChatJson& calls, const std::string& place) {
  if (!calls.is_array()) return Wrong(place, fmt::format("{} is {}: must be a list", place, Preview(calls)), "invalid_type");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_place = fmt::format("{}[{}].function", place, i);
    const auto function = calls[i].is_object() ? calls[i].find("function") : calls[i].end();
    if (!calls[i].is_object() || function == calls[i].end() || !function->is_object()) {
      return Wrong(call_place, call_place + " must be an object", "invalid_type");
    }
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) return Wrong(call_place + ".name", call_place + ".name must be a string", "invalid_type");
    const auto arguments = function->find("arguments");
    if (arguments != function->end() && !arguments->is_string() && !arguments->is_object()) {
      return Wrong(call_place + ".arguments", fmt::format("{}.arguments is {}: must be a string", call_place, Preview(*arguments)), "invalid_type");
    }
  }
  return std::nullopt;
}

// The messages, checked and with developer turned into system.
std::optional<ApiError> TakeMessages(const ChatJson& body, ChatJson* messages) {
  const auto found = body.find("messages");
  if (found == body.end()) return Wrong("messages", "messages is missing: must be a list of at least one message", "missing_field");
  if (!found->is_array()) {
    return Wrong("messages", fmt::format("messages is {}: must be a list", Preview(*found)), "invalid_type");
  }
  if (found->empty() || found->size() > kMaxMessages) {
    return Wrong("messages", fmt::format("messages has {} entries: must have 1..{}", found->size(), kMaxMessages), "out_of_range");
  }
  *messages = *found;
  for (size_t i = 0; i < messages->size(); ++i) {
    ChatJson& message = (*messages)[i];
    const std::string place = fmt::format("messages[{}]", i);
    if (!message.is_object()) return Wrong(place, fmt::format("{} is {}: must be an object", place, Preview(message)), "invalid_type");
    const auto role = message.find("role");
    if (role == message.end() || std::find(kRoles.begin(), kRoles.end(), *role) == kRoles.end()) {
      return Wrong(place + ".role", fmt::format("{}.role is {}: must be system, developer, user, assistant or tool", place,
                                                role == message.end() ? "missing" : Preview(*role)), "invalid_value");
    }
    if (*role == "developer") *role = "system";
    const bool assistant = *role == "assistant";
    // Both names of the field are in use; templates read the older one.
    if (const auto reasoning = message.find("reasoning");
        assistant && reasoning != message.end() && reasoning->is_string() && !message.contains("reasoning_content")) {
      message["reasoning_content"] = ChatJson(*reasoning);
    }
    const auto content = message.find("content");
    if (!assistant && (content == message.end() || content->is_null())) {
      return Wrong(place + ".content", fmt::format("{}.content is missing", place), "missing_field");
    }
    // Nothing said is an empty text; templates expect null beside tool calls only.
    if (assistant && !message.contains("tool_calls") && (content == message.end() || content->is_null())) {
      message["content"] = "";
      continue;
    }
    if (content != message.end()) {
      if (auto error = CheckContent(*content, place + ".content")) return error;
    }
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || calls->is_null()) continue;
    if (auto error = CheckCalls(*calls, place + ".tool_calls")) return error;
  }
  return std::nullopt;
}

// Variables of the template: chat_template_kwargs, enable_thinking under both names that templates have for it, and
// reasoning_effort as those templates know it that read it.
std::optional<ApiError> TakeExtra(const ChatJson& body, ChatJson* extra) {
  *extra = ChatJson::object();
  if (const auto found = body.find("chat_template_kwargs"); found != body.end() && !found->is_null()) {
    if (!found->is_object()) {
      return Wrong("chat_template_kwargs", fmt::format("chat_template_kwargs is {}: must be an object", Preview(*found)), "invalid_type");
    }
    *extra = *found;
  }
  if (const auto found = body.find("enable_thinking"); found != body.end() && !found->is_null()) {
    if (!found->is_boolean()) {
      return Wrong("enable_thinking", fmt::format("enable_thinking is {}: must be true or false", Preview(*found)), "invalid_type");
    }
    for (const char* name : {"enable_thinking", "thinking"}) {
      if (!extra->contains(name)) (*extra)[name] = ChatJson(*found);
    }
  }
  if (const auto found = body.find("reasoning_effort"); found != body.end() && !found->is_null()) {
    if (!found->is_string()) {
      return Wrong("reasoning_effort", fmt::format("reasoning_effort is {}: must be a string", Preview(*found)), "invalid_type");
    }
    if (!extra->contains("reasoning_effort")) (*extra)["reasoning_effort"] = ChatJson(*found);
  }
  return std::nullopt;
}

std::string_view Trimmed(std::string_view text, bool at_end) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (at_end) text = text.substr(0, text.find_last_not_of(kSpace) + 1);
  return text;
}

// The prompt ends where the text of the last message does, so that the answer goes on with it. Templates may trim a
// message: then its spaces at the end are left out.
std::optional<ApiError> CutBehindLastMessage(const ChatJson& messages, RenderedPrompt* prompt) {
  const ChatJson& last = messages.back();
  const auto content = last.find("content");
  if (last.at("role") != "assistant" || content == last.end() || !content->is_string() ||
      Trimmed(content->get_ref<const std::string&>(), true).empty()) {
    return Wrong("continue_final_message", "continue_final_message is true: the last message must be the assistant's, with a text");
  }
  const std::string_view text = content->get_ref<const std::string&>();
  size_t begin = prompt->text.rfind(Trimmed(text, true));
  if (begin == std::string::npos) {
    return Wrong("continue_final_message", "continue_final_message is true, and the template does not write the last message as it is");
  }
  const std::string_view whole = Trimmed(text, false);
  const bool keeps_spaces = prompt->text.compare(begin, whole.size(), whole) == 0;
  const size_t end = begin + (keeps_spaces ? whole.size() : Trimmed(text, true).size());
  prompt->text.resize(end);
  const auto limit = static_cast<int64_t>(end);
  std::erase_if(prompt->user_ranges, [&](const auto& range) { return range.first >= limit; });
  for (auto& range : prompt->user_ranges) range.second = std::min(range.second, limit);
  return std::nullopt;
}

// The answer must be a call: its beginning is the end of the prompt, or follows the reasoning that the prompt opened.
std::optional<ApiError> ForceCall(const ToolRequest& tools, const ModelBundle& bundle, GenerationParams* params) {
  Result<CallOpening> opening = OpenCall(bundle, tools.named, tools.names);
  if (!opening.ok()) return ErrorOf(opening.status());
  params->forces_call = true;
  params->call = std::move(opening->rule);
  params->call.in_prompt = !params->format.in_reasoning;
  if (params->format.in_reasoning) {
    params->reasoning.then_ids = std::move(opening->ids);
    return std::nullopt;
  }
  std::vector<int32_t>& prompt = params->prompts[0].ids;
  prompt.insert(prompt.end(), opening->ids.begin(), opening->ids.end());
  params->forced_text = std::move(opening->text);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> RenderChat(const ChatJson& body, const ModelBundle& bundle, RenderedPrompt* prompt, ToolRequest* tools) {
  ChatJson messages;
  ChatJson extra;
  ToolRequest own_tools;
  if (tools == nullptr) tools = &own_tools;
  if (auto error = ReadTools(body, tools)) return error;
  if (auto error = TakeMessages(body, &messages)) return error;
  if (auto error = TakeExtra(body, &extra)) return error;
  FieldReader fields(body);
  ChatInput input;
  input.messages = &messages;
  input.extra = &extra;
  const bool go_on = fields.Bool("continue_final_message", false);
  input.add_generation_prompt = fields.Bool("add_generation_prompt", !go_on);
  if (go_on && input.add_generation_prompt) {
    fields.Fail("continue_final_message", "continue_final_message and add_generation_prompt: only one of them may be true");
  }
  input.documents = fields.Find("documents");
  if (input.documents != nullptr && !input.documents->is_array()) {
    fields.Fail("documents", fmt::format("documents is {}: must be a list", Preview(*input.documents)), "invalid_type");
  }
  fields.Refuse("chat_template", "the model's own template is used");
  if (!fields.ok()) return fields.error();
  if (bundle.chat_template == nullptr) {
    return Wrong("messages", fmt::format("this model has no chat template that can be used: {}", bundle.template_error.message()));
  }
  if (auto error = CheckTools(*tools, bundle)) return error;
  WriteToolsInto(*tools, bundle, &messages);
  if (tools->any() && bundle.chat_template->caps().supports_tools) input.tools = tools->tools.get();
  Result<RenderedPrompt> rendered = bundle.chat_template->Render(input);
  if (!rendered.ok()) {
    if (rendered.status().code() == StatusCode::kInternal) return ErrorOf(rendered.status());
    return Wrong("messages", fmt::format("the chat template refuses the messages: {}", rendered.status().message()));
  }
  *prompt = std::move(*rendered);
  return go_on ? CutBehindLastMessage(messages, prompt) : std::nullopt;
}

std::optional<ApiError> EncodeChat(const RenderedPrompt& prompt, const ModelBundle& bundle, std::vector<int32_t>* ids) {
  // A template of the model's own writes what belongs before the text; the stand-in knows nothing of it.
  Result<std::vector<int32_t>> encoded =
      bundle.tokenizer->Encode(prompt.text, {.add_special = !bundle.has_own_template, .user_ranges = prompt.user_ranges});
  if (!encoded.ok()) return ErrorOf(encoded.status());
  *ids = std::move(*encoded);
  return std::nullopt;
}

std::optional<ApiError> ParseChatRequest(const ChatJson& body, const ModelBundle& bundle, const ModelFacts& facts,
                                         GenerationParams* params) {
  FieldReader fields(body);
  ReadCommonParams(&fields, facts, params);
  const int64_t older = fields.Int("max_tokens", -1, 1, INT32_MAX);
  params->max_tokens = static_cast<int32_t>(fields.Int("max_completion_tokens", older, 1, INT32_MAX));
  const bool logprobs = fields.Bool("logprobs", false);
  const int64_t top = fields.Int("top_logprobs", 0, 0, kMaxTopLogprobs);
  if (!logprobs && top > 0) fields.Fail("top_logprobs", "top_logprobs is given without logprobs: true");
  if (logprobs) params->num_top_logprobs = static_cast<int32_t>(top);
  fields.Refuse("echo", "not supported for chats");
  fields.Refuse("audio", "only text is made");
  if (const ChatJson* modalities = fields.Find("modalities"); modalities != nullptr && *modalities != ChatJson::array({"text"})) {
    fields.Refuse("modalities", "only text is made");
  }
  const bool split = fields.Bool("separate_reasoning", true) && facts.split_reasoning;
  int64_t budget = facts.reasoning_budget;
  for (const char* name : {"thinking_token_budget", "thinking_budget", "reasoning_budget"}) budget = fields.Int(name, budget, -1, INT32_MAX);
  if (!fields.ok()) {
    ApiError error = *fields.error();
    if (error.code == "model_not_found") error.status = 404;
    return error;
  }
  RenderedPrompt prompt;
  ToolRequest tools;
  if (auto error = RenderChat(body, bundle, &prompt, &tools)) return error;
  params->format = AnswerFormatOf(bundle, split, tools.any());
  params->format.in_reasoning = EndsInsideThink(prompt);
  params->format.tool_names = tools.names;
  params->parallel_tool_calls = tools.parallel;
  params->reasoning = ReasoningLimitsOf(bundle, params->format.in_reasoning, static_cast<int32_t>(budget));
  params->shown_ids = ShownIdsOf(bundle, params->format);
  if (auto error = CheckTextBytes(facts, prompt.text.size(), "messages")) return error;
  params->prompts.resize(1);
  if (auto error = EncodeChat(prompt, bundle, &params->prompts[0].ids)) return error;
  if (auto error = TokenizeBadWords(*bundle.tokenizer, params)) return error;
  TruncatePrompts(facts, *bundle.tokenizer, params);
  if (tools.any() && tools.choice != ToolRequest::kAuto) {
    if (auto error = ForceCall(tools, bundle, params)) return error;
  }
  if (auto error = CheckLengths(facts, params)) {
    if (error->param == "prompt") error->param = "messages";
    return error;
  }
  return std::nullopt;
}

}  // namespace cachalot
