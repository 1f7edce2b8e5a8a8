#include "weights/dummy/dummy_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "base/cpu_features.h"
#include "quant/format.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr int kTableBits = 12;
constexpr int kTableSize = 1 << kTableBits;

// Quantiles of the standard normal distribution at (i + 1/2) / kTableSize, by bisection; computed once.
const std::vector<float>& NormalQuantiles() {
  static const std::vector<float> quantiles = [] {
    std::vector<float> table(kTableSize);
    for (int i = kTableSize / 2; i < kTableSize; ++i) {
      const double wanted = (i + 0.5) / kTableSize;
      double low = 0.0, high = 8.0;
      for (int step = 0; step < 40; ++step) {
        const double middle = (low + high) / 2;
        (0.5 * std::erfc(-middle * M_SQRT1_2) < wanted ? low : high) = middle;
      }
      table[static_cast<size_t>(i)] = static_cast<float>(low);
      table[static_cast<size_t>(kTableSize - 1 - i)] = static_cast<float>(-low);
    }
    return table;
  }();
  return quantiles;
}

uint64_t Mix(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t HashName(std::string_view name) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return hash;
}

// A counter that is multiplied with itself: 64 bits in about a nanosecond.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed)) {}
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ull;
    const auto product = static_cast<unsigned __int128>(state_) * (state_ ^ 0xd6e8feb86659fd93ull);
    return static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product);
  }

 private:
  uint64_t state_;
};

// out[i] = table[random 12 bits].
template <typename T>
void Draw(Random random, const T* table, T* out, int64_t count) {
  constexpr uint64_t kMask = kTableSize - 1;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const uint64_t bits = random.Next();
    out[i] = table[bits & kMask];
    out[i + 1] = table[(bits >> 16) & kMask];
    out[i + 2] = table[(bits >> 32) & kMask];
    out[i + 3] = table[(bits >> 48) & kMask];
  }
  for (; i < count; ++i) out[i] = table[random.Next() & kMask];
}

bool HasDirectBlocks(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0 || type == DType::kQ4_1 || type == DType::kQ4_K || type == DType::kQ6_K;
}

// Deviation of the integers that the blocks are filled with, all of them equally likely; Q4_K, Q6_K: of what the block's
// scale multiplies.
float BlockDeviation(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return 73.9f;
    case DType::kQ4_K:
      return 168.3f;
    case DType::kQ6_K:
      return 1365.7f;
    default:
      return 4.61f;
  }
}

void Put16Bytes(Random& random, void* out) {
  const uint64_t words[2] = {random.Next(), random.Next()};
  std::memcpy(out, words, 16);
}

}  // namespace

DummyRows::DummyRows(const DummyTensor& tensor, uint64_t seed)
    : tensor_(tensor),
      seed_(Mix(seed ^ HashName(tensor.info.name))),
      row_bytes_(DTypeBytes(tensor.info.dtype, tensor.num_cols())) {
  const DType type = tensor.info.dtype;
  if (HasDirectBlocks(type)) {
    for (int i = 0; i < 16; ++i) {
      const float jitter = 0.8f + 0.4f * static_cast<float>(i) / 15.0f;
      block_scales_[i] = F32ToF16(tensor.std * jitter / BlockDeviation(type));
    }
    return;
  }
  std::vector<float> values(kTableSize);
  for (int i = 0; i < kTableSize; ++i) {
    const auto at = static_cast<size_t>(i);
    // Block scales are spread evenly over ±1/4 of their mean.
    values[at] = tensor.fill == DummyFill::kBlockScale
                     ? tensor.mean * (0.75f + 0.5f * (static_cast<float>(i) + 0.5f) / kTableSize)
                     : tensor.mean + tensor.std * NormalQuantiles()[at];
  }
  const bool encoded_later = IsQuantized(type);
  table_.resize(static_cast<size_t>(DTypeBytes(encoded_later ? DType::kF32 : type, kTableSize)));
  FindQuantFormat(encoded_later ? DType::kF32 : type)->encode(values.data(), table_.data(), kTableSize);
}

void DummyRows::Fill(int64_t row_begin, int64_t row_count, std::byte* out) const {
  for (int64_t row = row_begin; row < row_begin + row_count; ++row, out += row_bytes_) {
    table_.empty() ? FillBlocks(row, out) : FillPlain(row, out);
  }
}

