#include "kernels/matmul/panel_codes.h"

#include <cstring>

#include "base/check.h"
#include "quant/block_codes.h"

namespace cachalot {
namespace {

constexpr int kRows = static_cast<int>(kPanelRows);

// Some bits of a byte of the panel.
struct Field {
  int64_t byte = 0;
  int shift = 0;
  int bits = 0;
};

// Where everything stands in a block of a panel; bytes from the block's beginning.
class Shape {
 public:
  explicit Shape(const CodeFormat& format)
      : dtype_(format.dtype),
        has_min_(format.has_min),
        block_values_(GetDTypeInfo(dtype_).block_size),
        num_subs_(block_values_ / format.sub_block),
        low_bits_(format.bits >= 4 ? 4 : 2),
        high_bits_(format.bits - low_bits_),
        block_bytes_(int64_t{GetDTypeInfo(dtype_).block_bytes} * kRows),
        part_bytes_(int64_t{32} * kRows * format.bits / 8) {}

  int block_values() const { return block_values_; }
  int64_t block_bytes() const { return block_bytes_; }
  bool has_min() const { return has_min_; }
  int num_subs() const { return block_values_ == 256 ? num_subs_ : 0; }

  int64_t D(int row) const { return row * 2; }
  int64_t Dmin(int row) const { return 2 * kRows + row * 2; }

  // 32 codes of a row, a word for each quad, to and from part p of the block.
  void PutCodes(const uint32_t* quads, int p, int row, std::byte* block) const {
    std::byte* at = block + Part(p) + row * 4;
    if (low_bits_ == 4) {
      for (int s = 0; s < 4; ++s) PutWord(at + s * kQuad, (quads[s] & kFour) | (quads[s + 4] & kFour) << 4);
    } else {
      PutPairs(quads, 0, at);
    }
    at += int64_t{32} * kRows * low_bits_ / 8;
    if (high_bits_ == 2) PutPairs(quads, low_bits_, at);
    if (high_bits_ == 1) {
      uint32_t word = 0;
      for (int s = 0; s < 8; ++s) word |= (quads[s] >> low_bits_ & kOne) << s;
      PutWord(at, word);
    }
  }
  void GetCodes(const std::byte* block, int p, int row, uint32_t* quads) const {
    const std::byte* at = block + Part(p) + row * 4;
    for (int s = 0; s < 8; ++s) {
      quads[s] = low_bits_ == 4 ? GetWord(at + s % 4 * kQuad) >> s / 4 * 4 & kFour
                                : GetWord(at + s / 4 * kQuad) >> s % 4 * 2 & kTwo;
    }
    at += int64_t{32} * kRows * low_bits_ / 8;
    for (int s = 0; s < 8; ++s) {
      if (high_bits_ == 2) quads[s] |= (GetWord(at + s / 4 * kQuad) >> s % 4 * 2 & kTwo) << low_bits_;
      if (high_bits_ == 1) quads[s] |= (GetWord(at) >> s & kOne) << low_bits_;
    }
  }

  // Scale (or minimum) j of a row, its low and its high bits.
  Field ScaleLow(int j, int row) const {
    const int64_t at = Scales() + row;
    switch (dtype_) {
      case DType::kQ6_K:
        return {at + j * kRows, 0, 8};
      case DType::kQ4_K:
      case DType::kQ5_K:
        return {at + j * kRows, 0, 4};
      default:  // Q2_K, Q3_K, IQ4_XS: two in a byte
        return {at + j / 2 * kRows, j % 2 * 4, 4};
    }
  }
  Field ScaleHigh(int j, int row) const {
    const int64_t at = Scales() + row;
    switch (dtype_) {
      case DType::kQ4_K:
      case DType::kQ5_K:
        return {at + (8 + j / 2) * kRows, j % 2 * 4, 2};
      case DType::kQ3_K:
        return {at + (8 + j / 4) * kRows, j % 4 * 2, 2};
      case DType::kIQ4_XS:
        return {at + (4 + j / 4) * kRows, j % 4 * 2, 2};
      default:
        return {at, 0, 0};
    }
  }
  Field MinLow(int j, int row) const {
    const int64_t at = Scales() + row;
    if (dtype_ == DType::kQ2_K) return {at + (8 + j / 2) * kRows, j % 2 * 4, 4};
    return {at + j * kRows, 4, 4};
  }
  Field MinHigh(int j, int row) const {
    if (dtype_ == DType::kQ2_K) return {Scales() + row, 0, 0};
    return {Scales() + row + (8 + j / 2) * kRows, j % 2 * 4 + 2, 2};
  }

