#include "server/outbox.h"

#include <algorithm>
#include <utility>

namespace cachalot {
namespace {

constexpr size_t kFreeBatches = 4;

bool IsPlain(const TokenEvent& event) {
  return !event.finished && event.error.ok() && event.logprobs.empty() && event.top_logprobs.empty() && event.prompt_logprobs.empty() &&
         event.prompt_top_logprobs.empty();
}

}  // namespace

void Outbox::Batch::Clear() {
  time_us = 0;
  items.clear();
  details.clear();
  token_ids.clear();
  text.clear();
  wholes.clear();
}

Outbox::Batch& Outbox::BatchFor(const std::shared_ptr<Exchange>& exchange, const void* loop) {
  auto lane = std::find_if(lanes_.begin(), lanes_.end(), [loop](const Lane& other) { return other.loop == loop; });
  if (lane == lanes_.end()) {
    lane = lanes_.insert(lanes_.end(), Lane{.loop = loop, .way = nullptr, .inbox = std::make_shared<Inbox>(), .batch = std::make_unique<Batch>()});
  }
  if (lane->way == nullptr) lane->way = exchange;
  return *lane->batch;
}

void Outbox::AddTokens(const std::shared_ptr<Exchange>& exchange, const void* loop, EventReceiver* receiver, size_t choice,
                       std::span<const int32_t> token_ids, int64_t time_us) {
  Batch& batch = BatchFor(exchange, loop);
  Item item;
  item.receiver = receiver;
  item.choice = static_cast<uint32_t>(choice);
  if (batch.time_us == 0) batch.time_us = time_us;
  if (time_us != batch.time_us) {
    item.kind = Kind::kDetailed;
    batch.details.push_back({.time_us = time_us, .num_tokens = static_cast<uint32_t>(token_ids.size())});
  } else if (token_ids.size() == 1) {
    item.value = token_ids[0];
    batch.items.push_back(item);
    return;
  } else {
    item.kind = Kind::kTokens;
    item.value = static_cast<int32_t>(token_ids.size());
  }
  batch.token_ids.insert(batch.token_ids.end(), token_ids.begin(), token_ids.end());
  batch.items.push_back(item);
}

void Outbox::Add(const std::shared_ptr<Exchange>& exchange, const void* loop, const std::shared_ptr<EventReceiver>& receiver, size_t choice,
                 const TokenEvent& event) {
  Batch& batch = BatchFor(exchange, loop);
  Item item;
  item.receiver = receiver.get();
  item.choice = static_cast<uint32_t>(choice);
  if (IsPlain(event)) {
    item.kind = Kind::kDetailed;
    batch.details.push_back({.time_us = event.time_us,
                             .queue_us = event.queue_us,
                             .num_tokens = static_cast<uint32_t>(event.token_ids.size()),
                             .text_bytes = static_cast<uint32_t>(event.text.size()),
                             .num_prompt_computed = event.num_prompt_computed,
                             .num_cached_tokens = event.num_cached_tokens,
                             .num_reasoning_tokens = event.num_reasoning_tokens});
    batch.token_ids.insert(batch.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    batch.text += event.text;
  } else {
    item.kind = Kind::kWhole;
    batch.wholes.push_back({receiver, event});
  }
  batch.items.push_back(item);
}

void Outbox::Flush() {
  std::vector<Call> relay;
  for (Lane& lane : lanes_) {
    if (lane.batch->items.empty()) continue;
    std::shared_ptr<Exchange> way = std::exchange(lane.way, nullptr);
    bool idle = false;
    {
      const std::lock_guard lock(lane.inbox->mutex);
      idle = lane.inbox->waiting.empty();
      lane.inbox->waiting.push_back(std::move(lane.batch));
      if (!lane.inbox->free.empty()) {
        lane.batch = std::move(lane.inbox->free.back());
        lane.inbox->free.pop_back();
      }
    }
    if (lane.batch == nullptr) lane.batch = std::make_unique<Batch>();
    if (idle) {
      lane.relayed = !relay.empty();
      relay.push_back({std::move(way), lane.inbox});
    } else if (std::exchange(lane.relayed, false)) {
      // Whoever was to wake it is busy: one step late is enough.
      Wake({{std::move(way), lane.inbox}});
    }
  }
  if (!relay.empty()) Wake(std::move(relay));
}

// Waking a thread takes the one that does it some ten microseconds. What is posted keeps the exchange through which it came, so
// that this goes on its own thread.
void Outbox::Wake(std::vector<Call> calls) {
  Exchange* first = calls.front().way.get();
  first->Post([calls = std::move(calls)]() mutable {
    for (size_t i = 1; i < calls.size(); ++i) {
      Exchange* next = calls[i].way.get();
      next->Post([call = std::move(calls[i])] { call.inbox->Deliver(); });
    }
    calls.front().inbox->Deliver();
  });
}

void Outbox::Inbox::Deliver() {
  Batches batches;
  {
    const std::lock_guard lock(mutex);
    batches.swap(waiting);
  }
  for (const auto& batch : batches) {
    size_t token = 0, byte = 0, detail = 0, whole = 0;
    for (const Item& item : batch->items) {
      if (item.kind == Kind::kWhole) {
        item.receiver->Take(item.choice, batch->wholes[whole++].event);
        continue;
      }
      Detail own = {.time_us = batch->time_us, .num_tokens = 1};
      if (item.kind == Kind::kToken) {
        event.token_ids.assign(1, item.value);
      } else {
        if (item.kind == Kind::kDetailed) own = batch->details[detail++];
        else own.num_tokens = static_cast<uint32_t>(item.value);
        const auto ids = batch->token_ids.begin() + static_cast<ptrdiff_t>(token);
        event.token_ids.assign(ids, ids + own.num_tokens);
        token += own.num_tokens;
      }
      event.text.assign(batch->text, byte, own.text_bytes);
      byte += own.text_bytes;
      event.choice = static_cast<int32_t>(item.choice);
      event.time_us = own.time_us;
      event.queue_us = own.queue_us;
      event.num_prompt_computed = own.num_prompt_computed;
      event.num_cached_tokens = own.num_cached_tokens;
      event.num_reasoning_tokens = own.num_reasoning_tokens;
      event.finished = false;
      event.finish_reason = FinishReason::kStop;
      item.receiver->Take(item.choice, event);
    }
  }
  for (const auto& batch : batches) {
    for (const Item& item : batch->items) item.receiver->Flush();
    batch->Clear();
  }
  const std::lock_guard lock(mutex);
  for (auto& batch : batches) {
    if (free.size() < kFreeBatches) free.push_back(std::move(batch));
  }
}

}  // namespace cachalot
