// What a step costs the host in a whole server: engine, events, metrics, event streams over loopback, and clients that read
// them. The device is a clock: each step takes as long as one of a GPU, and the host has to be done with the last one before
// it ends. Sleeping through it leaves the caches cold, as in life.
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/model_bundle.h"
#include "server/server.h"

namespace cachalot {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr int32_t kPromptTokens = 16;

// The engine's thread has a core of its own, as where there are many: the first. The others share the rest.
void KeepTo(int first) {
  const int num_cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int core = first; core < (first == 0 ? 1 : num_cores); ++core) CPU_SET(core, &cores);
  if (num_cores > 1) pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
}

class PacedExecutor final : public StepExecutor {
 public:
  PacedExecutor(int32_t num_seqs, int32_t vocab_size, SteadyTime::duration step_time) : step_time_(step_time) {
    info_ = {.max_seqs = num_seqs,
             .max_step_tokens = 8192,
             .max_context = 8192,
             .vocab_size = vocab_size,
             .depth = 1,
             .kv_groups = {{.name = "full", .block_tokens = 16, .num_blocks = 1 << 18, .window = 0, .block_bytes = 1}}};
  }
  const ExecutorInfo& info() const override { return info_; }
  Status Launch(const StepPlan& plan) override {
    if (launched_ == 0) KeepTo(0);
    Step& step = steps_[launched_++ % 2];
    const auto now = SteadyTime::now();
    if (now > free_at_) ++num_late_;
    free_at_ = std::max(now, free_at_) + step_time_;
    step.done_at = free_at_;
    step.num_rows = static_cast<int32_t>(plan.rows.size());
    step.result.Clear();
    step.result.step_id = plan.step_id;
    for (const PlanRow& row : plan.rows) {
      const int32_t end = row.num_computed + row.q_len;
      ResultRow out{.slot = row.slot, .num_computed = end};
      if (row.outputs & kOutputSample) out.sampled_token = (end * 7919 + row.slot * 31) % info_.vocab_size;
      step.result.rows.push_back(out);
    }
    own_ += SteadyTime::now() - now;
    return Status::Ok();
  }
  Status Collect(StepResult* result) override {
    Step& step = steps_[collected_++ % 2];
    const auto begin = SteadyTime::now();
    std::this_thread::sleep_until(step.done_at);
    const auto end = SteadyTime::now();
    // From the end of one wait to the begin of the next: the host's.
    if (step.num_rows == info_.max_seqs && last_end_ != SteadyTime::time_point()) {
      const std::lock_guard lock(mutex_);
      host_us_.push_back(std::chrono::duration<double, std::micro>(begin - last_end_ - own_).count());
    }
    own_ = {};
    last_end_ = end;
    step.result.device_us = std::chrono::duration_cast<std::chrono::microseconds>(end - begin).count();
    std::swap(*result, step.result);
    return Status::Ok();
  }
  std::vector<double> TakeHostTimes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(host_us_, {});
  }
  int64_t num_late() const { return num_late_; }

 private:
  struct Step {
    SteadyTime::time_point done_at;
    int32_t num_rows = 0;
    StepResult result;
  };
  const SteadyTime::duration step_time_;
  ExecutorInfo info_;
  Step steps_[2];
  uint64_t launched_ = 0, collected_ = 0;
  SteadyTime::time_point free_at_, last_end_;
  SteadyTime::duration own_{};
  std::atomic<int64_t> num_late_{0};  // steps whose launch the device had to wait for
  std::mutex mutex_;
  std::vector<double> host_us_;       // guarded by mutex_
};

// Opens streams and reads what comes until it is told to end.
class Readers {
 public:
  Readers(int32_t port, int32_t count, const std::string& body) : epoll_(epoll_create1(0)) {
    const std::string request =
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
    for (int32_t i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in to = {};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(port));
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
      CHECK(send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
      epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
      CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0);
      fds_.push_back(fd);
    }
    thread_ = std::thread([this] { Read(); });
  }
  ~Readers() {
    stop_ = true;
    thread_.join();
    for (const int fd : fds_) close(fd);
    close(epoll_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void Read() {
    std::vector<epoll_event> events(256);
    std::vector<char> buffer(1 << 16);
    while (!stop_) {
      const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 50);
      for (int i = 0; i < n; ++i) {
        const ssize_t size = recv(events[static_cast<size_t>(i)].data.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (size > 0) bytes_ += size;
      }
    }
  }

  const int epoll_;
  std::vector<int> fds_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> bytes_{0};
  std::thread thread_;
};

// Arguments: streams, microseconds of a step on the device.
void ServerStep(benchmark::State& state) {
  const auto num_streams = static_cast<int32_t>(state.range(0));
  KeepTo(1);  // and the threads that it starts
  ModelOptions model;
  model.dummy = "tiny-llama";
  ModelBundle bundle = std::move(*PlanModel(model));
  PacedExecutor executor(num_streams, bundle.tokenizer->vocab_size(), std::chrono::microseconds(state.range(1)));
  auto engine = *Engine::Create(&executor, bundle.tokenizer.get(), {.max_batch_tokens = 8192, .prefill_chunk = 8192});
  ServerOptions options;
  options.http.port = 0;
  options.http.num_threads = 2;
  options.max_waiting = num_streams;
  options.request_log = "";
  auto server = *Server::Start(std::move(options), &bundle, engine.get(), executor.info());
  std::string ids;
  for (int32_t i = 0; i < kPromptTokens; ++i) ids += fmt::format("{}{}", i == 0 ? "" : ",", 3 + i);
  std::vector<double> times_us;
  int64_t late = 0, bytes = 0;
  {
    Readers readers(server->port(), num_streams,
                    fmt::format(R"({{"prompt":[{}],"max_tokens":8000,"stream":true,"ignore_eos":true,"temperature":0}})", ids));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    executor.TakeHostTimes();
    for (auto _ : state) {
      late -= executor.num_late();
      bytes -= readers.bytes();
      const auto begin = SteadyTime::now();
      std::this_thread::sleep_for(std::chrono::seconds(3));
      times_us = executor.TakeHostTimes();
      late += executor.num_late();
      bytes += readers.bytes();
      state.SetIterationTime(std::chrono::duration<double>(SteadyTime::now() - begin).count() / static_cast<double>(std::max<size_t>(times_us.size(), 1)));
    }
  }
  server->Stop();
  CHECK(!times_us.empty()) << "no step with all streams in it";
  std::sort(times_us.begin(), times_us.end());
  const auto at = [&](double share) { return times_us[static_cast<size_t>(share * static_cast<double>(times_us.size() - 1))]; };
  state.counters["host_p50_us"] = at(0.5);
  state.counters["host_p90_us"] = at(0.9);
  state.counters["host_p99_us"] = at(0.99);
  state.counters["late_steps"] = static_cast<double>(late);
  state.counters["bytes_a_token"] = static_cast<double>(bytes) / (static_cast<double>(times_us.size()) * num_streams);
}
BENCHMARK(ServerStep)->Args({16, 5'000})->Args({64, 7'000})->Args({256, 12'000})->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace cachalot
