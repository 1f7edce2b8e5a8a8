#include "runtime/cuda_step_input.h"

namespace cachalot {
namespace {

// Pieces one after the other, each 16-byte aligned.
class Cursor {
 public:
  explicit Cursor(std::byte* base) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    // Through an integer: the base may be null when only the size is asked for.
    auto* data = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base_) + static_cast<uintptr_t>(used_));
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
    return data;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace

CudaStepInput CudaStepInput::At(std::byte* base, const CudaStepBounds& bounds) {
  Cursor cursor(base);
  CudaStepInput input;
  input.header = cursor.Take<CudaStepHeader>(1);
  input.spans = cursor.Take<SeqSpan>(bounds.spans);
  input.drafts = cursor.Take<int32_t>(bounds.spans);
  input.first_wanted = cursor.Take<int32_t>(bounds.spans);
  input.next_tokens = cursor.Take<int32_t>(bounds.spans);
  input.tokens = cursor.Take<int32_t>(bounds.rows);
  input.writes = cursor.Take<CudaBlockWrite>(bounds.writes);
  input.setups = cursor.Take<CudaSlotSetup>(bounds.setups);
  input.wanted = cursor.Take<int32_t>(bounds.wanted);
  input.num_top = cursor.Take<int32_t>(bounds.wanted);
  input.target_ids = cursor.Take<int32_t>(bounds.wanted);
  input.size_bytes = cursor.used();
  return input;
}

CudaStepOutput CudaStepOutput::At(std::byte* base, const CudaStepBounds& bounds, int64_t counts) {
  Cursor cursor(base);
  CudaStepOutput output;
  output.tokens = cursor.Take<int32_t>(bounds.wanted);
  output.computed = cursor.Take<int32_t>(bounds.spans);
  output.logprobs = cursor.Take<float>(bounds.wanted);
  output.target_logprobs = cursor.Take<float>(bounds.wanted);
  output.expert_counts = cursor.Take<int32_t>(counts);
  output.draft_ns = cursor.Take<int64_t>(1);
  output.size_bytes = cursor.used();
  return output;
}

}  // namespace cachalot
