// EngineLoop: the one thread that owns an Engine. Other threads hand it work through a bounded queue; what comes back is
// called on the loop's thread and must be quick.
// Invariant: every choice of an accepted request gets exactly one event with `finished`, whatever happens to the engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/token_event.h"

namespace cachalot {

class LineWriter;
struct ServerMetrics;

// Where the events of a request go. An object and no function: the loop can see it coming.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // On the loop's thread. The event is the loop's: it is filled anew for the next call.
  virtual void Send(const TokenEvent& event) = 0;
  // The usual event: tokens, and nothing else that is new.
  virtual void SendTokens(int32_t choice, std::span<const int32_t> token_ids, int64_t time_us);
};

// A function as a sink.
template <typename Fn>
std::unique_ptr<EventSink> SinkOf(Fn fn) {
  struct Sink final : EventSink {
    explicit Sink(Fn fn_in) : fn(std::move(fn_in)) {}
    void Send(const TokenEvent& event) override { fn(event); }
    Fn fn;
  };
  return std::make_unique<Sink>(std::move(fn));
}

struct EngineLoopOptions {
  int32_t max_waiting = 1024;        // requests that may wait for a slot; more are refused
  int32_t max_seqs = 1;              // that run at once
  int64_t stall_us = 60'000'000;     // a step that takes longer makes the health check fail
  std::function<void()> after_step = nullptr;  // called on the loop's thread behind the events that came together
  LineWriter* step_log = nullptr;    // gets a line for each step; must outlive the loop
};

class EngineLoop {
 public:
  // Neither may go before the loop. The engine is the loop's from Start on.
  EngineLoop(Engine* engine, const ExecutorInfo& info, ServerMetrics* metrics, EngineLoopOptions options);
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // The rest may be called from any thread.
  // Room for `count` sequences, all or none: kExhausted when the queue is full, kCancelled when the loop has ended.
  Status Reserve(int32_t count);
  // Gives reserved places back that no Submit uses.
  void GiveBack(int32_t count) { live_.fetch_sub(count); }
  // Uses up request.n reserved places.
  uint64_t Submit(Request request, std::unique_ptr<EventSink> sink);
  // Unknown and finished tickets are ignored.
  void Cancel(uint64_t ticket);
  void CancelAll();
  // Calls `task` on the loop's thread, between two steps, and then, when snapshots show what it did, what it returned.
  // False: the loop has ended, and it is never called.
  using Task = std::function<std::function<void()>(Engine*)>;
  bool Post(Task task);
  // Cancels what is left, tells it so, and joins the thread.
  void Stop();

  // Whether this is the loop's own thread.
  bool InLoop() const { return std::this_thread::get_id() == thread_id_.load(std::memory_order_relaxed); }
  int32_t live() const { return live_.load(std::memory_order_relaxed); }
  // Ok, or why nothing goes on: the engine has failed, or a step has not ended for `stall_us` while work waits.
  Status Health() const;
  // For load shedding: seconds after which a refused client may try again.
  int32_t RetryAfterSeconds() const;

  struct Snapshot {
    EngineStats stats;
    std::vector<KvGroupInfo> kv_groups;
    std::string kv_identity;
    int32_t max_seqs = 0;
    double tokens_per_second = 0.0;  // generated, over about the last two seconds
  };
  Snapshot GetSnapshot() const;

 private:
  struct Command {
    uint64_t ticket = 0;  // with no sink: cancel
    Request request;
    std::unique_ptr<EventSink> sink;
    Task task;  // and nothing else
  };
  struct TicketChoice {
    int64_t last_token_us = 0;
    int32_t num_prompt_computed = 0;  // as the last event that was not of tokens alone said
    bool begun = false;
    bool finished = false;
  };
  // All that an event needs is in one cache line, with one choice.
  struct alignas(64) Ticket {
    Ticket(uint64_t id_in, std::unique_ptr<EventSink> sink_in, int32_t num_choices)
        : id(id_in), num_left(num_choices), sink(std::move(sink_in)), others(static_cast<size_t>(std::max(num_choices - 1, 0))) {}
    TicketChoice& choice(int32_t index) { return index == 0 ? first : others[static_cast<size_t>(index) - 1]; }
    int32_t num_choices() const { return 1 + static_cast<int32_t>(others.size()); }

    const uint64_t id;
    uint64_t request_id = 0;
    int32_t num_left;  // choices that have not ended
    std::unique_ptr<EventSink> sink;
    TicketChoice first;
    std::vector<TicketChoice> others;
  };

  void Wake();
  void Run();
  bool TakeCommands(std::vector<Command>* commands);
  void Accept(Command command);
  void Deliver(Ticket* ticket, const RequestOutput& output);
  void CountTokens(size_t count, TicketChoice* choice);
  void CountGaps();
  void Fail(Ticket* ticket, const Status& error);
  void FailAll(const Status& error);
  void FlushEvents();
  void LookAhead() const;
  void Forget(Ticket* ticket);
  void AfterStep(int64_t begin_us, int64_t end_us);
  void ShowStats();
  void LogStep(int64_t begin_us, int64_t end_us) const;

  Engine* const engine_;
  const ExecutorInfo info_;
  ServerMetrics* const metrics_;
  const EngineLoopOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Command> commands_;  // guarded by mutex_
  bool cancel_all_ = false;        // guarded by mutex_
  bool stop_ = false;              // guarded by mutex_
  Status failure_;                 // guarded by mutex_
  Snapshot snapshot_;              // guarded by mutex_

  std::atomic<int32_t> live_{0};   // sequences: reserved and not finished
  std::atomic<uint64_t> last_ticket_{0};
  std::atomic<int64_t> progress_us_{0};  // end of the last step, or when work came to an idle engine
  std::atomic<bool> working_{false};
  std::atomic<std::thread::id> thread_id_{};

  // The loop's own.
  std::unordered_map<uint64_t, std::unique_ptr<Ticket>> tickets_;
  TokenEvent event_;          // being delivered
  int64_t events_us_ = 0;     // when what is being delivered came; 0: nothing is
  uint64_t events_step_ = 0;  // and with which step
  // Times between two tokens that were the same, and are not in the histogram yet.
  double gap_seconds_ = 0.0;
  uint64_t num_gaps_ = 0;
  uint64_t num_new_tokens_ = 0;  // not counted yet
  // Whose events were delivered in the last step, and are in this one, in order; null: it has ended.
  struct Turn {
    const Ticket* ticket = nullptr;
    const EventSink* sink = nullptr;
  };
  std::vector<Turn> last_order_;
  std::vector<Turn> order_;
  uint64_t num_steps_ = 0;  // that were counted
  int64_t rate_begin_us_ = 0;
  int64_t rate_begin_tokens_ = 0;
  double rate_ = 0.0;

  std::thread thread_;
};

int64_t SteadyNowUs();

}  // namespace cachalot
