#include "formats/gguf.h"

#include <cmath>

#include "formats/gguf_header.h"
#include "formats/text.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxSplits = 4096;

// name-00002-of-00003.gguf: what stands before "-00002", 2 and 3.
struct SplitName {
  std::string prefix;
  int64_t number = 0;  // from 1
  int64_t count = 0;
};

bool ParseSplitName(const std::string& path, SplitName* out) {
  constexpr std::string_view kPattern = "-#####-of-#####.gguf";
  if (path.size() < kPattern.size()) return false;
  const std::string_view tail = std::string_view(path).substr(path.size() - kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (kPattern[i] == '#' ? !digit : tail[i] != kPattern[i]) return false;
  }
  out->prefix = path.substr(0, path.size() - kPattern.size());
  for (int i = 0; i < 5; ++i) {
    out->number = out->number * 10 + (tail[static_cast<size_t>(1 + i)] - '0');
    out->count = out->count * 10 + (tail[static_cast<size_t>(10 + i)] - '0');
  }
  return true;
}

std::string SplitPath(const SplitName& name, int64_t idx) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name.prefix, idx + 1, name.count);
}

// False when the value is no integer that int64_t holds.
bool ToInt(const GgufValue& value, int64_t* out) {
  if (!IsGgufInteger(value.type)) return false;
  if (const auto* number = std::get_if<int64_t>(&value.data)) {
    *out = *number;
    return true;
  }
  const uint64_t number = std::get<uint64_t>(value.data);
  *out = static_cast<int64_t>(number);
  return number <= static_cast<uint64_t>(INT64_MAX);
}

bool ToFloat(const GgufValue& value, double* out) {
  if (const auto* number = std::get_if<double>(&value.data)) {
    *out = *number;
    return true;
  }
  int64_t integer = 0;
  if (!ToInt(value, &integer)) return false;
  *out = static_cast<double>(integer);
  return true;
}

}  // namespace

Status GgufFile::TakeHeader(GgufHeader header) {
  version_ = header.version;
  alignment_ = header.alignment;
  entries_ = std::move(header.entries);
  tensors_ = std::move(header.tensors);
  for (size_t i = 0; i < entries_.size(); ++i) entry_index_.emplace(entries_[i].key, i);
  return IndexTensors();
}

Status GgufFile::IndexTensors() {
  tensor_index_.clear();
  tensor_index_.reserve(tensors_.size());
  tensor_bytes_ = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensor_index_.emplace(tensors_[i].name, i).second) {
      return Corrupt("{}: tensor '{}' is given twice", path_, Printable(tensors_[i].name));
    }
    tensor_bytes_ += tensors_[i].bytes;  // no overflow: the tensors lie side by side in files
  }
  return Status::Ok();
}

Result<std::shared_ptr<GgufFile>> GgufFile::OpenOne(const std::string& path) {
  ASSIGN_OR_RETURN(auto file, File::Open(path));
  ASSIGN_OR_RETURN(GgufHeader header, ParseGgufHeader(ByteReader(*file), path));
  std::shared_ptr<GgufFile> gguf(new GgufFile);
  gguf->path_ = path;
  gguf->total_bytes_ = file->size();
  gguf->files_.push_back(std::move(file));
  RETURN_IF_ERROR(gguf->TakeHeader(std::move(header)));
  return gguf;
}

Result<std::shared_ptr<const GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes,
                                                        const std::string& place) {
  ASSIGN_OR_RETURN(GgufHeader header, ParseGgufHeader(ByteReader(bytes), place));
  std::shared_ptr<GgufFile> gguf(new GgufFile);
  gguf->path_ = place;
  gguf->total_bytes_ = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(gguf->TakeHeader(std::move(header)));
  return std::shared_ptr<const GgufFile>(std::move(gguf));
}

Result<std::shared_ptr<const GgufFile>> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<GgufFile> opened, OpenOne(path));
  ASSIGN_OR_RETURN(const int64_t count, opened->IntOr("split.count", 1, 0, kMaxSplits));
  if (count <= 1) return std::shared_ptr<const GgufFile>(std::move(opened));

  SplitName name;
  if (!ParseSplitName(path, &name) || name.count != count || name.number < 1 || name.number > count) {
    return InvalidArgument(
        "{}: split.count = {}, so the file must be named …-NNNNN-of-{:05}.gguf for its siblings to "
        "be found",
        path, count, count);
  }
  std::shared_ptr<GgufFile> whole;
  int64_t tensors_declared = -1;
  for (int64_t idx = 0; idx < count; ++idx) {
    std::shared_ptr<GgufFile> part = idx == name.number - 1 ? opened : nullptr;
    if (part == nullptr) {
      ASSIGN_OR_RETURN(part, OpenOne(SplitPath(name, idx)));
    }
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t no, part->Int("split.no", idx, idx));
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t same_count, part->Int("split.count", count, count));
    if (idx == 0) {
      whole = part;
      ASSIGN_OR_RETURN(tensors_declared, whole->IntOr("split.tensors.count", -1, 0, INT64_MAX));
      continue;
    }
    for (auto& tensor : part->tensors_) tensor.file_idx = static_cast<int>(idx);
    whole->tensors_.insert(whole->tensors_.end(), std::make_move_iterator(part->tensors_.begin()),
                           std::make_move_iterator(part->tensors_.end()));
    if (static_cast<int64_t>(whole->tensors_.size()) > GgufLimits::kMaxTensors) {
      return Corrupt("{}: more than {} tensors in the files of this split", part->path_,
                     GgufLimits::kMaxTensors);
    }
    whole->files_.push_back(std::move(part->files_[0]));
    whole->total_bytes_ += part->total_bytes_;
  }
  const auto num_tensors = static_cast<int64_t>(whole->tensors_.size());
  if (tensors_declared >= 0 && tensors_declared != num_tensors) {
    return Corrupt("{}: split.tensors.count = {}, but the {} files hold {} tensors", whole->path_,
                   tensors_declared, count, num_tensors);
  }
  RETURN_IF_ERROR(whole->IndexTensors());
  return std::shared_ptr<const GgufFile>(std::move(whole));
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = entry_index_.find(key);
  return it == entry_index_.end() ? nullptr : &entries_[it->second].value;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