 private:
  int64_t Scales() const { return (has_min_ ? 4 : 2) * kRows; }
  // Of 32 values; the last part ends where the block ends.
  int64_t Part(int p) const { return block_bytes_ - (block_values_ / 32 - p) * part_bytes_; }

  static constexpr int64_t kQuad = 4 * kRows;
  static constexpr uint32_t kOne = 0x01010101, kTwo = 0x03030303, kFour = 0x0f0f0f0f;
  static void PutWord(std::byte* at, uint32_t word) { std::memcpy(at, &word, sizeof(word)); }
  static uint32_t GetWord(const std::byte* at) {
    uint32_t word;
    std::memcpy(&word, at, sizeof(word));
    return word;
  }
  // Two bits of each code, from bit `from` on.
  static void PutPairs(const uint32_t* quads, int from, std::byte* at) {
    for (int v = 0; v < 2; ++v) {
      uint32_t word = 0;
      for (int s = 0; s < 4; ++s) word |= (quads[4 * v + s] >> from & kTwo) << 2 * s;
      PutWord(at + v * kQuad, word);
    }
  }

  DType dtype_;
  bool has_min_;
  int block_values_;
  int num_subs_;
  int low_bits_;
  int high_bits_;
  int64_t block_bytes_;
  int64_t part_bytes_;
};

void Put(std::byte* block, const Field& field, int value) {
  if (field.bits > 0) block[field.byte] |= static_cast<std::byte>(value << field.shift);
}
int Get(const std::byte* block, const Field& field) {
  return static_cast<int>(block[field.byte]) >> field.shift & ((1 << field.bits) - 1);
}

const CodeFormat& FormatOf(DType dtype) {
  const CodeFormat* format = FindCodeFormat(dtype);
  CHECK(format != nullptr) << DTypeName(dtype) << " has no codes";
  return *format;
}

}  // namespace

void PackCodePanel(DType dtype, const PanelSource& source, int64_t k, std::byte* panel) {
  const CodeFormat& format = FormatOf(dtype);
  const Shape shape(format);
  const int64_t source_bytes = GetDTypeInfo(dtype).block_bytes;
  const int64_t num_blocks = k / shape.block_values();
  std::memset(panel, 0, num_blocks * shape.block_bytes());
  for (int64_t b = 0; b < num_blocks; ++b, panel += shape.block_bytes()) {
    for (int r = 0; r < kRows; ++r) {
      if (source.rows[r] == nullptr) continue;
      BlockCodes codes;
      format.unpack(source.rows[r] + b * source_bytes, &codes);
      std::memcpy(panel + shape.D(r), &codes.d, 2);
      if (shape.has_min()) std::memcpy(panel + shape.Dmin(r), &codes.dmin, 2);
      for (int j = 0; j < shape.num_subs(); ++j) {
        const Field low = shape.ScaleLow(j, r);
        Put(panel, low, codes.scale[j] & ((1 << low.bits) - 1));
        Put(panel, shape.ScaleHigh(j, r), codes.scale[j] >> 4);
        if (!shape.has_min()) continue;
        Put(panel, shape.MinLow(j, r), codes.min[j] & 15);
        Put(panel, shape.MinHigh(j, r), codes.min[j] >> 4);
      }
      for (int p = 0; p < shape.block_values() / 32; ++p) {
        uint32_t quads[8];
        std::memcpy(quads, codes.q + 32 * p, sizeof(quads));
        shape.PutCodes(quads, p, r, panel);
      }
    }
  }
}

void DecodeCodePanelRow(DType dtype, const std::byte* panel, int64_t row, int64_t k, float* out) {
  const CodeFormat& format = FormatOf(dtype);
  const Shape shape(format);
  const int r = static_cast<int>(row);
  for (int64_t k0 = 0; k0 < k; k0 += shape.block_values(), panel += shape.block_bytes()) {
    BlockCodes codes;
    std::memcpy(&codes.d, panel + shape.D(r), 2);
    if (shape.has_min()) std::memcpy(&codes.dmin, panel + shape.Dmin(r), 2);
    for (int j = 0; j < shape.num_subs(); ++j) {
      codes.scale[j] =
          static_cast<uint8_t>(Get(panel, shape.ScaleLow(j, r)) | Get(panel, shape.ScaleHigh(j, r)) << 4);
      if (!shape.has_min()) continue;
      codes.min[j] =
          static_cast<uint8_t>(Get(panel, shape.MinLow(j, r)) | Get(panel, shape.MinHigh(j, r)) << 4);
    }
    for (int p = 0; p < shape.block_values() / 32; ++p) {
      uint32_t quads[8];
      shape.GetCodes(panel, p, r, quads);
      std::memcpy(codes.q + 32 * p, quads, sizeof(quads));
    }
    format.values(codes, out + k0);
  }
}

}  // namespace cachalot
