// What one render may spend and share: its arena, its step count, its place in the template, its clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/jinja/jinja_arena.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

struct Keyword {
  std::string_view name;
  Value value;
  bool name_from_user = false;  // it was a key of a ** argument
};

// Arguments of a call, already evaluated.
struct Args {
  std::span<const Value> positional;
  std::span<const Keyword> keywords;
};

class Runtime {
 public:
  explicit Runtime(const ChatTemplateLimits& limits) : arena(limits.max_memory_bytes), limits_(limits) {}

  const ChatTemplateLimits& limits() const { return limits_; }

  // Charges work that is not a node of its own: bytes copied or compared, items visited.
  Status Work(int64_t steps) {
    steps_ += steps;
    if (steps_ > limits_.max_steps || arena.exhausted()) [[unlikely]]
      return Spent();
    return Status::Ok();
  }
  Status Step() { return Work(1); }
  Status Bytes(int64_t bytes) { return Work(bytes >> 6); }
  // A recursion over nested values.
  Status Nesting(int depth) {
    if (depth > limits_.max_depth) [[unlikely]] {
      return Exhausted("values are nested deeper than {}", limits_.max_depth);
    }
    return Work(1);
  }
  // Room for `bytes` that data asked for.
  Status Room(int64_t bytes) {
    if (!arena.Fits(bytes)) [[unlikely]]
      return OutOfMemory();
    return Status::Ok();
  }
  Result<char*> NewText(int64_t size);
  // `count` default values.
  Result<Value*> NewValues(int64_t count);

  int64_t steps() const { return steps_; }

  Arena arena;
  int depth = 0;                     // of nested evaluation: expressions, blocks, macro calls
  const char* stack_base = nullptr;  // where the outermost of them stands
  std::optional<int64_t> now_unix_seconds;

 private:
  Status Spent() const;
  Status OutOfMemory() const;

  const ChatTemplateLimits& limits_;
  int64_t steps_ = 0;
};

}  // namespace cachalot::jinja
