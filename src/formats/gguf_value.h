// One metadata value of a GGUF file, as read or as it will be written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"

namespace cachalot {

// The numbers are those of the file format.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
inline constexpr uint32_t kNumGgufTypes = 13;

const char* GgufTypeName(GgufType type);  // "u8", …, "string", "array"
// Bytes of a scalar in the file; 0 for string and array.
int GgufTypeBytes(GgufType type);
bool IsGgufInteger(GgufType type);

struct GgufArray {
  GgufType element_type = GgufType::kU8;  // never kArray
  std::vector<std::string> strings;       // element_type kString
  std::vector<std::byte> packed;          // any other: the elements as in the file, little endian

  int64_t size() const;
  std::optional<int64_t> Int(int64_t i) const;  // of integers or bools; nothing for a u64 above INT64_MAX
  double Float(int64_t i) const;                // of any numbers
  std::string Text(int64_t i, size_t max_chars = 60) const;
};

struct GgufValue {
  GgufType type = GgufType::kU8;
  // kU8 … kU64, kBool: uint64_t. kI8 … kI64: int64_t. kF32, kF64: double.
  std::variant<uint64_t, int64_t, double, std::string, GgufArray> data;

  static GgufValue Uint(GgufType type, uint64_t value) { return {type, value}; }
  static GgufValue Int(GgufType type, int64_t value) { return {type, value}; }
  static GgufValue Float(GgufType type, double value) { return {type, value}; }
  static GgufValue String(std::string value) { return {GgufType::kString, std::move(value)}; }
  static GgufValue Array(GgufArray value) { return {GgufType::kArray, std::move(value)}; }

  std::string TypeName() const;  // "u32", "string", "string[49152]"
  // The value for people, on one line of about max_chars: "[1, 2, 3, …]".
  std::string Text(size_t max_chars = 60) const;
};

struct GgufEntry {
  std::string key;
  GgufValue value;
};

}  // namespace cachalot
