#include "formats/gguf_header.h"

#include <algorithm>
#include <bit>
#include <new>
#include <numeric>

#include "formats/text.h"

namespace cachalot {
namespace {

// The least that an entry takes in the file: absurd counts are found before anything is allocated for them.
constexpr int64_t kMinKeyBytes = 8 + 1 + 4 + 1;             // length, one character, type, u8
constexpr int64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // length, one character, dims, one, type, offset

// Numbers that earlier ggml versions used and later ones gave up: known by name, without a layout to check.
const char* RetiredTensorType(uint32_t number) {
  switch (number) {
    case 4:
      return "Q4_2";
    case 5:
      return "Q4_3";
    case 31:
      return "Q4_0_4_4";
    case 32:
      return "Q4_0_4_8";
    case 33:
      return "Q4_0_8_8";
    case 36:
      return "IQ4_NL_4_4";
    case 37:
      return "IQ4_NL_4_8";
    case 38:
      return "IQ4_NL_8_8";
    default:
      return nullptr;
  }
}

class HeaderParser {
 public:
  HeaderParser(ByteReader reader, const std::string& place) : reader_(std::move(reader)), place_(place) {}

  Result<GgufHeader> Parse() {
    RETURN_IF_ERROR(ParsePreamble());
    for (int64_t i = 0; i < num_keys_; ++i) {
      RETURN_IF_ERROR(ParseEntry(i));
    }
    RETURN_IF_ERROR(CheckKeys());
    for (int64_t i = 0; i < num_tensors_; ++i) {
      RETURN_IF_ERROR(ParseTensor(i));
    }
    RETURN_IF_ERROR(PlaceTensors());
    return std::move(header_);
  }

 private:
  // The reader's own error (the file ends) with the field it happened in.
  Status ReaderOk(std::string_view field) const {
    if (reader_.ok()) return Status::Ok();
    return Status(reader_.status().code(),
                  fmt::format("{}: {}: {}", place_, field, reader_.status().message()));
  }

  Status ParsePreamble() {
    const auto magic = reader_.Read<uint32_t>();
    RETURN_IF_ERROR(ReaderOk("magic"));
    if (magic != kGgufMagic) return Corrupt("{}: magic is {:#010x}, not 'GGUF'", place_, magic);
    const auto version = reader_.Read<uint32_t>();
    RETURN_IF_ERROR(ReaderOk("version"));
    if ((version & 0xffff) == 0 && version != 0) {
      return Unsupported("{}: version {:#010x}: a big-endian GGUF file, only little-endian ones can be read",
                         place_, version);
    }
    if (version != 2 && version != 3) {
      return Unsupported("{}: GGUF version {}, only 2 and 3 can be read", place_, version);
    }
    header_.version = static_cast<int>(version);
    const auto num_tensors = reader_.Read<uint64_t>();
    RETURN_IF_ERROR(ReaderOk("tensor_count"));
    const auto num_keys = reader_.Read<uint64_t>();
    RETURN_IF_ERROR(ReaderOk("metadata_kv_count"));
    RETURN_IF_ERROR(CheckCount("metadata_kv_count", num_keys, GgufLimits::kMaxKeys, kMinKeyBytes));
    RETURN_IF_ERROR(CheckCount("tensor_count", num_tensors, GgufLimits::kMaxTensors, kMinTensorBytes));
    num_keys_ = static_cast<int64_t>(num_keys);
    num_tensors_ = static_cast<int64_t>(num_tensors);
    header_.entries.reserve(static_cast<size_t>(num_keys_));
    header_.tensors.reserve(static_cast<size_t>(num_tensors_));
    return Status::Ok();
  }

  // That `count` elements of at least min_bytes can still follow in the file and are not more than `limit`.
  Status CheckCount(std::string_view field, uint64_t count, int64_t limit, int64_t min_bytes) const {
    if (count > static_cast<uint64_t>(reader_.remaining() / min_bytes)) {
      return Corrupt("{}: {} = {}, but only {} bytes follow", place_, field, count, reader_.remaining());
    }
    if (count > static_cast<uint64_t>(limit))
      return Corrupt("{}: {} = {}, the limit is {}", place_, field, count, limit);
    return Status::Ok();
  }

