// Outbox: what a step brings for many connections goes to each of their event loops in one piece. A wake-up of its own for
// every stream costs the engine's thread more than all its other work.
// One thread's own: the engine's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/http/http_server.h"

namespace cachalot {

class Outbox {
 public:
  // Runs fn on the exchange's thread, after Flush.
  void Add(const std::shared_ptr<Exchange>& exchange, std::function<void()> fn);
  void Flush();

 private:
  struct Lane {
    const void* loop = nullptr;
    std::shared_ptr<Exchange> way;  // any exchange of the loop
    std::vector<std::function<void()>> tasks;
  };
  std::vector<Lane> lanes_;
};

}  // namespace cachalot
