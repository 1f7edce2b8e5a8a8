#include "cli/session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>

#include "base/available_memory.h"
#include "runtime/runtime.h"
#include "tasks/model_files.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

constexpr int32_t kCpuStepTokens = 128;

using WallClock = std::chrono::steady_clock;

double Seconds(WallClock::time_point from, WallClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double Speed(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

// Bytes of a model's files, or of a dummy's tensors; INT64_MAX where a look does not tell.
int64_t RoughBytes(const ModelOptions& options) {
  if (!options.dummy.empty()) {
    const auto files = ListDummyFiles(options.dummy, options.dummy_layers, options.dummy_type);
    return files.ok() ? files->tensor_bytes() : 0;
  }
  if (options.path.find("-of-") != std::string::npos) return INT64_MAX;  // one file of a split
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(options.path, error)) {
    const auto size = fs::file_size(options.path, error);
    return error ? 0 : static_cast<int64_t>(size);
  }
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(options.path, error)) {
    const auto size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// A model that cannot fit is refused before anything of it is loaded: the system would not refuse, but kill.
// The exact plan is made only where a look leaves a doubt, since it costs some milliseconds.
Status CheckMemory(const ModelOptions& options) {
  const int64_t available = AvailableMemoryBytes();
  constexpr int64_t kModestTokens = 1 << 16;
  const bool modest = int64_t{options.context} * options.max_seqs <= kModestTokens;
  if (modest && RoughBytes(options) < available / 4) return Status::Ok();
  ASSIGN_OR_RETURN(const ModelBundle plan, PlanModel(options));
  const int64_t needed = plan.memory.owned_bytes();
  if (needed <= available) return Status::Ok();
  return Exhausted(
      "the model needs {:.2f} GiB of memory and {:.2f} GiB are available (inspect shows the parts)",
      GiB(needed), GiB(available));
}

// A prompt that arrives takes at most as much of a step as the streams beside it.
constexpr double kGpuItlRatio = 2;

}  // namespace

Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::Open(const ModelOptions& options, int32_t chunk) {
  EngineOptions engine;
  engine.max_batch_tokens = std::max(options.max_step_tokens, options.max_seqs);  // as the runtime has it
  engine.prefill_chunk = chunk > 0 ? chunk : engine.max_batch_tokens;
  return Open(options, engine);
}

Result<std::unique_ptr<Session>> Session::Open(const ModelOptions& options, EngineOptions engine) {
  engine.drafts = options.drafts;
  engine.max_drafts = options.max_drafts;
  engine.adaptive_drafts = options.adaptive_drafts;
  engine.kv_host_bytes = options.kv_host_bytes;
  engine.kv_disk_dir = options.kv_disk_dir;
  engine.kv_disk_bytes = options.kv_disk_bytes;
  const auto start = WallClock::now();
  RETURN_IF_ERROR(CheckMemory(options));
  std::unique_ptr<Session> session(new Session);
  ASSIGN_OR_RETURN(session->bundle_, OpenModel(options));
  if (engine.max_batch_tokens == 0) {
    // Prompts are computed as fast in small steps on a CPU, and what runs beside them waits less.
    const ExecutorInfo& info = session->bundle_.runtime->info();
    const int32_t small = std::max(kCpuStepTokens, info.max_seqs + kCpuStepTokens / 2);
    engine.max_batch_tokens =
        session->bundle_.cpu_runtime != nullptr ? std::min(small, info.max_step_tokens) : info.max_step_tokens;
  }
  if (engine.itl_ratio < 0) engine.itl_ratio = session->bundle_.cpu_runtime != nullptr ? 0 : kGpuItlRatio;
  if (engine.prefill_chunk == 0) engine.prefill_chunk = engine.max_batch_tokens;
  session->engine_options_ = engine;
  ASSIGN_OR_RETURN(session->engine_,
                   Engine::Create(session->bundle_.runtime.get(), session->bundle_.tokenizer.get(), engine));
  session->load_seconds_ = Seconds(start, WallClock::now());
  return session;
}

Result<const Tokenizer*> Session::tokenizer() const {
  if (bundle_.tokenizer == nullptr) return bundle_.tokenizer_error;
  return static_cast<const Tokenizer*>(bundle_.tokenizer.get());
}

void Session::ChatPrompt::MoveTo(Request* request) {
  request->prompt_ids = std::move(ids);
  request->reasoning = std::move(reasoning);
  request->shown_ids = std::move(shown_ids);
}

Result<Session::ChatPrompt> Session::MakeChatPrompt(const std::string& messages_json) const {
  ASSIGN_OR_RETURN(const Tokenizer* tokens, tokenizer());
  if (bundle_.chat_template == nullptr) {
    return bundle_.template_error.WithContext("the model's chat template (--raw goes without it)");
  }
  ChatJson messages = ChatJson::parse(messages_json, nullptr, false);
  if (messages.is_discarded()) return InvalidArgument("the conversation is no valid UTF-8 text");
  WriteToolsInto(tools_, bundle_, &messages);
  ChatInput input;
  input.messages = &messages;
  if (tools_.any() && bundle_.chat_template->caps().supports_tools) input.tools = tools_.tools.get();
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, bundle_.chat_template->Render(input));
  // A template of the model's own writes what belongs before the text; the stand-in knows nothing of it.
  ChatPrompt chat;
  ASSIGN_OR_RETURN(chat.ids, tokens->Encode(prompt.text, {.add_special = !bundle_.has_own_template,
                                                          .user_ranges = prompt.user_ranges}));
  chat.format = AnswerFormatOf(bundle_, /*split_reasoning=*/true, tools_.any());
  chat.format.in_reasoning = EndsInsideThink(prompt);
  chat.format.tool_names = tools_.names;
  chat.reasoning = ReasoningLimitsOf(bundle_, chat.format.in_reasoning, reasoning_budget_);
  chat.shown_ids = ShownIdsOf(bundle_, chat.format);
  return chat;
}