void DummyRows::FillPlain(int64_t row, std::byte* out) const {
  const Random random(seed_ + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15ull);
  const int64_t cols = tensor_.num_cols();
  if (IsQuantized(tensor_.info.dtype)) {
    std::vector<float> values(static_cast<size_t>(cols));
    Draw(random, reinterpret_cast<const float*>(table_.data()), values.data(), cols);
    FindQuantFormat(tensor_.info.dtype)->encode(values.data(), out, cols);
    return;
  }
  switch (row_bytes_ / cols) {
    case 1:
      return Draw(random, reinterpret_cast<const uint8_t*>(table_.data()), reinterpret_cast<uint8_t*>(out),
                  cols);
    case 2:
      return Draw(random, reinterpret_cast<const uint16_t*>(table_.data()), reinterpret_cast<uint16_t*>(out),
                  cols);
    default:
      return Draw(random, reinterpret_cast<const uint32_t*>(table_.data()), reinterpret_cast<uint32_t*>(out),
                  cols);
  }
}

// Blocks with random integers and one of 16 scales; the sign of the scale (Q4_0, Q6_K) or a minimum of -7.5 scales
// (Q4_1, Q4_K) keeps the mean at zero.
void DummyRows::FillBlocks(int64_t row, std::byte* out) const {
  Random random(seed_ + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15ull);
  const int64_t num_blocks = tensor_.num_cols() / GetDTypeInfo(tensor_.info.dtype).block_size;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const uint64_t bits = random.Next();
    const uint16_t scale = block_scales_[bits & 15];
    if (tensor_.info.dtype == DType::kQ8_0) {
      auto* block = reinterpret_cast<BlockQ8_0*>(out) + b;
      block->scale = scale;
      Put16Bytes(random, block->q);
      Put16Bytes(random, block->q + 16);
    } else if (tensor_.info.dtype == DType::kQ4_0) {
      auto* block = reinterpret_cast<BlockQ4_0*>(out) + b;
      block->scale = static_cast<uint16_t>(scale ^ ((bits & 16) << 11));
      Put16Bytes(random, block->q);
    } else if (tensor_.info.dtype == DType::kQ4_K) {
      BlockQ4_K block;
      block.d = scale;
      block.dmin = F32ToF16(7.5f * F16ToF32(scale));
      const uint64_t scales = random.Next();
      std::memcpy(block.scales, &scales, 4);
      std::memcpy(block.scales + 4, &scales, 4);  // minima as scales, so that each sub-block's mean is about zero
      for (int j = 0; j < 4; ++j) block.scales[8 + j] = static_cast<uint8_t>((scales >> (32 + 4 * j) & 0xf) * 0x11);
      for (int i = 0; i < 128; i += 16) Put16Bytes(random, block.q + i);
      std::memcpy(out + b * static_cast<int64_t>(sizeof(block)), &block, sizeof(block));
    } else if (tensor_.info.dtype == DType::kQ6_K) {
      BlockQ6_K block;
      block.d = static_cast<uint16_t>(scale ^ ((bits & 16) << 11));
      Put16Bytes(random, block.scales);
      for (int i = 0; i < 128; i += 16) Put16Bytes(random, block.low + i);
      for (int i = 0; i < 64; i += 16) Put16Bytes(random, block.high + i);
      std::memcpy(out + b * static_cast<int64_t>(sizeof(block)), &block, sizeof(block));
    } else {
      auto* block = reinterpret_cast<BlockQ4_1*>(out) + b;
      block->scale = scale;
      block->min = F32ToF16(-7.5f * F16ToF32(scale));
      Put16Bytes(random, block->q);
    }
  }
}

void FillDummyRows(const DummyTensor& tensor, int64_t row_begin, int64_t row_count, std::span<std::byte> out,
                   uint64_t seed) {
  const DummyRows rows(tensor, seed);
  CHECK(static_cast<int64_t>(out.size()) == row_count * rows.row_bytes()) << tensor.info.name;
  constexpr int64_t kBytesWorthAThread = int64_t{4} << 20;
  const int64_t num_threads = std::min<int64_t>(
      {NumPhysicalCores(), row_count, static_cast<int64_t>(out.size()) / kBytesWorthAThread});
  if (num_threads < 2) return rows.Fill(row_begin, row_count, out.data());
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < num_threads; ++t) {
    const int64_t begin = row_count * t / num_threads;
    const int64_t end = row_count * (t + 1) / num_threads;
    threads.emplace_back([&rows, row_begin, begin, end, out] {
      rows.Fill(row_begin + begin, end - begin, out.data() + begin * rows.row_bytes());
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace cachalot
