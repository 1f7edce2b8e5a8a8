// What several tests of this module need: data from tests/data/tokenizer, tokenizers from JSON in memory, and
// GGUF files with the same vocabulary.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cachalot {

// The contents of an .xz file (by the program xz).
std::string ReadXz(const std::string& path);
nlohmann::json TestData(const std::string& name);  // tests/data/tokenizer/NAME.json.xz
// "" when the file is not there: real vocabularies and models lie beside the repository on some machines
// only.
std::string SharedPath(const std::string& name);

// A folder of its own, removed with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string Write(const std::string& name, std::string_view content) const;  // returns the path
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using TokenizerResult = Result<std::unique_ptr<Tokenizer>>;

// tokenizer.json (and tokenizer_config.json unless null) in a folder.
TokenizerResult FromJson(const nlohmann::json& tokenizer, const nlohmann::json& config = nullptr);
// The vocabulary, merges and added tokens of a tokenizer.json as a GGUF file with the named pre-tokenizer.
TokenizerResult FromJsonAsGguf(const nlohmann::json& tokenizer, const std::string& pre);

// A byte-level tokenizer.json: all 256 bytes, ids 0-255 by byte, then the results of these merges ("a b"),
// then added tokens with the given members.
nlohmann::json ByteLevelJson(const std::vector<std::string>& merges,
                             const std::vector<nlohmann::json>& added = {});

// An entry of added_tokens, without its id.
nlohmann::json Special(const std::string& text);
nlohmann::json Ordinary(const std::string& text);

// FromJson, expected to work.
std::unique_ptr<Tokenizer> LoadJson(const nlohmann::json& tokenizer, const nlohmann::json& config = nullptr);

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text,
                         const EncodeOptions& options = {});
// The ids of ByteLevelJson for the bytes of a text.
std::vector<int32_t> BytesAsIds(std::string_view text);

}  // namespace cachalot
