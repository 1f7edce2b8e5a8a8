#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot::jinja {

// A string's sizes and offsets are 32 bits.
constexpr int64_t kMaxTextBytes = int64_t{1} << 31;

Status Runtime::Spent() const {
  if (arena.exhausted()) return OutOfMemory();
  return Exhausted("rendering took more than {} steps", limits_.max_steps);
}

Status Runtime::OutOfMemory() const {
  return Exhausted("rendering needs more than {} bytes of memory", limits_.max_memory_bytes);
}

Result<char*> Runtime::NewText(int64_t size) {
  if (size >= kMaxTextBytes) return OutOfMemory();
  RETURN_IF_ERROR(Room(size));
  RETURN_IF_ERROR(Bytes(size));
  return arena.NewText(static_cast<size_t>(size));
}

Result<Value*> Runtime::NewValues(int64_t count) {
  if (count >= kMaxTextBytes) return OutOfMemory();
  RETURN_IF_ERROR(Room(count * static_cast<int64_t>(sizeof(Value))));
  RETURN_IF_ERROR(Work(count >> 2));
  return arena.NewArray<Value>(static_cast<size_t>(count));
}

}  // namespace cachalot::jinja
