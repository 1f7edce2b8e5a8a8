// What every GPU test shares: the backend and a stream, guarded arrays in device memory, batches of sequences, captured
// graphs. Comparisons are those of kernels/common/testing.h.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/cuda_library.h"
#include "kernels/common/cuda_batch.h"
#include "kernels/common/kv_testing.h"
#include "kernels/common/testing.h"

namespace cachalot {

// The library and a stream, once for the process. Null backend: no library or no card, with the reason.
struct Gpu {
  const CudaBackend* backend = nullptr;
  std::string reason;
  CudaDeviceInfo info;
  void* stream = nullptr;
  void* matmul_plans = nullptr;

  static const Gpu& Get();

  CudaExec Exec(CudaMath math = CudaMath::kFast, bool deterministic = false) const;
  void Synchronize() const;
};

// The fixture of all GPU tests: skips without a card.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (Gpu::Get().backend == nullptr) GTEST_SKIP() << Gpu::Get().reason;
  }
};

// Whether a case of `work` multiply-adds is run. All are, unless CACHALOT_GPU_CASES says "EVERY,MOST": each EVERY-th of those of at most
// MOST, for tools under which kernels take a hundred times as long. How many were left out is said at the end.
bool Chosen(int64_t work);
// "" where every case was run.
std::string LeftOutCases();

// Fails the test with the library's words.
#define GPU_OK(call)                                        \
  do {                                                      \
    const ::cachalot::Status gpu_ok_ = FromCuda(call);      \
    ASSERT_TRUE(gpu_ok_.ok()) << gpu_ok_.ToString();        \
  } while (0)
#define GPU_EXPECT_OK(call)                                 \
  do {                                                      \
    const ::cachalot::Status gpu_ok_ = FromCuda(call);      \
    EXPECT_TRUE(gpu_ok_.ok()) << gpu_ok_.ToString();        \
  } while (0)

// `count` values in device memory between two guards of 1 KiB; starts as poison (bytes of 0xff).
class GpuBytes {
 public:
  static constexpr int64_t kGuard = 1024;
  explicit GpuBytes(int64_t size_bytes);
  std::byte* data() const { return buffer_.data() + kGuard; }
  int64_t size_bytes() const { return size_bytes_; }
  void Write(const void* src, int64_t bytes);
  void Read(void* dst) const;
  bool Intact() const;
  void Poison();

 private:
  CudaBuffer buffer_;
  int64_t size_bytes_;
};

template <typename T>
class GpuArray {
 public:
  explicit GpuArray(int64_t count) : bytes_(count * static_cast<int64_t>(sizeof(T))), count_(count) {}
  explicit GpuArray(std::span<const T> values) : GpuArray(static_cast<int64_t>(values.size())) { Write(values); }
  explicit GpuArray(const std::vector<T>& values) : GpuArray(std::span<const T>(values)) {}
  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  int64_t size() const { return count_; }
  void Write(std::span<const T> values) { bytes_.Write(values.data(), static_cast<int64_t>(values.size_bytes())); }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    bytes_.Read(values.data());
    return values;
  }
  bool Intact() const { return bytes_.Intact(); }
  void Poison() { bytes_.Poison(); }

 private:
  GpuBytes bytes_;
  int64_t count_;
};

// Whether every byte of the value is poison.
inline bool IsPoison(float value) { return std::bit_cast<uint32_t>(value) == 0xffffffffu; }

// A TestKv in device memory; of a quantised one without sinks, the planes stay where they are, with the TestKv.
class GpuKv {
 public:
  GpuKv(const TestKv& kv, int64_t num_slots);
  const PagedKv& view() const { return view_; }
  std::vector<float> AllBytes() const { return words_.Read(); }
  bool Intact() const { return words_.Intact() && tables_.Intact() && mean_.Intact() && (sink_tables_ == nullptr || sink_tables_->Intact()); }

 private:
  GpuArray<float> words_;  // the sinks' behind the others
  GpuArray<int32_t> tables_;
  GpuArray<float> mean_;
  std::unique_ptr<GpuArray<int32_t>> sink_tables_;
  PagedKv view_, sinks_;
};

// Spans in device memory and the arrays that batch_rows fills. More spans (empty ones) and rows than the step needs.
class GpuBatch {
 public:
  GpuBatch(std::span<const SeqSpan> spans, int32_t num_rows, int32_t extra_spans = 2);
  const CudaBatch& get() const { return batch_; }
  void Update(std::span<const SeqSpan> spans);  // as many or fewer; takes effect at the next Fill
  void Fill();                                  // launches batch_rows
  bool Intact() const {
    return spans_.Intact() && slots_.Intact() && positions_.Intact() && row_spans_.Intact();
  }
  std::vector<int32_t> slots() const { return slots_.Read(); }
  std::vector<int32_t> positions() const { return positions_.Read(); }

 private:
  GpuArray<SeqSpan> spans_;
  GpuArray<int32_t> slots_, positions_, row_spans_;
  CudaBatch batch_;
};

// Captures what `enqueue` launches on the stream into a graph and launches it when told to.
class GpuGraph {
 public:
  explicit GpuGraph(const std::function<void()>& enqueue);
  ~GpuGraph();
  void Enqueue();
  void Launch();  // and waits for it

 private:
  void* graph_ = nullptr;
};

}  // namespace cachalot
