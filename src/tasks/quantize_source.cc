#include "tasks/quantize_source.h"


#include "base/file.h"
#include "formats/text.h"
#include "quant/format.h"

namespace cachalot {
namespace {

class GgufQuantizeSource final : public QuantizeSource {
 public:
  Status Open(const std::string& path) {
    ASSIGN_OR_RETURN(file_, GgufFile::Open(path));
    place_ = path;
    tensors_ = file_->tensors();
    for (const GgufEntry& entry : file_->entries()) {
      if (!entry.key.starts_with("split.")) entries_.push_back(entry);  // the output is one file
    }
    for (const GgufTensor& tensor : tensors_) stored_types_.push_back(tensor.dtype);
    ASSIGN_OR_RETURN(facts_, ReadQuantizeFacts(*file_));
    for (const auto& file : file_->files()) {
      ASSIGN_OR_RETURN(auto mapping, Mapping::Map(*file));
      mappings_.push_back(std::move(mapping));
    }
    return Status::Ok();
  }

  std::span<const std::byte> Raw(size_t index) const override {
    const GgufTensor& tensor = tensors_[index];
    return mappings_[static_cast<size_t>(tensor.file_idx)]->bytes().subspan(static_cast<size_t>(tensor.offset),
                                                                           static_cast<size_t>(tensor.bytes));
  }
  void DecodeRow(size_t index, int64_t row, float* values) const override {
    const GgufTensor& tensor = tensors_[index];
    FindQuantFormat(tensor.dtype)->decode(Raw(index).data() + row * RowBytes(tensor), values, Cols(tensor));
  }
  void ReleaseRows(size_t index, int64_t begin, int64_t count) const override {
    const GgufTensor& tensor = tensors_[index];
    mappings_[static_cast<size_t>(tensor.file_idx)]->Release(tensor.offset + begin * RowBytes(tensor),
                                                             count * RowBytes(tensor));
  }
 private:
  static int64_t Cols(const GgufTensor& tensor) { return tensor.dims[static_cast<size_t>(tensor.num_dims - 1)]; }
  static int64_t RowBytes(const GgufTensor& tensor) { return DTypeBytes(tensor.dtype, Cols(tensor)); }

  std::shared_ptr<const GgufFile> file_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;
};

}  // namespace

Result<std::unique_ptr<QuantizeSource>> OpenQuantizeSource(const std::string& path) {
  if (IsDirectory(path)) return OpenHfQuantizeSource(path);
  auto source = std::make_unique<GgufQuantizeSource>();
  RETURN_IF_ERROR(source->Open(path));
  return std::unique_ptr<QuantizeSource>(std::move(source));
}

}  // namespace cachalot
