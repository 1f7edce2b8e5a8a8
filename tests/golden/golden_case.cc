#include "golden/golden_case.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/json.h"
#include "formats/safetensors.h"

namespace cachalot {
namespace {

Result<std::vector<std::byte>> ReadTensor(const std::string& path, const std::string& name, DType* dtype) {
  ASSIGN_OR_RETURN(const auto file, SafetensorsFolder::OpenFile(path));
  const SafetensorsTensor* tensor = file->Find(name);
  if (tensor == nullptr) return NotFound("{}: no tensor '{}'", path, name);
  *dtype = tensor->dtype;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor->bytes));
  RETURN_IF_ERROR(file->files()[tensor->file_idx]->ReadAt(tensor->offset, bytes));
  return bytes;
}

template <typename To, typename From>
std::vector<To> Convert(const std::vector<std::byte>& bytes) {
  std::vector<From> values(bytes.size() / sizeof(From));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return std::vector<To>(values.begin(), values.end());
}

}  // namespace

Result<std::vector<float>> ReadFloats(const std::string& path, const std::string& tensor) {
  DType dtype;
  ASSIGN_OR_RETURN(const auto bytes, ReadTensor(path, tensor, &dtype));
  if (dtype != DType::kF32) return Unsupported("{}: {} is {}", path, tensor, DTypeName(dtype));
  return Convert<float, float>(bytes);
}

Result<std::vector<int32_t>> ReadInts(const std::string& path, const std::string& tensor) {
  DType dtype;
  ASSIGN_OR_RETURN(const auto bytes, ReadTensor(path, tensor, &dtype));
  if (dtype == DType::kI32) return Convert<int32_t, int32_t>(bytes);
  if (dtype == DType::kI64) return Convert<int32_t, int64_t>(bytes);
  return Unsupported("{}: {} is {}", path, tensor, DTypeName(dtype));
}

Result<GoldenCase> LoadGoldenCase(const std::string& name) {
  GoldenCase out;
  out.folder = std::string(CACHALOT_GOLDEN_DIR) + "/" + name;
  if (!IsDirectory(out.folder)) out.folder = std::string(CACHALOT_SOURCE_DIR) + "/../shared/golden/" + name;
  if (!IsDirectory(out.folder)) return NotFound("golden case '{}' is neither unpacked nor in ../shared", name);
  const std::string path = out.folder + "/golden.safetensors";
  ASSIGN_OR_RETURN(out.tokens, ReadInts(path, "tokens"));
  ASSIGN_OR_RETURN(out.greedy, ReadInts(path, "greedy"));
  ASSIGN_OR_RETURN(out.logits, ReadFloats(path, "logits"));
  out.vocab = static_cast<int32_t>(out.logits.size() / out.tokens.size());
  ASSIGN_OR_RETURN(const auto json, ParseJsonFile(out.folder + "/case.json"));
  out.prompt_tokens = json.at("prompt_tokens").get<int32_t>();
  return out;
}

}  // namespace cachalot
