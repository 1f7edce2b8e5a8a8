#include "kernels/common/kv_testing.h"

namespace cachalot {
namespace {

int64_t ValuesPerToken(const KvShape& s) {
  return int64_t{s.k_dim} + (s.value_in_key ? 0 : s.v_dim);
}

// A multiple of 4 bytes whatever the type.
int64_t BlockValues(const KvShape& s) {
  return (ValuesPerToken(s) * s.num_kv_heads * s.block_tokens + s.gap + 1) / 2 * 2;
}

std::unique_ptr<KvPlanes> PlanesOf(const KvShape& s) {
  if (!s.scheme.quantised()) return nullptr;
  return std::make_unique<KvPlanes>(PlanKvPlanes(s.scheme, {s.k_dim, s.v_dim, s.exact_dim, s.value_in_key}, s.block_tokens));
}

int64_t BlocksFor(const KvShape& s, int64_t tokens) {
  return (tokens + s.block_tokens - 1) / s.block_tokens;
}

int64_t TotalBlocks(const KvShape& s, std::span<const int32_t> kv_lens) {
  int64_t total = 0;
  for (int32_t kv_len : kv_lens) total += BlocksFor(s, kv_len);
  return total;
}

// Bell-shaped, deviation about 1, from one random number: caches are large and tests short.
void FillBell(TestRng& rng, std::span<float> values, float scale) {
  for (float& value : values) {
    const uint64_t bits = rng.Next();
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>(bits >> (16 * i) & 0xffff);
    value = static_cast<float>(sum - 2 * 0xffff) * (1.732f / 0xffff) * scale;
  }
}

template <typename T>
std::vector<float> ReadValues(const std::byte* p, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = ToF32(reinterpret_cast<const T*>(p)[i]);
  return values;
}

}  // namespace

TestKv::TestKv(const KvShape& shape, std::span<const int32_t> kv_lens, uint64_t seed)
    : shape_(shape),
      num_slots_(static_cast<int64_t>(kv_lens.size())),
      planes_(PlanesOf(shape)),
      data_(TotalBlocks(shape, kv_lens) * BlockBytes() / 4) {
  int64_t longest = 0;
  for (int32_t kv_len : kv_lens) longest = std::max(longest, BlocksFor(shape, kv_len));
  const int64_t table_stride = longest + 3;
  tables_.assign(num_slots_ * table_stride, -1);
  TestRng rng(seed);
  const std::vector<int32_t> order = rng.Permutation(static_cast<int32_t>(TotalBlocks(shape, kv_lens)));
  int64_t next = 0;
  for (int64_t slot = 0; slot < num_slots_; ++slot) {
    for (int64_t b = 0; b < BlocksFor(shape, kv_lens[slot]); ++b)
      tables_[slot * table_stride + b] = order[next++];
  }
  view_.data = reinterpret_cast<std::byte*>(data_.data());
  view_.dtype = shape.dtype;
  view_.block_tokens = shape.block_tokens;
  view_.num_kv_heads = shape.num_kv_heads;
  view_.k_dim = shape.k_dim;
  view_.v_dim = shape.v_dim;
  view_.block_bytes = BlockBytes();
  view_.planes = planes_.get();
  if (shape.with_mean) {
    mean_ = TestRng(99).NormalVector(int64_t{shape.num_kv_heads} * planes_->key.coding.dim, 2.0f);
    view_.key_mean = mean_.data();
  }
  view_.k_head_stride = int64_t{shape.block_tokens} * shape.k_dim;
  if (shape.value_in_key) {
    view_.v_offset = 0;
    view_.v_head_stride = view_.k_head_stride;
    view_.v_token_stride = shape.k_dim;
  } else {
    view_.v_offset = view_.k_head_stride * shape.num_kv_heads;
    view_.v_head_stride = int64_t{shape.block_tokens} * shape.v_dim;
    view_.v_token_stride = shape.v_dim;
  }
  view_.block_tables = tables_.data();
  view_.table_stride = table_stride;
  if (shape.sink_tokens == 0) return;
  KvShape sinks = shape;
  sinks.scheme = SinkScheme(shape.scheme);
  sinks.sink_tokens = 0;
  std::vector<int32_t> sink_lens(kv_lens.begin(), kv_lens.end());
  for (int32_t& len : sink_lens) len = std::min(len, shape.sink_tokens);
  sinks_ = std::make_unique<TestKv>(sinks, sink_lens, seed + 1);
  view_.sinks = &sinks_->view();
  view_.sink_tokens = shape.sink_tokens;
}

int64_t TestKv::BlockBytes() const {
  if (planes_ != nullptr) return planes_->head_bytes * shape_.num_kv_heads + shape_.gap * 4;
  return DTypeBytes(shape_.dtype, BlockValues(shape_));
}

std::byte* TestKv::Region(int64_t slot, int64_t head, int64_t position) const {
  return view_.Block(slot, position) + head * planes_->head_bytes;
}

const float* TestKv::Mean(int64_t head) const {
  return mean_.empty() ? nullptr : mean_.data() + head * planes_->key.coding.dim;
}

std::byte* TestKv::TokenKey(int64_t slot, int64_t head, int64_t position) const {
  const int64_t at = head * view_.k_head_stride + position % view_.block_tokens * view_.k_dim;
  return view_.Block(slot, position) + DTypeBytes(view_.dtype, at);
}

std::byte* TestKv::TokenValue(int64_t slot, int64_t head, int64_t position) const {
  const int64_t at =
      view_.v_offset + head * view_.v_head_stride + position % view_.block_tokens * view_.v_token_stride;
  return view_.Block(slot, position) + DTypeBytes(view_.dtype, at);
}

void TestKv::Write(int64_t slot, int64_t head, int64_t position, std::span<const float> key,
                   std::span<const float> value) {
  if (IsSink(position)) return sinks_->Write(slot, head, position, key, value);
  if (planes_ != nullptr) {
    std::vector<float> scratch(key.begin(), key.end());
    EncodeKvKey(*planes_, Mean(head), scratch.data(), Region(slot, head, position), position % view_.block_tokens);
    if (shape_.value_in_key) return;
    EncodeKvValue(*planes_, value.data(), Region(slot, head, position), position % view_.block_tokens);
    return;
  }
  WithKvType(view_.dtype, [&](auto type) {
    using T = decltype(type);
    T* k = reinterpret_cast<T*>(TokenKey(slot, head, position));
    T* v = reinterpret_cast<T*>(TokenValue(slot, head, position));
    for (size_t i = 0; i < key.size(); ++i) FromF32(key[i], k + i);
    for (size_t i = 0; i < value.size() && !shape_.value_in_key; ++i) FromF32(value[i], v + i);
  });
}

void TestKv::FillNormal(std::span<const int32_t> kv_lens, std::span<const int64_t> content_ids,
                        float key_scale) {
  std::vector<float> key(view_.k_dim), value(view_.v_dim);
  for (int64_t slot = 0; slot < num_slots_; ++slot) {
    for (int64_t head = 0; head < view_.num_kv_heads; ++head) {
      for (int64_t t = 0; t < kv_lens[slot]; ++t) {
        TestRng rng(static_cast<uint64_t>((content_ids[slot] * 1000 + head) * 10000000 + t));
        FillBell(rng, key, key_scale);
        FillBell(rng, value, 1.0f);
        Write(slot, head, t, key, value);
      }
    }
  }
}

std::vector<float> TestKv::Key(int64_t slot, int64_t head, int64_t position) const {
  if (IsSink(position)) return sinks_->Key(slot, head, position);
  std::vector<float> values;
  if (planes_ != nullptr) {
    values.resize(static_cast<size_t>(view_.k_dim));
    DecodeKvKey(*planes_, Mean(head), Region(slot, head, position), position % view_.block_tokens, values.data());
    return values;
  }
  WithKvType(view_.dtype, [&](auto type) {
    values = ReadValues<decltype(type)>(TokenKey(slot, head, position), view_.k_dim);
  });
  return values;
}

std::vector<float> TestKv::Value(int64_t slot, int64_t head, int64_t position) const {
  if (IsSink(position)) return sinks_->Value(slot, head, position);
  std::vector<float> values;
  if (planes_ != nullptr) {
    values.resize(static_cast<size_t>(view_.v_dim));
    DecodeKvValue(*planes_, Mean(head), Region(slot, head, position), position % view_.block_tokens, values.data());
    return values;
  }
  WithKvType(view_.dtype, [&](auto type) {
    values = ReadValues<decltype(type)>(TokenValue(slot, head, position), view_.v_dim);
  });
  return values;
}

std::vector<float> TestKv::AllBytes() const {
  std::vector<float> words(data_.size());
  std::memcpy(words.data(), data_.data(), words.size() * sizeof(float));
  if (sinks_ == nullptr) return words;
  const std::vector<float> more = sinks_->AllBytes();
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace cachalot
