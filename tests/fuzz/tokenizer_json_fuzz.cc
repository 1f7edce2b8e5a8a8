// Any bytes as a tokenizer.json: either one line of error that names the file, or a tokenizer that encodes
// every text without giving an id it does not have, or a control token for what a user wrote.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "fuzz/check_encoding.h"
#include "fuzz/one_line.h"
#include "tokenizer/tokenizer_impl.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // The same bytes as a configuration, where they are JSON.
  const nlohmann::json config =
      nlohmann::json::parse(text.substr(0, 10000), nullptr, /*allow_exceptions=*/false);
  const auto tokenizer = cachalot::LoadTokenizerJson({.place = "tokenizer.json",
                                                      .tokenizer_json = text,
                                                      .tokenizer_config = &config,
                                                      .generation_config = &config});
  if (!tokenizer.ok()) {
    cachalot::fuzz::CheckOneLine(tokenizer.status(), "tokenizer.json: ");
    return 0;
  }
  cachalot::fuzz::CheckEncoding(**tokenizer, "Hello  a ab\n\n123 e\u0301 <s>ab</s> \u4e2d\U0001f600\t x");
  cachalot::fuzz::CheckEncoding(**tokenizer, std::string_view("\0\xFF\xC3(\xED\xA0\x80 \xF0\x9F", 10));
  cachalot::fuzz::CheckEncoding(**tokenizer, text.substr(0, 2000));
  cachalot::fuzz::CheckEncoding(**tokenizer, text.substr(size / 2, 2000));
  return 0;
}
