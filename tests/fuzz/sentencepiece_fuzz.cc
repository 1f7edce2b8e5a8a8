// Any bytes as a tokenizer.model: either one line of error that names the file, or a tokenizer that encodes every text
// without giving an id it does not have, or a control token for what a user wrote.
#include <cstdint>

#include "formats/sentencepiece.h"
#include "fuzz/check_encoding.h"
#include "fuzz/one_line.h"
#include "tokenizer/tokenizer_impl.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = cachalot::ParseSentencePiece(std::as_bytes(std::span(data, size)), "tokenizer.model");
  if (!model.ok()) {
    cachalot::fuzz::CheckOneLine(model.status(), "tokenizer.model: ");
    return 0;
  }
  const auto tokenizer = cachalot::LoadTokenizerJson({.place = "tokenizer.model", .sentencepiece = &*model});
  if (!tokenizer.ok()) {
    cachalot::fuzz::CheckOneLine(tokenizer.status(), "tokenizer.model: ");
    return 0;
  }
  cachalot::fuzz::CheckEncoding(**tokenizer, "Hello  a ab\n\n123 e\u0301 <s>ab</s> \u4e2d\U0001f600\t x");
  cachalot::fuzz::CheckEncoding(**tokenizer, std::string_view("\0\xFF\xC3(\xED\xA0\x80 \xF0\x9F", 10));
  cachalot::fuzz::CheckEncoding(**tokenizer, text.substr(0, 2000));
  return 0;
}
