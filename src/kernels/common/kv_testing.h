// A paged KV cache for tests: permuted block tables, blocks with gaps, poison (NaN) wherever nothing was
// written.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/common/kv_value.h"
#include "kernels/common/paged_kv.h"
#include "kernels/common/testing.h"
#include "quant/kv_format.h"

namespace cachalot {

struct KvShape {
  DType dtype = DType::kF32;
  int32_t num_kv_heads = 1;
  int32_t k_dim = 64;
  int32_t v_dim = 64;
  int32_t block_tokens = 16;
  bool value_in_key = false;  // MLA: one head; the value is the first v_dim values of the key
  int64_t gap = 0;            // unused values after each block
  // A quantised cache: `dtype` says nothing, and the gap counts words. Of the key exact_dim values are kept as BF16.
  KvScheme scheme = {};
  int32_t exact_dim = 0;
  bool with_mean = false;     // a mean of each head is taken off the keys
  int32_t sink_tokens = 0;    // the first ones lie elsewhere (PagedKv::sinks)

  std::string Name() const { return scheme.quantised() ? KvSchemeName(scheme) : DTypeName(dtype); }
};

class TestKv {
 public:
  // One slot for each entry of kv_lens, with room for that many tokens. The blocks of all slots are shuffled.
  TestKv(const KvShape& shape, std::span<const int32_t> kv_lens, uint64_t seed = 1);
  TestKv(const KvShape& shape, std::initializer_list<int32_t> kv_lens)
      : TestKv(shape, std::span<const int32_t>(kv_lens.begin(), kv_lens.size())) {}

  const PagedKv& view() const { return view_; }
  const TestKv* sinks() const { return sinks_.get(); }  // null: none

  // key: k_dim values, value: v_dim values (ignored when it lies within the key); rounded to the dtype.
  void Write(int64_t slot, int64_t head, int64_t position, std::span<const float> key,
             std::span<const float> value);
  // Random keys and values for tokens [0, kv_len) of each slot. A token's content
  // depends on (seed, content_id of the slot, head, position) alone: never on the block
  // size, the dtype's layout or the other slots.
  void FillNormal(std::span<const int32_t> kv_lens, std::span<const int64_t> content_ids,
                  float key_scale = 1.0f);

  std::vector<float> Key(int64_t slot, int64_t head, int64_t position) const;
  std::vector<float> Value(int64_t slot, int64_t head, int64_t position) const;
  std::vector<float> AllBytes() const;  // as bit patterns, for comparisons
  bool Intact() const { return data_.Intact() && (sinks_ == nullptr || sinks_->Intact()); }

 private:
  int64_t BlockBytes() const;
  std::byte* Region(int64_t slot, int64_t head, int64_t position) const;
  const float* Mean(int64_t head) const;
  std::byte* TokenKey(int64_t slot, int64_t head, int64_t position) const;
  std::byte* TokenValue(int64_t slot, int64_t head, int64_t position) const;

  bool IsSink(int64_t position) const { return position < view_.sink_tokens; }

  KvShape shape_;
  std::unique_ptr<TestKv> sinks_;
  int64_t num_slots_ = 0;
  std::vector<int32_t> tables_;
  std::unique_ptr<KvPlanes> planes_;  // of a quantised cache
  std::vector<float> mean_;
  GuardedBuffer<uint32_t> data_;
  PagedKv view_;
};

}  // namespace cachalot
