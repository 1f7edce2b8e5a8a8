// Any bytes as a GGUF file: either one line of error that names the file, or a file of which every invariant
// holds and every getter answers.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "formats/gguf.h"
#include "fuzz/one_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachalot;
  auto parsed = GgufFile::Parse(std::as_bytes(std::span(data, size)), "x.gguf");
  if (!parsed.ok()) {
    fuzz::CheckOneLine(parsed.status(), "x.gguf: ");
    return 0;
  }
  const GgufFile& gguf = **parsed;
  for (const auto& [key, value] : gguf.entries()) {
    CHECK(gguf.Find(key) == &value);
    fuzz::CheckOneLine(value.TypeName() + value.Text());
    for (const Status& status :
         {gguf.Int(key, -5, 1000).status(), gguf.Float(key).status(), gguf.Bool(key).status(),
          gguf.String(key).status(), gguf.Ints(key, 0, 100).status(), gguf.Floats(key).status(),
          gguf.IntPerLayer(key, 3, 1, 64).status(), gguf.Int(key + "?", 0, 1).status()}) {
      if (!status.ok()) fuzz::CheckOneLine(status, "x.gguf: ");
    }
    if (const auto* strings = gguf.Strings(key)) CHECK(strings->size() <= size / 8);
  }
  int64_t bytes = 0;
  for (const auto& tensor : gguf.tensors()) {
    CHECK(gguf.FindTensor(tensor.name) == &tensor);
    CHECK(tensor.num_dims >= 1 && tensor.num_dims <= kMaxDims);
    int64_t count = 1;
    for (int i = 0; i < tensor.num_dims; ++i) count *= tensor.dims[static_cast<size_t>(i)];
    CHECK(count > 0 && tensor.bytes == DTypeBytes(tensor.dtype, count));
    CHECK(tensor.offset > 0 && tensor.offset % gguf.alignment() == 0);
    CHECK(tensor.bytes <= static_cast<int64_t>(size) &&
          tensor.offset <= static_cast<int64_t>(size) - tensor.bytes);
    bytes += tensor.bytes;
  }
  CHECK(bytes == gguf.tensor_bytes() && bytes <= static_cast<int64_t>(size));  // more would mean an overlap
  return 0;
}
