// The formats of a quantised KV cache (--kv-type), and where everything lies in a block: the one description that the
// ops of every device read.
//
// Of a block, a layer's part holds one region per KV head, and a region holds planes, each with one row per token:
//   key main, key high, key scales, [exact], value main, value high, value scales.
// Planes and regions begin at multiples of 16 bytes. MLA has one head whose value is the key's first dims: the latent
// is stored once, as the key, and the key's rotary part behind it exactly, as BF16.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "quant/kv_code.h"

namespace cachalot {

inline constexpr int32_t kMaxKvDim = 1024;  // values of a quantised key

struct KvScheme {
  KvCode key = KvCode::kNone;  // kNone: not quantised
  KvCode value = KvCode::kNone;
  int32_t key_group = 0;       // values that share a scale; 0: all of a head
  int32_t value_group = 0;
  int32_t latent_group = 0;    // of MLA's latent, which is coded as a key is
  bool rotate = false;         // kv_rotate.h: keys, or latents

  bool quantised() const { return key != KvCode::kNone; }
  bool operator==(const KvScheme&) const = default;
};

struct KvFormat {
  const char* name;  // "k6v8"
  KvScheme scheme;
};
std::span<const KvFormat> KvFormats();
const KvFormat* FindKvFormat(std::string_view name);
// How the first tokens of a sequence are kept (attention sinks): exact to BF16, in the form in which the scheme keeps the
// others, so that their scores and values can be added up together.
KvScheme SinkScheme(const KvScheme& scheme);
// Everything beside the means that the bits depend on, such as "int6/0-e4m3/0-rotated"; for names of caches.
std::string KvSchemeName(const KvScheme& scheme);

// The vectors of a token and head.
struct KvVectors {
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int32_t exact_dim = 0;       // the last values of the key, kept as BF16
  bool value_in_key = false;   // MLA
};

struct KvRows {
  KvCoding coding;
  int64_t main = 0;        // offsets of the planes from the start of the region
  int64_t high = 0;
  int64_t scales = 0;
  int32_t main_row = 0;    // bytes of a token's row
  int32_t high_row = 0;
  int32_t scale_row = 0;

  uint8_t* Main(std::byte* head, int64_t token) const { return reinterpret_cast<uint8_t*>(head) + main + token * main_row; }
  uint8_t* High(std::byte* head, int64_t token) const { return reinterpret_cast<uint8_t*>(head) + high + token * high_row; }
  uint16_t* Scales(std::byte* head, int64_t token) const {
    return reinterpret_cast<uint16_t*>(head + scales + token * scale_row);
  }
  int32_t token_bytes() const { return main_row + high_row + scale_row; }
};

struct KvPlanes {
  KvRows key;
  KvRows value;              // with value_in_key the key's own rows
  int64_t exact = 0;         // BF16 [block_tokens, exact_dim]
  int32_t exact_dim = 0;
  bool value_in_key = false;
  int32_t rotation = 1;      // length of the rotated blocks of the coded part of the key
  int64_t head_bytes = 0;    // of a region; 0: the cache is not quantised

  uint16_t* Exact(std::byte* head, int64_t token) const {
    return reinterpret_cast<uint16_t*>(head + exact) + token * exact_dim;
  }
  int32_t token_bytes() const {  // of one head, as attention reads it
    return key.token_bytes() + 2 * exact_dim + (value_in_key ? 0 : value.token_bytes());
  }
};

KvPlanes PlanKvPlanes(const KvScheme& scheme, const KvVectors& vectors, int32_t block_tokens);

// A token's key on its way into a region: [the coded values - mean] rotated and encoded, the exact part behind. `key`
// [k_dim] is scratch afterwards. mean [coded values] or null.
void EncodeKvKey(const KvPlanes& planes, const float* mean, float* key, std::byte* head, int64_t token);
void EncodeKvValue(const KvPlanes& planes, const float* value, std::byte* head, int64_t token);
// What the region stands for, as the model meant it.
void DecodeKvKey(const KvPlanes& planes, const float* mean, std::byte* head, int64_t token, float* key);
void DecodeKvValue(const KvPlanes& planes, const float* mean, std::byte* head, int64_t token, float* value);
// The coded values as they are stored: rotated, without the mean.
void DecodeKvRows(const KvRows& rows, std::byte* head, int64_t token, float* x);

}  // namespace cachalot
