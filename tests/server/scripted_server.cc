// A server whose model says what it is told to: for tests of tools and reasoning. The answer is what stands between
// SAY: and :END in the last message that has it, as far as it is not there yet: what was put into the answer by force
// (the beginning of a call, the end of the reasoning) is gone on from.
//
// usage: scripted_server TEMPLATE [reasoning budget]; tells its address on standard error and ends with SIGTERM.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "base/file.h"
#include "engine/engine.h"
#include "server/server.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

class ScriptedModel final : public StepExecutor {
 public:
  explicit ScriptedModel(const Tokenizer* tokenizer) : tokenizer_(*tokenizer) {
    info_.max_seqs = 4;
    info_.max_step_tokens = 4096;
    info_.max_context = 16384;
    info_.vocab_size = tokenizer->vocab_size();
    info_.kv_groups = {{.name = "none", .block_tokens = 16, .num_blocks = 4096, .window = 0, .block_bytes = 1}};
  }
  const ExecutorInfo& info() const override { return info_; }

  Status Launch(const StepPlan& plan) override {
    result_.Clear();
    result_.step_id = plan.step_id;
    for (const SlotSetup& setup : plan.setups) tokens_[setup.slot].clear();
    for (const PlanRow& row : plan.rows) {
      std::vector<int32_t>& tokens = tokens_[row.slot];
      if (row.token_begin >= 0) {
        tokens.resize(static_cast<size_t>(row.num_computed));
        const auto begin = plan.token_ids.begin() + row.token_begin;
        tokens.insert(tokens.end(), begin, begin + row.q_len);
      }
      ResultRow out{.slot = row.slot, .num_computed = row.num_computed + row.q_len};
      if (row.outputs & kOutputSample) {
        out.sampled_token = Next(tokens);
        tokens.push_back(out.sampled_token);
      }
      result_.rows.push_back(out);
    }
    return Status::Ok();
  }
  Status Collect(StepResult* result) override {
    std::swap(*result, result_);
    return Status::Ok();
  }

 private:
  int32_t Next(const std::vector<int32_t>& tokens) const {
    std::string text;
    for (const int32_t id : tokens) text += tokenizer_.TokenBytes(id);
    const size_t say = text.rfind("SAY:"), end = text.rfind(":END");
    if (say == text.npos || end == text.npos || end < say) return tokenizer_.eos_id();
    std::string wanted = text.substr(say + 4, end - say - 4);
    std::string said = text.substr(end + 4);
    for (const char* prompt : {"assistant\n", "<｜Assistant｜>"}) {
      if (const size_t at = said.rfind(prompt); at != said.npos) said.erase(0, at + std::string_view(prompt).size());
    }
    if (said.starts_with("<think>") && !wanted.starts_with("<think>")) said.erase(0, 7);  // the prompt's
    // Of reasoning that was cut short only what follows it counts.
    if (!wanted.starts_with(said)) {
      said = Behind(said);
      wanted = Behind(wanted);
    }
    return wanted.starts_with(said) ? TokenOf(std::string_view(wanted).substr(said.size())) : tokenizer_.eos_id();
  }
  static std::string Behind(const std::string& text) {
    const size_t at = text.rfind("</think>");
    return at == text.npos ? text : text.substr(std::min(text.find_first_not_of('\n', at + 8), text.size()));
  }
  // The longest that begins the text.
  int32_t TokenOf(std::string_view text) const {
    int32_t best = tokenizer_.eos_id();
    size_t most = 0;
    for (int32_t id = 0; id < info_.vocab_size; ++id) {
      const std::string_view bytes = tokenizer_.TokenBytes(id);
      if (bytes.size() > most && text.starts_with(bytes) && !tokenizer_.IsSpecial(id)) {
        best = id;
        most = bytes.size();
      }
    }
    return best;
  }

  const Tokenizer& tokenizer_;
  ExecutorInfo info_;
  std::map<int32_t, std::vector<int32_t>> tokens_;
  StepResult result_;
};

template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

void Serve(const std::string& template_path, int32_t budget) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ModelOptions options;
  options.dummy = "tiny-llama";
  ModelBundle bundle = OrDie(PlanModel(options));
  const std::string text = OrDie(ReadTextFile(template_path, 1 << 20));
  bundle.chat_template = OrDie(ChatTemplate::Parse(text, bundle.tokenizer->bos_text(), bundle.tokenizer->eos_text()));
  bundle.has_own_template = true;
  bundle.tool_syntax = bundle.chat_template->caps().tool_syntax;
  ScriptedModel model(bundle.tokenizer.get());
  // It must see the whole prompt.
  const auto engine = OrDie(Engine::Create(&model, bundle.tokenizer.get(), {.enable_prefix_caching = false}));
  ServerOptions server_options;
  server_options.http.port = 0;
  server_options.default_name = "scripted";
  server_options.reasoning_budget = budget;
  const auto server = OrDie(Server::Start(std::move(server_options), &bundle, engine.get(), model.info()));
  std::fprintf(stderr, "http://127.0.0.1:%d/\n", server->port());
  int signal = 0;
  sigwait(&signals, &signal);
  server->Stop();
}

}  // namespace
}  // namespace cachalot

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  cachalot::Serve(argv[1], argc > 2 ? std::atoi(argv[2]) : -1);
  return 0;
}
