#include "server/outbox.h"

#include <algorithm>
#include <utility>

namespace cachalot {

void Outbox::Add(const std::shared_ptr<Exchange>& exchange, std::function<void()> fn) {
  const void* loop = exchange->loop();
  auto lane = std::find_if(lanes_.begin(), lanes_.end(), [loop](const Lane& other) { return other.loop == loop; });
  if (lane == lanes_.end()) lane = lanes_.insert(lanes_.end(), Lane{.loop = loop, .way = nullptr, .tasks = {}});
  if (lane->way == nullptr) lane->way = exchange;
  lane->tasks.push_back(std::move(fn));
}

void Outbox::Flush() {
  for (Lane& lane : lanes_) {
    if (lane.tasks.empty()) continue;
    const std::shared_ptr<Exchange> way = std::exchange(lane.way, nullptr);
    way->Post([tasks = std::exchange(lane.tasks, {})] {
      for (const auto& task : tasks) task();
    });
  }
}

}  // namespace cachalot