  // Counts memory that is about to be allocated for metadata.
  Status Charge(std::string_view field, int64_t bytes) {
    metadata_bytes_ += bytes;
    if (metadata_bytes_ <= GgufLimits::kMaxMetadataBytes) return Status::Ok();
    return Corrupt("{}: {}: the metadata takes more than {} bytes", place_, field,
                   GgufLimits::kMaxMetadataBytes);
  }

  // The text of a string whose length was read and is within remaining().
  void ReadText(uint64_t length, std::string* out) {
    out->resize(length);
    reader_.ReadBytes(std::as_writable_bytes(std::span(*out)));
  }

  Status ReadName(const std::string& field, int64_t max_bytes, std::string* out) {
    const auto length = reader_.Read<uint64_t>();
    RETURN_IF_ERROR(ReaderOk(field));
    if (length == 0) return Corrupt("{}: {} is empty", place_, field);
    RETURN_IF_ERROR(CheckCount(field + " length", length, max_bytes, 1));
    ReadText(length, out);
    return ReaderOk(field);
  }

  Status ReadString(const std::string& field, std::string* out) {
    const auto length = reader_.Read<uint64_t>();
    RETURN_IF_ERROR(ReaderOk(field));
    RETURN_IF_ERROR(CheckCount(field + " length", length, GgufLimits::kMaxMetadataBytes, 1));
    RETURN_IF_ERROR(Charge(field, static_cast<int64_t>(length)));
    ReadText(length, out);
    return ReaderOk(field);
  }

  Status ReadType(const std::string& field, GgufType* out) {
    const auto number = reader_.Read<uint32_t>();
    RETURN_IF_ERROR(ReaderOk(field));
    if (number >= kNumGgufTypes) {
      return Corrupt("{}: {}: value type {}, must be below {}", place_, field, number, kNumGgufTypes);
    }
    *out = static_cast<GgufType>(number);
    return Status::Ok();
  }

  Status ParseEntry(int64_t index) {
    GgufEntry entry;
    RETURN_IF_ERROR(ReadName(fmt::format("key {}", index), GgufLimits::kMaxKeyBytes, &entry.key));
    const std::string field = "key '" + Printable(entry.key) + "'";
    RETURN_IF_ERROR(Charge(field, static_cast<int64_t>(entry.key.size() + sizeof(GgufEntry))));
    GgufValue& value = entry.value;
    RETURN_IF_ERROR(ReadType(field, &value.type));
    switch (value.type) {
      case GgufType::kU8:
        value.data = uint64_t{reader_.Read<uint8_t>()};
        break;
      case GgufType::kI8:
        value.data = int64_t{reader_.Read<int8_t>()};
        break;
      case GgufType::kU16:
        value.data = uint64_t{reader_.Read<uint16_t>()};
        break;
      case GgufType::kI16:
        value.data = int64_t{reader_.Read<int16_t>()};
        break;
      case GgufType::kU32:
        value.data = uint64_t{reader_.Read<uint32_t>()};
        break;
      case GgufType::kI32:
        value.data = int64_t{reader_.Read<int32_t>()};
        break;
      case GgufType::kU64:
        value.data = reader_.Read<uint64_t>();
        break;
      case GgufType::kI64:
        value.data = reader_.Read<int64_t>();
        break;
      case GgufType::kF32:
        value.data = double{reader_.Read<float>()};
        break;
      case GgufType::kF64:
        value.data = reader_.Read<double>();
        break;
      case GgufType::kBool: {
        const auto bit = reader_.Read<uint8_t>();
        if (bit > 1) return Corrupt("{}: {} = {}: a bool must be 0 or 1", place_, field, bit);
        value.data = uint64_t{bit};
        break;
      }
      case GgufType::kString: {
        std::string text;
        RETURN_IF_ERROR(ReadString(field, &text));
        value.data = std::move(text);
        break;
      }
      case GgufType::kArray: {
        GgufArray array;
        RETURN_IF_ERROR(ParseArray(field, &array));
        value.data = std::move(array);
        break;
      }
    }
    RETURN_IF_ERROR(ReaderOk(field));
    header_.entries.push_back(std::move(entry));
    return Status::Ok();
  }

