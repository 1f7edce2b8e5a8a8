#include "kernels/matmul/panel.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/matmul/packed_matrix.h"
#include "kernels/matmul/panel_codes.h"
#include "quant/block_codes.h"
#include "quant/format.h"
#include "quant/fp8_e4m3.h"

namespace cachalot {
namespace {

constexpr int64_t kFp8ScaleBytes = kPanelRows * static_cast<int64_t>(sizeof(float));

// Where row r stands among the 16 values of a step of k.
enum class StepOrder { kRows, kPairs };
template <StepOrder kOrder>
constexpr int64_t StepIndex(int64_t r) {
  return kOrder == StepOrder::kRows ? r : r < 8 ? 2 * r : 2 * (r - 8) + 1;
}

// --- Plain types. ---

template <typename T, StepOrder kOrder>
void PackPlain(const PanelSource& source, int64_t k, std::byte* panel) {
  T* out = reinterpret_cast<T*>(panel);
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const std::byte* row = source.rows[r];
    for (int64_t i = 0; i < k; ++i) {
      T value{};
      if (row != nullptr) std::memcpy(&value, row + i * sizeof(T), sizeof(T));
      out[i * kPanelRows + StepIndex<kOrder>(r)] = value;
    }
  }
}

template <typename T, StepOrder kOrder>
void DecodePlainRow(DType dtype, const std::byte* panel, int64_t row, int64_t k, float* out) {
  const QuantFormat* format = FindQuantFormat(dtype);
  const T* values = reinterpret_cast<const T*>(panel) + StepIndex<kOrder>(row);
  constexpr int64_t kChunk = 64;
  T chunk[kChunk];
  for (int64_t k0 = 0; k0 < k; k0 += kChunk) {
    const int64_t len = std::min(kChunk, k - k0);
    for (int64_t i = 0; i < len; ++i) chunk[i] = values[(k0 + i) * kPanelRows];
    format->decode(reinterpret_cast<const std::byte*>(chunk), out + k0, len);
  }
}

// --- FP8: blocks of 128, each with its scales in front; four codes of a row stand together. ---

constexpr int64_t Fp8CodeIndex(int64_t i, int64_t r) {
  return (i / 4 * kPanelRows + r) * 4 + i % 4;
}
constexpr int64_t Fp8BlockBytes(int64_t len) {
  return kFp8ScaleBytes + (len + 3) / 4 * 4 * kPanelRows;
}

void PackFp8(const PanelSource& source, int64_t k, std::byte* panel) {
  for (int64_t k0 = 0; k0 < k; k0 += kFp8BlockSize) {
    const int64_t len = std::min(kFp8BlockSize, k - k0);
    float scales[kPanelRows] = {};
    std::byte* codes = panel + kFp8ScaleBytes;
    for (int64_t r = 0; r < kPanelRows; ++r) {
      std::byte row[kFp8BlockSize] = {};
      if (source.rows[r] != nullptr) {
        std::memcpy(row, source.rows[r] + k0, len);
        scales[r] = source.scales[r][k0 / kFp8BlockSize];
      }
      uint8_t most = 0;  // without a branch, so that it is a vector loop
      for (int64_t i = 0; i < kFp8BlockSize; ++i)
        most = std::max(most, static_cast<uint8_t>(row[i] & std::byte{0x7f}));
      if (most == 0x7f) scales[r] = std::numeric_limits<float>::quiet_NaN();
      for (int64_t i = 0; i < len; i += 4) std::memcpy(codes + Fp8CodeIndex(i, r), row + i, 4);
    }
    std::memcpy(panel, scales, sizeof(scales));
    panel += Fp8BlockBytes(len);
  }
}

void DecodeFp8Row(const std::byte* panel, int64_t row, int64_t k, float* out) {
  for (int64_t k0 = 0; k0 < k; k0 += kFp8BlockSize) {
    const int64_t len = std::min(kFp8BlockSize, k - k0);
    float scale;
    std::memcpy(&scale, panel + row * sizeof(float), sizeof(scale));
    const std::byte* codes = panel + kFp8ScaleBytes;
    for (int64_t i = 0; i < len; ++i) {
      out[k0 + i] = FP8E4M3ToF32(static_cast<uint8_t>(codes[Fp8CodeIndex(i, row)])) * scale;
    }
    panel += Fp8BlockBytes(len);
  }
}

// --- Block formats: kHeads F16 numbers in front of kQuads times four bytes, in the source and in the panel.
// kFlipped: bits of each four bytes that the panel has inverted. ---

template <int kHeads, int kQuads, uint32_t kFlipped = 0>
struct BlockLayout {
  static constexpr int64_t kSourceBytes = kHeads * 2 + kQuads * 4;
  static constexpr int64_t kPanelBytes = kSourceBytes * kPanelRows;
  static constexpr int64_t kQuadsOffset = kHeads * 2 * kPanelRows;

