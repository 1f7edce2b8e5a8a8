// Any bytes as a safetensors file: either one line of error that names the file, or tensors that cover the
// data exactly.
#include <cstdint>
#include <span>

#include "base/check.h"
#include "formats/safetensors.h"
#include "fuzz/one_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cachalot;
  auto parsed = SafetensorsFolder::Parse(std::as_bytes(std::span(data, size)), "x.safetensors");
  if (!parsed.ok()) {
    fuzz::CheckOneLine(parsed.status(), "x.safetensors: ");
    return 0;
  }
  const SafetensorsFolder& file = **parsed;
  int64_t next = -1;
  for (const auto& tensor : file.tensors()) {
    CHECK(file.Find(tensor.name) == &tensor);
    CHECK(tensor.dims.size() <= kMaxSafetensorsDims);
    int64_t count = 1;
    for (const int64_t dim : tensor.dims) count *= dim;
    CHECK(tensor.bytes == DTypeBytes(tensor.dtype, count));
    CHECK(tensor.offset >= 10 && (next < 0 || tensor.offset == next));
    next = tensor.offset + tensor.bytes;
  }
  CHECK(next < 0 || next == static_cast<int64_t>(size));
  return 0;
}
