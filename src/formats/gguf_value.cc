#include "formats/gguf_value.h"

#include <cstring>

#include "formats/text.h"

namespace cachalot {
namespace {

struct TypeInfo {
  const char* name;
  int bytes;
};
constexpr TypeInfo kTypes[kNumGgufTypes] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                            {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                                            {"u64", 8}, {"i64", 8}, {"f64", 8}};

template <typename T>
T Load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

const char* GgufTypeName(GgufType type) {
  return kTypes[static_cast<uint32_t>(type)].name;
}
int GgufTypeBytes(GgufType type) {
  return kTypes[static_cast<uint32_t>(type)].bytes;
}

bool IsGgufInteger(GgufType type) {
  switch (type) {
    case GgufType::kF32:
    case GgufType::kF64:
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
      return false;
    default:
      return true;
  }
}

int64_t GgufArray::size() const {
  if (element_type == GgufType::kString) return static_cast<int64_t>(strings.size());
  return static_cast<int64_t>(packed.size()) / GgufTypeBytes(element_type);
}

std::optional<int64_t> GgufArray::Int(int64_t i) const {
  const std::byte* data = packed.data();
  switch (element_type) {
    case GgufType::kBool:
    case GgufType::kU8:
      return Load<uint8_t>(data, i);
    case GgufType::kI8:
      return Load<int8_t>(data, i);
    case GgufType::kU16:
      return Load<uint16_t>(data, i);
    case GgufType::kI16:
      return Load<int16_t>(data, i);
    case GgufType::kU32:
      return Load<uint32_t>(data, i);
    case GgufType::kI32:
      return Load<int32_t>(data, i);
    case GgufType::kI64:
      return Load<int64_t>(data, i);
    case GgufType::kU64: {
      const auto number = Load<int64_t>(data, i);
      return number >= 0 ? std::optional(number) : std::nullopt;
    }
    default:
      break;
  }
  CHECK(false) << "Int() of an array of " << GgufTypeName(element_type);
  return std::nullopt;
}

double GgufArray::Float(int64_t i) const {
  if (element_type == GgufType::kF32) return Load<float>(packed.data(), i);
  if (element_type == GgufType::kF64) return Load<double>(packed.data(), i);
  if (element_type == GgufType::kU64) return static_cast<double>(Load<uint64_t>(packed.data(), i));
  return static_cast<double>(*Int(i));
}

std::string GgufArray::Text(int64_t i, size_t max_chars) const {
  switch (element_type) {
    case GgufType::kString:
      return '"' + Printable(strings[static_cast<size_t>(i)], max_chars) + '"';
    case GgufType::kBool:
      return *Int(i) != 0 ? "true" : "false";
    case GgufType::kF32:
      return fmt::format("{}", static_cast<float>(Float(i)));
    case GgufType::kF64:
      return fmt::format("{}", Float(i));
    case GgufType::kU64:
      return fmt::format("{}", Load<uint64_t>(packed.data(), i));
    default:
      return fmt::format("{}", *Int(i));
  }
}

std::string GgufValue::TypeName() const {
  if (type != GgufType::kArray) return GgufTypeName(type);
  const auto& array = std::get<GgufArray>(data);
  return fmt::format("{}[{}]", GgufTypeName(array.element_type), array.size());
}

std::string GgufValue::Text(size_t max_chars) const {
  switch (type) {
    case GgufType::kString:
      return Printable(std::get<std::string>(data), max_chars);
    case GgufType::kBool:
      return std::get<uint64_t>(data) != 0 ? "true" : "false";
    case GgufType::kF32:
      return fmt::format("{}", static_cast<float>(std::get<double>(data)));
    case GgufType::kF64:
      return fmt::format("{}", std::get<double>(data));
    case GgufType::kArray:
      break;
    default:
      if (const auto* number = std::get_if<int64_t>(&data)) return fmt::format("{}", *number);
      return fmt::format("{}", std::get<uint64_t>(data));
  }
  const auto& array = std::get<GgufArray>(data);
  std::string text = "[";
  for (int64_t i = 0; i < array.size(); ++i) {
    if (i > 0) text += ", ";
    if (text.size() >= max_chars) return text + "…]";
    text += array.Text(i, max_chars);
  }
  return text + "]";
}

}  // namespace cachalot
