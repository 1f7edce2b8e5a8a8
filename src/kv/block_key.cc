#include "kv/block_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cachalot {
namespace {

class KeyHash {
 public:
  KeyHash() { XXH3_128bits_reset(&state_); }
  void Add(const void* data, size_t num_bytes) { XXH3_128bits_update(&state_, data, num_bytes); }
  void AddText(std::string_view text) {
    const uint64_t size = text.size();  // ("ab", "c") is not ("a", "bc")
    Add(&size, sizeof(size));
    Add(text.data(), text.size());
  }
  BlockKey Digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {hash.low64, hash.high64};
  }

 private:
  XXH3_state_t state_;
};

}  // namespace

BlockKey RootKey(std::string_view identity, std::string_view salt) {
  KeyHash hash;
  hash.AddText(identity);
  hash.AddText(salt);
  return hash.Digest();
}

BlockKey ChildKey(const BlockKey& parent, std::span<const int32_t> tokens) {
  KeyHash hash;
  hash.Add(&parent, sizeof(parent));
  hash.Add(tokens.data(), tokens.size_bytes());
  return hash.Digest();
}

}  // namespace cachalot