Result<std::vector<int32_t>> Session::TextPrompt(std::string_view text) const {
  ASSIGN_OR_RETURN(const Tokenizer* tokens, tokenizer());
  return tokens->Encode(text);
}

Result<Answer> Session::Generate(Request request,
                                 const std::function<Status(const RequestOutput&)>& on_output,
                                 const StopOnInterrupt& stop) {
  Answer answer;
  answer.stats.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
  const int64_t room = bundle_.runtime->info().max_context - answer.stats.prompt_tokens;
  if (request.max_tokens < 0) request.max_tokens = static_cast<int32_t>(std::max<int64_t>(room, 1));
  if (bundle_.tokenizer != nullptr && request.stop_ids.empty()) {
    const auto ids = bundle_.tokenizer->stop_ids();
    request.stop_ids.assign(ids.begin(), ids.end());
  }
  const auto start = WallClock::now();
  auto first = start, end = start;
  bool finished = false;
  const EngineStats before = engine_->stats();
  Status status;
  ASSIGN_OR_RETURN(const uint64_t id, engine_->Submit(std::move(request), [&](const RequestOutput& output) {
    if (!output.token_ids.empty()) {
      if (answer.stats.generated_tokens == 0) first = WallClock::now();
      answer.stats.generated_tokens += static_cast<int64_t>(output.token_ids.size());
    }
    answer.text += output.text;
    if (output.finished) {
      answer.reason = output.finish_reason;
      end = WallClock::now();
      finished = true;
    }
    if (!output.error.ok()) status = output.error;
    if (status.ok()) status = on_output(output);
  }));
  while (engine_->HasWork()) {
    if (!finished) {
      answer.interrupted = stop.interrupted();
      if (answer.interrupted || !status.ok()) engine_->Cancel(id);
    } else if (stop.interrupted()) {
      break;  // what is still written to disk is not the answer
    }
    RETURN_IF_ERROR(engine_->Step());
  }
  if (!finished) end = WallClock::now();
  if (answer.stats.generated_tokens == 0) first = end;
  answer.stats.prompt_seconds = Seconds(start, first);
  answer.stats.generate_seconds = Seconds(first, end);
  const EngineStats& stats = engine_->stats();
  answer.stats.moe_activation_ratio = stats.moe_activation_ratio;
  answer.stats.drafted = !stats.accepted_by_position.empty();
  answer.stats.draft_tokens = stats.draft_tokens - before.draft_tokens;
  answer.stats.accepted_tokens = stats.accepted_tokens - before.accepted_tokens;
  answer.stats.steps = stats.sampling_rows - before.sampling_rows;
  RETURN_IF_ERROR(status);
  return answer;
}

std::string StatsText(const GenerationStats& stats) {
  // The first token comes out of the prompt's own step.
  const int64_t decoded = std::max<int64_t>(stats.generated_tokens - 1, 0);
  std::string experts;
  if (const auto& ratios = stats.moe_activation_ratio; !ratios.empty()) {
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    experts = fmt::format("experts   {:.1f} % used per step on average, {:.1f} to {:.1f} % by layer\n",
                          100 * std::accumulate(ratios.begin(), ratios.end(), 0.0) / static_cast<double>(ratios.size()),
                          100 * *least, 100 * *most);
  }
  std::string drafts;
  if (stats.drafted) {
    drafts = fmt::format("drafts    {} tokens, {:.1f} % accepted; {:.2f} tokens a step\n", stats.draft_tokens,
                         100.0 * static_cast<double>(stats.accepted_tokens) / static_cast<double>(std::max<int64_t>(stats.draft_tokens, 1)),
                         static_cast<double>(stats.generated_tokens) / static_cast<double>(std::max<int64_t>(stats.steps, 1)));
  }
  return fmt::format(
      "prompt    {} tokens, {:.2f} s, {:.1f} tokens/s\ngenerated {} tokens, {:.2f} s, {:.1f} tokens/s\n{}{}",
      stats.prompt_tokens, stats.prompt_seconds, Speed(stats.prompt_tokens, stats.prompt_seconds),
      stats.generated_tokens, stats.generate_seconds, Speed(decoded, stats.generate_seconds), drafts, experts);
}

}  // namespace cachalot
