#include "kernels/common/testing.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace cachalot {
namespace {

struct ToleranceRow {
  OpClass op;
  DType format;
  Tolerance tolerance;
};

// F32 rows: what a different order of summation and a fused multiply-add cost. Others: what the coarser
// treatment of the activations costs (8-bit activations against quantised weights: about 1/127/sqrt(12) of a
// block's maximum per value, averaged over k).
constexpr ToleranceRow kTolerances[] = {
    {OpClass::kExact, DType::kF32, {0, 0, 0, -1}},
    {OpClass::kPointwise, DType::kF32, {1e-7, 2e-6, 0, 1 - 1e-9}},
    {OpClass::kNorm, DType::kF32, {1e-7, 4e-6, 0, 1 - 1e-9}},
    {OpClass::kSoftmax, DType::kF32, {1e-7, 2e-5, 2e-5, 1 - 1e-8}},
    {OpClass::kMatmul, DType::kF32, {1e-7, 1e-5, 2e-5, 1 - 1e-8}},
};
// Block formats, all alike.
constexpr Tolerance kQuantizedMatmul = {1e-6, 0, 4e-2, 1 - 1e-4};

}  // namespace

Tolerance ToleranceFor(OpClass op, DType format) {
  if (op == OpClass::kMatmul && IsQuantized(format)) return kQuantizedMatmul;
  const Tolerance* plain = nullptr;
  for (const ToleranceRow& row : kTolerances) {
    if (row.op != op) continue;
    if (row.format == format) return row.tolerance;
    if (row.format == DType::kF32) plain = &row.tolerance;
  }
  CHECK(plain != nullptr);
  return *plain;
}

Comparison Compare(std::span<const float> got, std::span<const float> want, const Tolerance& tolerance) {
  Comparison result;
  if (got.size() != want.size()) {
    result.message = fmt::format("{} values against {}", got.size(), want.size());
    return result;
  }
  double sum_squares = 0;
  for (float w : want) {
    if (std::isfinite(w)) sum_squares += double{w} * w;
  }
  const double rms = want.empty() ? 0 : std::sqrt(sum_squares / static_cast<double>(want.size()));
  double dot = 0, got_squares = 0, want_squares = 0, worst_excess = -1;
  int64_t num_bad = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double g = got[i], w = want[i];
    double excess;
    if (!std::isfinite(g) || !std::isfinite(w)) {
      const bool same = (std::isnan(g) && std::isnan(w)) || g == w;
      excess = same ? 0 : INFINITY;
    } else {
      const double error = std::abs(g - w);
      const double limit = tolerance.absolute + tolerance.relative * std::abs(w) + tolerance.of_rms * rms;
      excess = error == 0 ? 0 : limit == 0 ? INFINITY : error / limit;
      result.max_absolute = std::max(result.max_absolute, error);
      if (std::abs(w) > tolerance.absolute)
        result.max_relative = std::max(result.max_relative, error / std::abs(w));
      dot += g * w;
      got_squares += g * g;
      want_squares += w * w;
    }
    if (excess > 1) ++num_bad;
    if (excess > worst_excess) {
      worst_excess = excess;
      result.worst = static_cast<int64_t>(i);
    }
  }
  if (got_squares > 0 && want_squares > 0) {
    result.cosine = dot / std::sqrt(got_squares * want_squares);
  } else {
    result.cosine = got_squares == want_squares ? 1 : 0;
  }
  result.ok = num_bad == 0 && result.cosine >= tolerance.min_cosine;
  result.message = fmt::format("{} of {} beyond tolerance; abs {:.3g} rel {:.3g} cosine 1-{:.3g}", num_bad,
                               want.size(), result.max_absolute, result.max_relative, 1 - result.cosine);
  if (result.worst >= 0) {
    result.message += fmt::format("; worst at {}: got {:.9g}, want {:.9g} ({:.3g} of the limit)",
                                  result.worst, got[result.worst], want[result.worst], worst_excess);
  }
  return result;
}

std::string FirstBitDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return fmt::format("{} values against {}", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = std::bit_cast<uint32_t>(a[i]), y = std::bit_cast<uint32_t>(b[i]);
    if (x != y) return fmt::format("at {}: {:.9g} ({:08x}) against {:.9g} ({:08x})", i, a[i], x, b[i], y);
  }
  return "";
}

uint64_t TestRng::Next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double TestRng::Uniform() {
  return static_cast<double>(Next() >> 11) * 0x1p-53;
}

float TestRng::Uniform(float low, float high) {
  return low + (high - low) * static_cast<float>(Uniform());
}

int64_t TestRng::Int(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
}

float TestRng::Normal() {
  const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * Uniform()));
}

void TestRng::FillNormal(std::span<float> values, float scale) {
  for (float& value : values) value = Normal() * scale;
}

std::vector<float> TestRng::NormalVector(int64_t count, float scale) {
  std::vector<float> values(count);
  FillNormal(values, scale);
  return values;
}

std::vector<int32_t> TestRng::Permutation(int32_t count) {
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int32_t i = count - 1; i > 0; --i) std::swap(order[i], order[Int(0, i)]);
  return order;
}

SparseFloats::SparseFloats(int64_t count) : size_bytes_(count * int64_t{sizeof(float)}) {
  void* memory =
      mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED) << "no address space for " << size_bytes_ << " bytes";
  data_ = static_cast<float*>(memory);
}

SparseFloats::~SparseFloats() {
  munmap(data_, size_bytes_);
}

TestContext::TestContext(Isa isa, int num_threads, int64_t workspace_bytes) : pool_(num_threads) {
  workspace_ = Workspace::Allocate(workspace_bytes).value();
  context_.isa = isa;
  context_.pool = &pool_;
  context_.workspace = &workspace_;
  context_.counters = &counters_;
}

std::vector<Isa> TestableIsas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa <= BestIsa()) isas.push_back(isa);
  }
  return isas;
}

}  // namespace cachalot
