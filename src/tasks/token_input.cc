#include "tasks/token_input.h"

#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "formats/safetensors.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 28;
constexpr std::string_view kSafetensors = ".safetensors";

Result<std::vector<int32_t>> ReadList(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    while (at < end && (*at == ' ' || *at == ',' || *at == '\n')) ++at;
    if (at == end) break;
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || (next < end && *next != ',' && *next != ' ' && *next != '\n')) {
      return InvalidArgument(
          "'{}': token ids are whole numbers from 0 with commas between, or FILE.json, or "
          "FILE.safetensors:NAME",
          text.size() > 60 ? text.substr(0, 60) + "…" : text);
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

Result<std::vector<int32_t>> ReadJson(const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonFile(path));
  const nlohmann::json* list = &root;
  if (root.is_object() && root.contains("tokens")) list = &root["tokens"];
  if (!list->is_array())
    return Corrupt("{}: neither a list of token ids nor an object with \"tokens\"", path);
  std::vector<int32_t> ids;
  for (const auto& id : *list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return Corrupt("{}: {} is no token id (a whole number in 0..{})", path, JsonPreview(id), INT32_MAX);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Result<std::vector<int32_t>> ReadSafetensors(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(const auto file, SafetensorsFolder::OpenFile(path));
  const SafetensorsTensor* tensor = file->Find(name);
  if (tensor == nullptr) return NotFound("{}: there is no tensor '{}'", path, name);
  const int64_t size = tensor->dtype == DType::kI64 ? 8 : 4;
  if ((tensor->dtype != DType::kI64 && tensor->dtype != DType::kI32) || tensor->bytes / size > kMaxTokens) {
    return Unsupported("{}: tensor '{}' is {} with {} bytes; token ids are I32 or I64, at most {}", path,
                       name, DTypeName(tensor->dtype), tensor->bytes, kMaxTokens);
  }
  std::vector<std::byte> bytes(static_cast<size_t>(tensor->bytes));
  RETURN_IF_ERROR(file->files()[static_cast<size_t>(tensor->file_idx)]->ReadAt(tensor->offset, bytes));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tensor->bytes / size; ++i) {
    int64_t id = 0;
    int32_t narrow = 0;
    if (size == 8) {
      std::memcpy(&id, bytes.data() + i * 8, 8);
    } else {
      std::memcpy(&narrow, bytes.data() + i * 4, 4);
      id = narrow;
    }
    if (id < 0 || id > INT32_MAX) return Corrupt("{}: '{}'[{}] is {}, no token id", path, name, i, id);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace

std::string TokenFile(const std::string& text) {
  if (text.ends_with(".json") || text.ends_with(kSafetensors)) return text;
  const size_t at = text.rfind(std::string(kSafetensors) + ":");
  return at == std::string::npos ? "" : text.substr(0, at + kSafetensors.size());
}

Result<std::vector<int32_t>> ReadTokenIds(const std::string& text) {
  if (text.ends_with(".json")) return ReadJson(text);
  if (text.ends_with(kSafetensors)) return ReadSafetensors(text, "tokens");
  if (const size_t at = text.rfind(std::string(kSafetensors) + ":"); at != std::string::npos) {
    const size_t colon = at + kSafetensors.size();
    return ReadSafetensors(text.substr(0, colon), text.substr(colon + 1));
  }
  return ReadList(text);
}

}  // namespace cachalot
