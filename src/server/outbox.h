// Outbox: what a step brings for many connections goes to each of their event loops in one piece: one wake-up a step, since the
// loop that is woken wakes the others, and pieces are used again. Streams have their state on their connections' threads, and for the
// engine's to touch it, once for each token and with cold caches, cost more than all its other work.
// One thread's own: the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "server/token_event.h"

namespace cachalot {

// Whoever an event is for. All on the thread of its exchange.
class EventReceiver {
 public:
  virtual ~EventReceiver() = default;
  virtual void Take(size_t choice, TokenEvent& event) = 0;
  // Behind the events that came together; once or several times.
  virtual void Flush() = 0;
};

class Outbox {
 public:
  // The receiver gets the event on the exchange's thread, after Flush. One that does not end its choice does not keep the
  // receiver: the caller does until then.
  void Add(const std::shared_ptr<Exchange>& exchange, const void* loop, const std::shared_ptr<EventReceiver>& receiver, size_t choice,
           const TokenEvent& event);
  // The same for an event of tokens alone.
  void AddTokens(const std::shared_ptr<Exchange>& exchange, const void* loop, EventReceiver* receiver, size_t choice,
                 std::span<const int32_t> token_ids, int64_t time_us);
  void Flush();

 private:
  // Almost all events are one token, and have the time of the batch: four of them fill a cache line, and lines that two cores
  // write to by turns are what handing over costs. `value`: the token; or how many, from `token_ids`; or kDetailed: the next
  // of `details`; or kWhole: of `wholes`.
  enum class Kind : uint32_t { kToken, kTokens, kDetailed, kWhole };
  struct Item {
    EventReceiver* receiver = nullptr;
    uint32_t choice : 30 = 0;
    Kind kind : 2 = Kind::kToken;
    int32_t value = 0;
  };
  static_assert(sizeof(Item) == 16);
  // Of an event that says more than its tokens.
  struct Detail {
    int64_t time_us = 0;
    int64_t queue_us = 0;
    uint32_t num_tokens = 0;
    uint32_t text_bytes = 0;
    int32_t num_prompt_computed = 0;
    int32_t num_cached_tokens = 0;
    int32_t num_reasoning_tokens = 0;
  };
  struct Whole {
    std::shared_ptr<EventReceiver> receiver;
    TokenEvent event;
  };
  struct Batch {
    int64_t time_us = 0;  // of items without one of their own
    std::vector<Item> items;
    std::vector<Detail> details;
    std::vector<int32_t> token_ids;
    std::string text;
    std::vector<Whole> wholes;
    void Clear();
  };
  using Batches = std::vector<std::unique_ptr<Batch>>;
  // Of one event loop: what waits for its thread, and what it has given back.
  struct Inbox {
    std::mutex mutex;
    Batches waiting;   // guarded by mutex
    Batches free;      // guarded by mutex
    TokenEvent event;  // the loop's thread's own
    void Deliver();
  };
  struct Lane {
    const void* loop = nullptr;
    std::shared_ptr<Exchange> way;  // any exchange of the loop
    std::shared_ptr<Inbox> inbox;
    std::unique_ptr<Batch> batch;
    bool relayed = false;  // another loop was to wake this one the last time
  };
  // A loop that is to be woken.
  struct Call {
    std::shared_ptr<Exchange> way;
    std::shared_ptr<Inbox> inbox;
  };
  static void Wake(std::vector<Call> calls);
  Batch& BatchFor(const std::shared_ptr<Exchange>& exchange, const void* loop);
  std::vector<Lane> lanes_;
};

}  // namespace cachalot