  static void Pack(const PanelSource& source, int64_t k, std::byte* panel) {
    const int64_t num_blocks = k / 32;
    for (int64_t b = 0; b < num_blocks; ++b, panel += kPanelBytes) {
      for (int64_t r = 0; r < kPanelRows; ++r) {
        std::byte block[kSourceBytes] = {};
        if (source.rows[r] != nullptr) std::memcpy(block, source.rows[r] + b * kSourceBytes, kSourceBytes);
        for (int h = 0; h < kHeads; ++h) std::memcpy(panel + (h * kPanelRows + r) * 2, block + h * 2, 2);
        for (int q = 0; q < kQuads; ++q) {
          CopyQuad(block + kHeads * 2 + q * 4, panel + kQuadsOffset + (q * kPanelRows + r) * 4);
        }
      }
    }
  }

  static void DecodeRow(DType dtype, const std::byte* panel, int64_t row, int64_t k, float* out) {
    const QuantFormat* format = FindQuantFormat(dtype);
    for (int64_t k0 = 0; k0 < k; k0 += 32, panel += kPanelBytes) {
      std::byte block[kSourceBytes];
      for (int h = 0; h < kHeads; ++h) std::memcpy(block + h * 2, panel + (h * kPanelRows + row) * 2, 2);
      for (int q = 0; q < kQuads; ++q) {
        CopyQuad(panel + kQuadsOffset + (q * kPanelRows + row) * 4, block + kHeads * 2 + q * 4);
      }
      format->decode(block, out + k0, 32);
    }
  }

 private:
  static void CopyQuad(const std::byte* from, std::byte* to) {
    uint32_t quad;
    std::memcpy(&quad, from, sizeof(quad));
    quad ^= kFlipped;
    std::memcpy(to, &quad, sizeof(quad));
  }
};
using Q8_0Layout = BlockLayout<1, 8, 0x00800080>;
using Q4_0Layout = BlockLayout<1, 4>;
using Q4_1Layout = BlockLayout<2, 4>;

}  // namespace

bool HasPanelLayout(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kFP8E4M3:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
      return true;
    default:
      return FindCodeFormat(dtype) != nullptr;
  }
}

int64_t PanelBytes(DType dtype, int64_t k) {
  if (dtype != DType::kFP8E4M3) return DTypeBytes(dtype, k) * kPanelRows;
  const int64_t tail = k % kFp8BlockSize;
  return k / kFp8BlockSize * Fp8BlockBytes(kFp8BlockSize) + (tail > 0 ? Fp8BlockBytes(tail) : 0);
}

void PackPanel(DType dtype, const PanelSource& source, int64_t k, std::byte* panel) {
  switch (dtype) {
    case DType::kF32:
      return PackPlain<uint32_t, StepOrder::kRows>(source, k, panel);
    case DType::kF16:
      return PackPlain<uint16_t, StepOrder::kRows>(source, k, panel);
    case DType::kBF16:
      return PackPlain<uint16_t, StepOrder::kPairs>(source, k, panel);
    case DType::kFP8E4M3:
      return PackFp8(source, k, panel);
    case DType::kQ8_0:
      return Q8_0Layout::Pack(source, k, panel);
    case DType::kQ4_0:
      return Q4_0Layout::Pack(source, k, panel);
    case DType::kQ4_1:
      return Q4_1Layout::Pack(source, k, panel);
    default:
      return PackCodePanel(dtype, source, k, panel);
  }
}

void DecodePanelRow(DType dtype, const std::byte* panel, int64_t row, int64_t k, float* out) {
  switch (dtype) {
    case DType::kF32:
      return DecodePlainRow<uint32_t, StepOrder::kRows>(dtype, panel, row, k, out);
    case DType::kF16:
      return DecodePlainRow<uint16_t, StepOrder::kRows>(dtype, panel, row, k, out);
    case DType::kBF16:
      return DecodePlainRow<uint16_t, StepOrder::kPairs>(dtype, panel, row, k, out);
    case DType::kFP8E4M3:
      return DecodeFp8Row(panel, row, k, out);
    case DType::kQ8_0:
      return Q8_0Layout::DecodeRow(dtype, panel, row, k, out);
    case DType::kQ4_0:
      return Q4_0Layout::DecodeRow(dtype, panel, row, k, out);
    case DType::kQ4_1:
      return Q4_1Layout::DecodeRow(dtype, panel, row, k, out);
    default:
      return DecodeCodePanelRow(dtype, panel, row, k, out);
  }
}

}  // namespace cachalot
