#include "tokenizer/chat/jinja/jinja_arena.h"

#include <algorithm>

namespace cachalot::jinja {

char* Arena::Pool::Take(size_t size, Arena* arena) {
  if (size > static_cast<size_t>(end - next)) {
    const size_t bytes = std::max(size, chunk_size);
    chunk_size = std::min<size_t>(chunk_size * 2, 1 << 18);
    // operator new[] aligns to 16 bytes.
    chunks.push_back(std::unique_ptr<char[]>(new char[bytes]));
    next = chunks.back().get();
    end = next + bytes;
  }
  char* result = next;
  next += size;
  arena->used_ += static_cast<int64_t>(size);
  return result;
}

bool Arena::GrowText(const char* end, size_t size) {
  if (end != text_.next || size > static_cast<size_t>(text_.end - text_.next)) return false;
  text_.next += size;
  used_ += static_cast<int64_t>(size);
  return true;
}

}  // namespace cachalot::jinja
