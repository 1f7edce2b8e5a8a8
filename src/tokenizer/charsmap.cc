#include "tokenizer/charsmap.h"

#include <cstring>

namespace cachalot {
namespace {

// A unit: bits 0-7 its label (with bit 31, which a leaf has, for inner ones 0), bit 8 whether a leaf follows,
// bits 9-30 the distance to its children, in units of 256 where bit 9 says so. A leaf: bits 0-30 its value.
bool HasLeaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t Value(uint32_t unit) {
  return unit & 0x7fffffffu;
}
uint32_t Label(uint32_t unit) {
  return unit & 0x800000ffu;
}
uint32_t Offset(uint32_t unit) {
  return unit >> 10 << ((unit & 0x200u) >> 6);
}

}  // namespace

Result<Charsmap> Charsmap::Parse(std::string_view bytes) {
  uint32_t array_bytes = 0;
  if (bytes.size() < sizeof(array_bytes)) return Corrupt("a charsmap of {} bytes", bytes.size());
  std::memcpy(&array_bytes, bytes.data(), sizeof(array_bytes));
  bytes.remove_prefix(sizeof(array_bytes));
  if (array_bytes % 4 != 0 || array_bytes == 0 || array_bytes > bytes.size()) {
    return Corrupt("a charsmap whose array has {} bytes, {} are there", array_bytes, bytes.size());
  }
  Charsmap map;
  map.units_.resize(array_bytes / 4);
  std::memcpy(map.units_.data(), bytes.data(), array_bytes);
  map.texts_ = bytes.substr(array_bytes);
  return map;
}

std::string Charsmap::Bytes() const {
  const auto array_bytes = static_cast<uint32_t>(units_.size() * 4);
  std::string bytes(sizeof(array_bytes) + array_bytes, '\0');
  std::memcpy(bytes.data(), &array_bytes, sizeof(array_bytes));
  std::memcpy(bytes.data() + sizeof(array_bytes), units_.data(), array_bytes);
  return bytes + texts_;
}

Charsmap::Match Charsmap::Find(std::string_view text, bool shortest) const {
  Match match;
  uint64_t at = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    at ^= static_cast<uint8_t>(text[i]);
    if (at >= units_.size() || Label(units_[at]) != static_cast<uint8_t>(text[i])) break;
    const uint32_t unit = units_[at];
    at ^= Offset(unit);
    if (at >= units_.size()) break;
    if (!HasLeaf(unit)) continue;
    const size_t begin = Value(units_[at]);
    if (begin >= texts_.size()) continue;
    match.size = i + 1;
    match.replacement = std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
    if (shortest) break;
  }
  return match;
}

}  // namespace cachalot