  Status ParseArray(const std::string& field, GgufArray* array) {
    RETURN_IF_ERROR(ReadType(field, &array->element_type));
    if (array->element_type == GgufType::kArray)
      return Unsupported("{}: {}: an array of arrays", place_, field);
    const auto count = reader_.Read<uint64_t>();
    RETURN_IF_ERROR(ReaderOk(field));
    const bool strings = array->element_type == GgufType::kString;
    const int64_t in_file = strings ? 8 : GgufTypeBytes(array->element_type);
    const int64_t in_memory = strings ? static_cast<int64_t>(sizeof(std::string)) : in_file;
    RETURN_IF_ERROR(CheckCount(field + " count", count, GgufLimits::kMaxMetadataBytes / in_memory, in_file));
    RETURN_IF_ERROR(Charge(field, static_cast<int64_t>(count) * in_memory));
    if (strings) {
      array->strings.resize(count);
      for (auto& text : array->strings) {
        const auto length = reader_.Read<uint64_t>();
        if (length > static_cast<uint64_t>(reader_.remaining())) {
          RETURN_IF_ERROR(ReaderOk(field));
          return Corrupt("{}: {}[{}]: a string of {} bytes, but only {} follow", place_, field,
                         &text - array->strings.data(), length, reader_.remaining());
        }
        RETURN_IF_ERROR(Charge(field, static_cast<int64_t>(length)));
        ReadText(length, &text);
      }
      return ReaderOk(field);
    }
    array->packed.resize(count * static_cast<uint64_t>(in_file));
    reader_.ReadBytes(array->packed);
    RETURN_IF_ERROR(ReaderOk(field));
    if (array->element_type == GgufType::kBool) {
      for (size_t i = 0; i < array->packed.size(); ++i) {
        if (array->packed[i] > std::byte{1}) {
          return Corrupt("{}: {}[{}] = {}: a bool must be 0 or 1", place_, field, i,
                         static_cast<int>(array->packed[i]));
        }
      }
    }
    return Status::Ok();
  }

  Status CheckKeys() {
    std::vector<std::string_view> keys;
    keys.reserve(header_.entries.size());
    for (const auto& entry : header_.entries) keys.push_back(entry.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) return Corrupt("{}: key '{}' is given twice", place_, Printable(*twice));

    for (const auto& entry : header_.entries) {
      if (entry.key != "general.alignment") continue;
      const auto* alignment = std::get_if<uint64_t>(&entry.value.data);
      if (alignment == nullptr || !IsGgufInteger(entry.value.type) || !std::has_single_bit(*alignment) ||
          *alignment > GgufLimits::kMaxAlignment) {
        return Corrupt("{}: general.alignment = {} ({}): must be a power of two of at most {}", place_,
                       entry.value.Text(), entry.value.TypeName(), GgufLimits::kMaxAlignment);
      }
      header_.alignment = static_cast<int64_t>(*alignment);
    }
    return Status::Ok();
  }

