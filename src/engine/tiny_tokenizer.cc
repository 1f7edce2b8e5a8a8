#include "engine/tiny_tokenizer.h"

#include <filesystem>

#include "base/file.h"

namespace cachalot {
namespace {

// In the byte alphabet of GPT-2: "Ġ" is a space, "Ċ" a line end, "Ã" + "¤" the two bytes of "ä", "ð" "Ł" "Ĳ"
// and "³" the four of a whale.
constexpr const char* kTokens[] = {
    "a",    "b",   "c",   "d",  "e",   "f",  "g",  "h",  "i",  "j",   "k", "l", "m",    "n",  "o",  "p", "q",
    "r",    "s",   "t",   "u",  "v",   "w",  "x",  "y",  "z",  "Ġ",   "Ċ", "Ã", "¤",    "ð",  "Ł",  "Ĳ", "³",
    "Ġthe", "ing", "abc", "bc", "END", "EN", "ĊĊ", "ab", "ba", "ccc", ".", ",", "Ġend", "DE", "NDE"};

}  // namespace

Result<std::unique_ptr<Tokenizer>> TinyTokenizer(const std::string& folder) {
  std::string vocab;
  int32_t id = 0;
  for (const char* token : kTokens)
    vocab += fmt::format("{}\"{}\": {}", id == 0 ? "" : ", ", token, id), ++id;
  const std::string json = fmt::format(
      R"({{"version": "1.0", "added_tokens": [{{"id": {0}, "content": "<|end|>", "single_word": false, "lstrip": false,
           "rstrip": false, "normalized": false, "special": true}}], "normalizer": null,
           "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
           "post_processor": null, "decoder": {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
           "use_regex": true}}, "model": {{"type": "BPE", "dropout": null, "unk_token": null,
           "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
           "vocab": {{{1}}}, "merges": []}}}})",
      kTinyEndToken, vocab);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  RETURN_IF_ERROR(WriteFileAtomically(folder + "/tokenizer.json", json));
  return Tokenizer::FromFolder(folder);
}

}  // namespace cachalot
