#include "cli/bench_beside.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "cli/bench_run.h"
#include "cli/bench_serve_report.h"
#include "runtime/cuda_runtime.h"

namespace cachalot {
namespace {

using WallClock = std::chrono::steady_clock;

double SecondsSince(WallClock::time_point start) { return std::chrono::duration<double>(WallClock::now() - start).count(); }

// Sequences that generate, and when their tokens came.
class Streams {
 public:
  Streams(Engine* engine, const ExecutorInfo& info, const BesideCase& bench) : engine_(engine) {
    const auto count = static_cast<size_t>(bench.batch);
    last_.resize(count);
    for (int32_t i = 0; i < bench.batch && status_.ok(); ++i) {
      Request request;
      request.prompt_ids = MadeUpPrompt(1 + bench.depth, i, info.vocab_size);
      request.max_tokens = info.max_context - 1 - bench.depth;
      request.ignore_eos = true;
      auto id = engine->Submit(std::move(request), [this, i](const RequestOutput& output) { Take(static_cast<size_t>(i), output); });
      if (id.ok()) ids_.push_back(*id);
      else status_ = id.status();
    }
    while (status_.ok() && num_started_ < bench.batch && engine->HasWork()) {
      if (const Status status = engine->Step(); !status.ok()) status_ = status;
    }
  }
  void Start() {
    gaps_ms_.clear();
    tokens_ = 0;
    timed_ = true;
  }
  Status End() {
    for (const uint64_t id : ids_) engine_->Cancel(id);
    const Status status = engine_->RunUntilIdle();
    return status_.ok() ? status : status_;
  }
  const Status& status() const { return status_; }
  int64_t tokens() const { return tokens_; }
  Percentiles gaps_ms() const { return PercentilesOf(gaps_ms_); }

 private:
  void Take(size_t i, const RequestOutput& output) {
    if (!output.error.ok()) status_ = output.error;
    if (output.token_ids.empty()) return;
    const auto now = WallClock::now();
    if (last_[i] == WallClock::time_point()) ++num_started_;
    else if (timed_) gaps_ms_.push_back(1e3 * std::chrono::duration<double>(now - last_[i]).count());
    last_[i] = now;
    tokens_ += static_cast<int64_t>(output.token_ids.size());
  }

  Engine* const engine_;
  std::vector<uint64_t> ids_;
  std::vector<WallClock::time_point> last_;
  std::vector<double> gaps_ms_;
  int64_t tokens_ = 0;
  int32_t num_started_ = 0;
  bool timed_ = false;
  Status status_;
};

// Prompts, two of them in the engine at any time so that its steps are full.
class Prompts {
 public:
  Prompts(Engine* engine, const ExecutorInfo& info, int32_t length) : engine_(engine), info_(info), length_(length) {}
  Status Refill() {
    for (; status_.ok() && num_live_ < 2; ++num_live_) {
      Request request;
      request.prompt_ids = MadeUpPrompt(length_, ++number_, info_.vocab_size);
      request.max_tokens = 1;
      request.ignore_eos = true;
      RETURN_IF_ERROR(engine_->Submit(std::move(request), [this, before = 0](const RequestOutput& output) mutable {
        if (!output.error.ok()) status_ = output.error;
        tokens_ += output.num_prompt_computed - before;
        before = output.num_prompt_computed;
        if (output.finished) --num_live_;
      }).status());
    }
    return status_;
  }
  int64_t tokens() const { return tokens_; }
  void Start() { tokens_ = 0; }