  // Shape and type; the offset stays relative to the tensor data.
  Status ParseTensor(int64_t index) {
    GgufTensor tensor;
    RETURN_IF_ERROR(ReadName(fmt::format("tensor {} name", index), GgufLimits::kMaxNameBytes, &tensor.name));
    const std::string field = "tensor '" + Printable(tensor.name) + "'";
    const auto num_dims = reader_.Read<uint32_t>();
    RETURN_IF_ERROR(ReaderOk(field));
    if (num_dims < 1 || num_dims > kMaxDims) {
      return Corrupt("{}: {}: {} dimensions, must be 1..{}", place_, field, num_dims, kMaxDims);
    }
    tensor.num_dims = static_cast<int>(num_dims);
    int64_t count = 1;
    for (int i = tensor.num_dims - 1; i >= 0; --i) {
      const auto dim = reader_.Read<uint64_t>();
      RETURN_IF_ERROR(ReaderOk(field));
      if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX)) {
        return Corrupt("{}: {}: dimension {} is {}", place_, field, i, dim);
      }
      tensor.dims[static_cast<size_t>(i)] = static_cast<int64_t>(dim);
      if (__builtin_mul_overflow(count, static_cast<int64_t>(dim), &count)) {
        return Corrupt("{}: {}: the number of values overflows at dimension {} of {}", place_, field, i, dim);
      }
    }
    const auto type = reader_.Read<uint32_t>();
    const auto offset = reader_.Read<uint64_t>();
    RETURN_IF_ERROR(ReaderOk(field));
    if (const char* retired = RetiredTensorType(type)) {
      return Unsupported("{}: {}: type {} ({}) was withdrawn from GGUF", place_, field, retired, type);
    }
    auto dtype = DTypeFromGgml(type);
    if (!dtype.ok()) return dtype.status().WithContext(place_ + ": " + field);
    tensor.dtype = *dtype;
    const auto& info = GetDTypeInfo(tensor.dtype);
    const int64_t row = tensor.dims[static_cast<size_t>(tensor.num_dims - 1)];
    if (row % info.block_size != 0) {
      return Corrupt("{}: {}: rows of {} values are no multiple of {}'s block of {}", place_, field, row,
                     info.name, info.block_size);
    }
    if (__builtin_mul_overflow(count / info.block_size, static_cast<int64_t>(info.block_bytes),
                               &tensor.bytes)) {
      return Corrupt("{}: {}: {} values of {} overflow", place_, field, count, info.name);
    }
    if (offset % static_cast<uint64_t>(header_.alignment) != 0 || offset > static_cast<uint64_t>(INT64_MAX)) {
      return Corrupt("{}: {}: offset {} is no multiple of the alignment {}", place_, field, offset,
                     header_.alignment);
    }
    tensor.offset = static_cast<int64_t>(offset);
    header_.tensors.push_back(std::move(tensor));
    return Status::Ok();
  }

  // Makes offsets absolute; every tensor lies inside the file and none over another.
  Status PlaceTensors() {
    const int64_t file_bytes = reader_.position() + reader_.remaining();
    const int64_t data_start =
        (reader_.position() + header_.alignment - 1) / header_.alignment * header_.alignment;
    for (auto& tensor : header_.tensors) {
      const int64_t available = std::max<int64_t>(file_bytes - data_start, 0);
      if (tensor.bytes > available || tensor.offset > available - tensor.bytes) {
        return Corrupt(
            "{}: tensor '{}': {} bytes at offset {} of the tensor data, which has {} (file cut short?)",
            place_, Printable(tensor.name), tensor.bytes, tensor.offset, available);
      }
      tensor.offset += data_start;
    }
    std::vector<size_t> order(header_.tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return header_.tensors[a].offset < header_.tensors[b].offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      const auto& before = header_.tensors[order[i - 1]];
      const auto& after = header_.tensors[order[i]];
      if (before.offset + before.bytes > after.offset) {
        return Corrupt("{}: tensor '{}' (bytes {}..{}) overlaps tensor '{}' (from byte {})", place_,
                       Printable(before.name), before.offset, before.offset + before.bytes,
                       Printable(after.name), after.offset);
      }
    }
    return Status::Ok();
  }

  ByteReader reader_;
  const std::string& place_;
  GgufHeader header_;
  int64_t num_keys_ = 0;
  int64_t num_tensors_ = 0;
  int64_t metadata_bytes_ = 0;
};

}  // namespace

Result<GgufHeader> ParseGgufHeader(ByteReader reader, const std::string& place) {
  try {
    return HeaderParser(std::move(reader), place).Parse();
  } catch (const std::bad_alloc&) {
    return Exhausted("{}: not enough memory for its metadata", place);
  }
}

}  // namespace cachalot