Status GgufFile::Missing(std::string_view key, std::string_view wanted) const {
  return NotFound("{}: key '{}' is missing, it must be {}", path_, Printable(key, 200), wanted);
}

Status GgufFile::Wrong(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  return InvalidArgument("{}: {} = {} ({}): must be {}", path_, Printable(key, 200), value.Text(),
                         value.TypeName(), wanted);
}

Result<int64_t> GgufFile::Int(std::string_view key, int64_t min, int64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(key, IntRange(min, max));
  int64_t number = 0;
  if (!ToInt(*value, &number) || number < min || number > max) return Wrong(key, *value, IntRange(min, max));
  return number;
}

Result<int64_t> GgufFile::IntOr(std::string_view key, int64_t default_value, int64_t min, int64_t max) const {
  return Has(key) ? Int(key, min, max) : default_value;
}

Result<double> GgufFile::Float(std::string_view key, double min, double max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(key, FloatRange(min, max));
  double number = 0;
  if (!ToFloat(*value, &number) || !(number >= min && number <= max))
    return Wrong(key, *value, FloatRange(min, max));
  return number;
}

Result<double> GgufFile::FloatOr(std::string_view key, double default_value, double min, double max) const {
  return Has(key) ? Float(key, min, max) : default_value;
}

Result<bool> GgufFile::Bool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(key, "a bool");
  if (value->type != GgufType::kBool) return Wrong(key, *value, "a bool");
  return std::get<uint64_t>(value->data) != 0;
}

Result<bool> GgufFile::BoolOr(std::string_view key, bool default_value) const {
  return Has(key) ? Bool(key) : default_value;
}

Result<std::string> GgufFile::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(key, "a string");
  if (value->type != GgufType::kString) return Wrong(key, *value, "a string");
  return std::get<std::string>(value->data);
}

Result<std::string> GgufFile::StringOr(std::string_view key, std::string_view default_value) const {
  return Has(key) ? String(key) : std::string(default_value);
}

const std::vector<std::string>* GgufFile::Strings(std::string_view key) const {
  const GgufValue* value = Find(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(&value->data);
  return array != nullptr && array->element_type == GgufType::kString ? &array->strings : nullptr;
}

Result<std::vector<int64_t>> GgufFile::Ints(std::string_view key, int64_t min, int64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(key, "an array, each " + IntRange(min, max));
  const auto* array = std::get_if<GgufArray>(&value->data);
  if (array == nullptr || !IsGgufInteger(array->element_type))
    return Wrong(key, *value, "an array of integers");
  std::vector<int64_t> out(static_cast<size_t>(array->size()));
  for (int64_t i = 0; i < array->size(); ++i) {
    const std::optional<int64_t> number = array->Int(i);
    if (!number || *number < min || *number > max) {
      return InvalidArgument("{}: {}[{}] = {}: must be {}", path_, Printable(key, 200), i, array->Text(i),
                             IntRange(min, max));
    }
    out[static_cast<size_t>(i)] = *number;
  }
  return out;
}

Result<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(key, "an array of numbers");
  const auto* array = std::get_if<GgufArray>(&value->data);
  if (array == nullptr || array->element_type == GgufType::kString ||
      array->element_type == GgufType::kBool) {
    return Wrong(key, *value, "an array of numbers");
  }
  std::vector<float> out(static_cast<size_t>(array->size()));
  for (int64_t i = 0; i < array->size(); ++i) {
    const auto number = static_cast<float>(array->Float(i));
    if (!std::isfinite(number)) {
      return InvalidArgument("{}: {}[{}] = {}: must be a finite number", path_, Printable(key, 200), i,
                             array->Text(i));
    }
    out[static_cast<size_t>(i)] = number;
  }
  return out;
}

Result<std::vector<int64_t>> GgufFile::IntPerLayer(std::string_view key, int64_t num_layers, int64_t min,
                                                   int64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->type != GgufType::kArray) {
    ASSIGN_OR_RETURN(const int64_t same, Int(key, min, max));
    return std::vector<int64_t>(static_cast<size_t>(num_layers), same);
  }
  ASSIGN_OR_RETURN(std::vector<int64_t> out, Ints(key, min, max));
  if (static_cast<int64_t>(out.size()) < num_layers) {
    return InvalidArgument("{}: {} has {} values, one for each of {} layers is needed", path_,
                           Printable(key, 200), out.size(), num_layers);
  }
  out.resize(static_cast<size_t>(num_layers));
  return out;
}

}  // namespace cachalot
