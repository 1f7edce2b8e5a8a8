// GgufWriter: a GGUF v3 file from metadata, a list of tensors and a callback that streams each tensor's
// bytes. The file appears whole or not at all; memory use does not grow with the tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "formats/file_writer.h"
#include "formats/gguf.h"
#include "formats/gguf_value.h"

namespace cachalot {

class GgufWriter {
 public:
  // Puts exactly tensor.bytes bytes into `sink`, in as many pieces as it likes.
  using Fill = std::function<Status(const GgufTensor& tensor, ByteSink& sink)>;

  // A key set again is replaced where it stands. general.alignment is left out, so that the metadata of
  // another file can be copied: this writer's alignment is the format's default, 32.
  void Set(std::string key, GgufValue value);
  void SetU8(std::string key, uint8_t value) { Set(std::move(key), GgufValue::Uint(GgufType::kU8, value)); }
  void SetI8(std::string key, int8_t value) { Set(std::move(key), GgufValue::Int(GgufType::kI8, value)); }
  void SetU16(std::string key, uint16_t value) {
    Set(std::move(key), GgufValue::Uint(GgufType::kU16, value));
  }
  void SetI16(std::string key, int16_t value) { Set(std::move(key), GgufValue::Int(GgufType::kI16, value)); }
  void SetU32(std::string key, uint32_t value) {
    Set(std::move(key), GgufValue::Uint(GgufType::kU32, value));
  }
  void SetI32(std::string key, int32_t value) { Set(std::move(key), GgufValue::Int(GgufType::kI32, value)); }
  void SetU64(std::string key, uint64_t value) {
    Set(std::move(key), GgufValue::Uint(GgufType::kU64, value));
  }
  void SetI64(std::string key, int64_t value) { Set(std::move(key), GgufValue::Int(GgufType::kI64, value)); }
  void SetF32(std::string key, float value) { Set(std::move(key), GgufValue::Float(GgufType::kF32, value)); }
  void SetF64(std::string key, double value) { Set(std::move(key), GgufValue::Float(GgufType::kF64, value)); }
  void SetBool(std::string key, bool value) { Set(std::move(key), GgufValue::Uint(GgufType::kBool, value)); }
  void SetString(std::string key, std::string value) {
    Set(std::move(key), GgufValue::String(std::move(value)));
  }
  void SetStrings(std::string key, std::vector<std::string> values);
  void SetI32s(std::string key, std::span<const int32_t> values);
  void SetF32s(std::string key, std::span<const float> values);
  const std::vector<GgufEntry>& entries() const { return entries_; }

  // dims row-major, slowest first. kInvalidArgument for what a reader would refuse: the name taken or too
  // long, a bad shape, a row that is no multiple of the block, a type that GGUF has no number for.
  Status AddTensor(const std::string& name, DType dtype, std::span<const int64_t> dims);
  // In the order of AddTensor, with offsets counted from the start of the tensor data.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  // Calls `fill` once per tensor, in order.
  Status Write(const std::string& path, const Fill& fill) const;
  // All that stands before the tensor data: without tensors, a whole vocabulary file for GgufFile::Parse.
  std::string Header() const;

 private:
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::unordered_set<std::string> names_;
  int64_t data_bytes_ = 0;  // with the padding behind each tensor
};

}  // namespace cachalot
