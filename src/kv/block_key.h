// BlockKey: the name of what a KV block holds. A chain: the key of a page of tokens covers everything before
// it too, so that equal keys mean equal tokens from the start of the sequence, of the same weights, KV types
// and tenant.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot {

struct BlockKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const BlockKey&) const = default;
};

// The key before the first token. identity: weights and KV types; salt: the tenant's.
BlockKey RootKey(std::string_view identity, std::string_view salt);
// The key of `tokens`, which follow what `parent` names.
BlockKey ChildKey(const BlockKey& parent, std::span<const int32_t> tokens);
// A page may be cut into several blocks: the key of block `idx` of the page.
inline BlockKey KeyInPage(const BlockKey& page, int32_t idx) {
  return {page.low + static_cast<uint64_t>(idx) * 0x9e3779b97f4a7c15u, page.high};
}

}  // namespace cachalot
