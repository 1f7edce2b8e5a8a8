// FlashInfer's paged decode over our cache's blocks, for comparison: heads of 128, F16. Linked into
// cachalot_gpu_attention_bench where -DCACHALOT_FLASHINFER names the headers (those of the wheel flashinfer-python 0.6.8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cachalot {

struct FlashInferShape {
  int num_seqs = 0;
  int context = 0;  // of each sequence
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int block_tokens = 0;
  int64_t block_bytes = 0;  // keys of all heads, then values
};

class FlashInferDecode {
 public:
  // Plans for sequences whose blocks stand one after the other in `blocks`. Tensor cores: what FlashInfer does with
  // use_tensor_cores, its prefill kernel at one token.
  FlashInferDecode(const FlashInferShape& shape, const std::vector<int32_t>& blocks, bool tensor_cores, void* stream);
  ~FlashInferDecode();
  FlashInferDecode(const FlashInferDecode&) = delete;
  FlashInferDecode& operator=(const FlashInferDecode&) = delete;

  // q, out: F16 [num_seqs, num_q_heads, 128].
  void Run(const std::byte* cache, const void* q, void* out, void* stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cachalot
