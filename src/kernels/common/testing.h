// What every kernel test shares: the one comparer, the one tolerance table, seeded fills, guarded buffers and
// an ExecContext to run in. Test-only code: nothing outside *_test.cc and *_bench.cc links it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/exec_context.h"
#include "tensor/dtype.h"

namespace cachalot {

// An element passes when |got - want| <= absolute + relative * |want| + of_rms * rms(want): the last term is
// for sums whose terms cancel, where the error follows the size of the terms and not that of the result.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  double of_rms = 0;
  double min_cosine = -1;
};

enum class OpClass {
  kExact,      // copies, choices, conversions: the same bits (NaN payloads aside)
  kPointwise,  // a few roundings per element: rope, swiglu
  kNorm,       // one long reduction, then a scaling
  kSoftmax,    // exp and a normalisation: attention, routing weights; by the KV cache's format
  kMatmul,     // long dot products; by the weight's format (what the kernel rounds the activations to)
};

// The table. `format` is that of the data which the variant may treat more coarsely than the reference.
Tolerance ToleranceFor(OpClass op, DType format = DType::kF32);

struct Comparison {
  bool ok = false;
  double max_absolute = 0;
  double max_relative = 0;  // over elements with |want| above the absolute tolerance
  double cosine = 1;
  int64_t worst = -1;   // where the error exceeds its limit most, relative to the limit
  std::string message;  // all of the above in one line
};

// NaN must meet NaN and an infinity the same infinity.
Comparison Compare(std::span<const float> got, std::span<const float> want, const Tolerance& tolerance);

// Bits, not values: empty when equal, else the first difference in words.
std::string FirstBitDifference(std::span<const float> a, std::span<const float> b);

// Small, fast and the same on every machine (splitmix64).
class TestRng {
 public:
  explicit TestRng(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  double Uniform();                        // [0, 1)
  float Uniform(float low, float high);    // [low, high)
  int64_t Int(int64_t low, int64_t high);  // [low, high]
  float Normal();
  void FillNormal(std::span<float> values, float scale = 1.0f);
  std::vector<float> NormalVector(int64_t count, float scale = 1.0f);
  std::vector<int32_t> Permutation(int32_t count);

 private:
  uint64_t state_;
};

// `count` values between two guards; everything starts as poison (a NaN pattern). Intact() is true while no
// guard byte has changed.
template <typename T>
class GuardedBuffer {
 public:
  static constexpr int64_t kGuard = 256 / sizeof(T);
  static constexpr unsigned char kPoison = 0xff;

  explicit GuardedBuffer(int64_t count) : count_(count), values_(new T[count + 2 * kGuard]) { Poison(); }
  void Poison() {
    std::memset(static_cast<void*>(values_.get()), kPoison, (count_ + 2 * kGuard) * sizeof(T));
  }
  T* data() { return values_.get() + kGuard; }
  const T* data() const { return values_.get() + kGuard; }
  int64_t size() const { return count_; }
  std::span<T> span() { return {data(), static_cast<size_t>(count_)}; }
  T& operator[](int64_t i) { return data()[i]; }
  bool Intact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values_.get());
    const int64_t total = (count_ + 2 * kGuard) * sizeof(T), guard = kGuard * sizeof(T);
    for (int64_t i = 0; i < guard; ++i) {
      if (bytes[i] != kPoison || bytes[total - 1 - i] != kPoison) return false;
    }
    return true;
  }
  bool Poisoned(int64_t i) const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values_.get() + kGuard + i);
    for (size_t b = 0; b < sizeof(T); ++b) {
      if (bytes[b] != kPoison) return false;
    }
    return true;
  }

 private:
  int64_t count_;
  std::unique_ptr<T[]> values_;
};

// Address space for values that lie very far apart: only the pages that are touched take memory.
class SparseFloats {
 public:
  explicit SparseFloats(int64_t count);
  ~SparseFloats();
  SparseFloats(const SparseFloats&) = delete;
  SparseFloats& operator=(const SparseFloats&) = delete;
  float* data() { return data_; }

 private:
  int64_t size_bytes_;
  float* data_;
};

// An ExecContext with a pool, a workspace and counters of its own.
class TestContext {
 public:
  explicit TestContext(Isa isa, int num_threads = 1, int64_t workspace_bytes = int64_t{64} << 20);
  const ExecContext& operator*() const { return context_; }
  operator const ExecContext&() const { return context_; }  // NOLINT: implicit on purpose
  Workspace& workspace() { return workspace_; }
  ExecCounters& counters() { return counters_; }

 private:
  ThreadPool pool_;
  Workspace workspace_;
  ExecCounters counters_;
  ExecContext context_;
};

// The instruction sets that this machine can test, kRef first.
std::vector<Isa> TestableIsas();

}  // namespace cachalot