 private:
  Engine* const engine_;
  const ExecutorInfo info_;
  const int32_t length_;
  int32_t number_ = 0;
  std::atomic<int64_t> tokens_{0};  // computed
  int32_t num_live_ = 0;
  Status status_;
};

struct Line {
  double decode_seconds = 0, prompt_seconds = 0;
  int64_t decode_tokens = 0, prompt_tokens = 0;
  Percentiles gaps_ms;
};

struct Setup {
  const char* name;
  std::string decode, prompts;  // settings of the two runtimes
};

Result<std::unique_ptr<Engine>> MakeEngine(Session& session, int32_t step_tokens, double itl_ratio) {
  EngineOptions options = session.engine_options();
  options.enable_prefix_caching = false;
  options.max_batch_tokens = options.prefill_chunk = step_tokens;
  options.itl_ratio = itl_ratio;
  return Engine::Create(session.bundle().runtime.get(), nullptr, options);
}

// Both in one engine, or one of them alone.
Result<Line> MeasureMixed(Session& session, const BesideCase& bench, bool decodes, bool has_prompts, int32_t step_tokens, double itl_ratio, const StopOnInterrupt& stop) {
  ASSIGN_OR_RETURN(const auto engine, MakeEngine(session, step_tokens, itl_ratio));
  const ExecutorInfo& info = session.bundle().runtime->info();
  BesideCase own = bench;
  if (!decodes) own.batch = 0;
  Streams streams(engine.get(), info, own);
  Prompts prompts(engine.get(), info, bench.prompt);
  RETURN_IF_ERROR(streams.status());
  // What comes first, captures and the schedule's learning, is not timed.
  auto start = WallClock::now();
  for (const double seconds : {bench.seconds / 3, bench.seconds}) {
    streams.Start();
    prompts.Start();
    start = WallClock::now();
    while (SecondsSince(start) < seconds) {
      if (stop.interrupted()) return Cancelled("interrupted");
      if (has_prompts) RETURN_IF_ERROR(prompts.Refill());
      RETURN_IF_ERROR(engine->Step());
      RETURN_IF_ERROR(streams.status());
    }
  }
  Line line;
  line.decode_seconds = line.prompt_seconds = SecondsSince(start);
  line.decode_tokens = streams.tokens();
  line.prompt_tokens = prompts.tokens();
  line.gaps_ms = streams.gaps_ms();
  RETURN_IF_ERROR(streams.End());
  return line;
}

// Two engines, each in its own thread.
Result<Line> MeasureApart(Session& decode, Session& prompts_session, const BesideCase& bench, const Setup& setup, int32_t step_tokens, const StopOnInterrupt& stop) {
  // Nor may kernels that chain matmuls meet: their blocks wait for each other.
  const std::string safe = "chain=none";
  RETURN_IF_ERROR(decode.bundle().cuda_runtime->SetTune(setup.decode.empty() ? safe : safe + "," + setup.decode));
  RETURN_IF_ERROR(prompts_session.bundle().cuda_runtime->SetTune(setup.prompts.empty() ? safe : safe + "," + setup.prompts));
  ASSIGN_OR_RETURN(const auto engine, MakeEngine(decode, step_tokens, 0));
  ASSIGN_OR_RETURN(const auto prompt_engine, MakeEngine(prompts_session, step_tokens, 0));
  Streams streams(engine.get(), decode.bundle().runtime->info(), bench);
  Prompts prompts(prompt_engine.get(), prompts_session.bundle().runtime->info(), bench.prompt);
  RETURN_IF_ERROR(streams.status());
  std::atomic<bool> ends{false};
  Status prompt_status;
  std::thread thread([&] {
    while (!ends && prompt_status.ok()) {
      prompt_status = prompts.Refill();
      if (prompt_status.ok()) prompt_status = prompt_engine->Step();
    }
    const Status idle = prompt_engine->RunUntilIdle();
    if (prompt_status.ok()) prompt_status = idle;
  });
  Line line;
  Status status;
  auto start = WallClock::now();
  int64_t prompts_before = 0;
  for (const double seconds : {bench.seconds / 3, bench.seconds}) {
    streams.Start();
    prompts_before = prompts.tokens();
    start = WallClock::now();
    while (status.ok() && SecondsSince(start) < seconds) {
      status = stop.interrupted() ? Cancelled("interrupted") : engine->Step();
      if (status.ok()) status = streams.status();
    }
  }
  line.decode_seconds = line.prompt_seconds = SecondsSince(start);
  line.decode_tokens = streams.tokens();
  line.prompt_tokens = prompts.tokens() - prompts_before;
  ends = true;
  thread.join();
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(prompt_status);
  line.gaps_ms = streams.gaps_ms();
  RETURN_IF_ERROR(streams.End());
  return line;
}

std::string Text(const std::string& name, const Result<Line>& line) {
  if (!line.ok()) return fmt::format("{:<44}  {}\n", name, line.status().message());
  return fmt::format("{:<44} {:>10.1f} {:>8.2f} {:>8.2f} {:>8.2f} {:>12.0f}\n", name, static_cast<double>(line->decode_tokens) / line->decode_seconds, line->gaps_ms.p50,
                     line->gaps_ms.p99, line->gaps_ms.max, static_cast<double>(line->prompt_tokens) / line->prompt_seconds);
}

}  // namespace

Status MeasureBeside(Session& decode, Session& prompts, const BesideCase& bench, const StopOnInterrupt& stop,
                     const std::function<Status(const std::string&)>& write) {
  if (decode.bundle().cuda_runtime == nullptr || prompts.bundle().cuda_runtime == nullptr) return Unsupported("--beside: the model runs on the CPU");
  const ModelSpec& spec = decode.bundle().spec;
  if (spec.moe.num_experts > 0 || spec.attention.kind == AttentionKind::kMla) {
    return Unsupported("--beside: kernels of mixtures and of MLA over quantised latents wait for other blocks of their launch; two launches at once would do so for ever");
  }
  const int32_t most = decode.bundle().runtime->info().max_step_tokens;
  const int32_t small = std::min(most, 512 + bench.batch);
  RETURN_IF_ERROR(write(fmt::format("{} sequences at {} tokens generate, prompts of {} tokens come one after the other\n{:<44} {:>10} {:>8} {:>8} {:>8} {:>12}\n", bench.batch,
                                 bench.depth, bench.prompt, "", "tokens/s", "p50 ms", "p99 ms", "max ms", "prompts t/s")));
  const auto add = [&](const std::string& name, const Result<Line>& line) -> Status {
    RETURN_IF_ERROR(write(Text(name, line)));
    return line.status().code() == StatusCode::kCancelled ? line.status() : Status::Ok();
  };
  RETURN_IF_ERROR(add("generation alone", MeasureMixed(decode, bench, true, false, most, 0, stop)));
  RETURN_IF_ERROR(add(fmt::format("prompts alone, steps of {}", most), MeasureMixed(decode, bench, false, true, most, 0, stop)));
  RETURN_IF_ERROR(add(fmt::format("prompts alone, steps of {}", small), MeasureMixed(decode, bench, false, true, small, 0, stop)));
  RETURN_IF_ERROR(add(fmt::format("one step, of {}, itl-ratio 2", small), MeasureMixed(decode, bench, true, true, small, 2, stop)));
  RETURN_IF_ERROR(add(fmt::format("one step, of {}", small), MeasureMixed(decode, bench, true, true, small, 0, stop)));
  RETURN_IF_ERROR(add(fmt::format("one step, of {}", most), MeasureMixed(decode, bench, true, true, most, 0, stop)));
  const Setup setups[] = {{"two streams", "", ""},
                          {"two streams, generation first", "stream=high", ""},
                          {"SMs parted, 32 for generation", "stream=first:32", "stream=rest:32"},
                          {"SMs parted, 64 for generation", "stream=first:64", "stream=rest:64"},
                          {"SMs parted, 96 for generation", "stream=first:96", "stream=rest:96"}};
  for (const Setup& setup : setups) {
    for (const int32_t step_tokens : {small, most}) {
      RETURN_IF_ERROR(add(fmt::format("{}, prompts' steps of {}", setup.name, step_tokens), MeasureApart(decode, prompts, bench, setup, step_tokens, stop)));
    }
  }
  RETURN_IF_ERROR(decode.bundle().cuda_runtime->SetTune(""));
  return prompts.bundle().cuda_runtime->SetTune("");
}

}  // namespace cachalot
