#include "formats/gguf_writer.h"

#include <algorithm>
#include <cstring>

#include "formats/gguf_header.h"
#include "formats/text.h"

namespace cachalot {
namespace {

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutString(std::string* out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  *out += text;
}

void PutArray(std::string* out, const GgufArray& array) {
  Put(out, static_cast<uint32_t>(array.element_type));
  Put(out, static_cast<uint64_t>(array.size()));
  for (const auto& text : array.strings) PutString(out, text);
  out->append(reinterpret_cast<const char*>(array.packed.data()), array.packed.size());
}

void PutValue(std::string* out, const GgufValue& value) {
  switch (value.type) {
    case GgufType::kF32:
      return Put(out, static_cast<float>(std::get<double>(value.data)));
    case GgufType::kF64:
      return Put(out, std::get<double>(value.data));
    case GgufType::kString:
      return PutString(out, std::get<std::string>(value.data));
    case GgufType::kArray:
      return PutArray(out, std::get<GgufArray>(value.data));
    default:
      break;
  }
  // Integers and bool: the low bytes, as the machine is little endian.
  const auto* number = std::get_if<int64_t>(&value.data);
  const uint64_t bits = number != nullptr ? static_cast<uint64_t>(*number) : std::get<uint64_t>(value.data);
  out->append(reinterpret_cast<const char*>(&bits), static_cast<size_t>(GgufTypeBytes(value.type)));
}

template <typename T>
GgufValue PackedArray(GgufType type, std::span<const T> values) {
  GgufArray array;
  array.element_type = type;
  const auto bytes = std::as_bytes(values);
  array.packed.assign(bytes.begin(), bytes.end());
  return GgufValue::Array(std::move(array));
}

}  // namespace

void GgufWriter::Set(std::string key, GgufValue value) {
  if (key == "general.alignment") return;
  for (auto& entry : entries_) {
    if (entry.key != key) continue;
    entry.value = std::move(value);
    return;
  }
  entries_.push_back({std::move(key), std::move(value)});
}

void GgufWriter::SetStrings(std::string key, std::vector<std::string> values) {
  GgufArray array;
  array.element_type = GgufType::kString;
  array.strings = std::move(values);
  Set(std::move(key), GgufValue::Array(std::move(array)));
}

void GgufWriter::SetI32s(std::string key, std::span<const int32_t> values) {
  Set(std::move(key), PackedArray(GgufType::kI32, values));
}

void GgufWriter::SetF32s(std::string key, std::span<const float> values) {
  Set(std::move(key), PackedArray(GgufType::kF32, values));
}

Status GgufWriter::AddTensor(const std::string& name, DType dtype, std::span<const int64_t> dims) {
  const auto& info = GetDTypeInfo(dtype);
  const std::string field = "tensor '" + Printable(name) + "'";
  if (name.empty() || name.size() > GgufLimits::kMaxNameBytes) {
    return InvalidArgument("{}: a name must have 1..{} bytes", field, GgufLimits::kMaxNameBytes);
  }
  if (info.ggml_type < 0) return InvalidArgument("{}: GGUF has no type {}", field, info.name);
  if (dims.empty() || dims.size() > kMaxDims) {
    return InvalidArgument("{}: {} dimensions, must be 1..{}", field, dims.size(), kMaxDims);
  }
  GgufTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.num_dims = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), tensor.dims.begin());
  int64_t count = 1;
  for (const int64_t dim : dims) {
    if (dim < 1 || __builtin_mul_overflow(count, dim, &count)) {
      return InvalidArgument("{}: dimension {} is not positive or too large", field, dim);
    }
  }
  if (dims.back() % info.block_size != 0) {
    return InvalidArgument("{}: rows of {} values are no multiple of {}'s block of {}", field, dims.back(),
                           info.name, info.block_size);
  }
  int64_t end = 0;
  if (__builtin_mul_overflow(count / info.block_size, static_cast<int64_t>(info.block_bytes),
                             &tensor.bytes) ||
      __builtin_add_overflow(data_bytes_, tensor.bytes, &end) || end > INT64_MAX - kGgufDefaultAlignment) {
    return InvalidArgument("{}: {} values of {} overflow", field, count, info.name);
  }
  if (!names_.insert(name).second) return InvalidArgument("{}: added twice", field);
  tensor.offset = data_bytes_;
  data_bytes_ = (end + kGgufDefaultAlignment - 1) / kGgufDefaultAlignment * kGgufDefaultAlignment;
  tensors_.push_back(std::move(tensor));
  return Status::Ok();
}

std::string GgufWriter::Header() const {
  std::string out;
  Put<uint32_t>(&out, kGgufMagic);
  Put<uint32_t>(&out, 3);
  Put<uint64_t>(&out, tensors_.size());
  Put<uint64_t>(&out, entries_.size());
  for (const auto& [key, value] : entries_) {
    PutString(&out, key);
    Put(&out, static_cast<uint32_t>(value.type));
    PutValue(&out, value);
  }
  for (const auto& tensor : tensors_) {
    PutString(&out, tensor.name);
    Put(&out, static_cast<uint32_t>(tensor.num_dims));
    for (int i = tensor.num_dims - 1; i >= 0; --i)
      Put(&out, static_cast<uint64_t>(tensor.dims[static_cast<size_t>(i)]));
    Put(&out, static_cast<uint32_t>(GetDTypeInfo(tensor.dtype).ggml_type));
    Put(&out, static_cast<uint64_t>(tensor.offset));
  }
  return out;
}

Status GgufWriter::Write(const std::string& path, const Fill& fill) const {
  ASSIGN_OR_RETURN(auto out, FileWriter::Create(path));
  RETURN_IF_ERROR(out->Append(Header()));
  RETURN_IF_ERROR(out->PadTo(kGgufDefaultAlignment));
  for (const auto& tensor : tensors_) {
    ExactSink sink(out.get(), tensor.bytes);
    Status filled = fill(tensor, sink);
    if (filled.ok()) filled = sink.Finish();
    RETURN_IF_ERROR(filled.WithContext(path + ": tensor '" + Printable(tensor.name) + "'"));
    RETURN_IF_ERROR(out->PadTo(kGgufDefaultAlignment));
  }
  return out->Commit();
}

}  // namespace cachalot
