#include "tokenizer/tokenizer_testing.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>

#include "formats/gguf.h"
#include "formats/gguf_writer.h"
#include "tokenizer/byte_alphabet.h"

namespace cachalot {

using nlohmann::json;

std::string ReadXz(const std::string& path) {
  std::string content;
  FILE* pipe = popen(fmt::format("xz -dc '{}'", path).c_str(), "r");
  if (pipe == nullptr) return content;
  char buffer[65536];
  size_t n;
  while ((n = fread(buffer, 1, sizeof(buffer), pipe)) > 0) content.append(buffer, n);
  pclose(pipe);
  return content;
}

json TestData(const std::string& name) {
  const std::string path = fmt::format("{}/tests/data/tokenizer/{}.json.xz", CACHALOT_SOURCE_DIR, name);
  json value = json::parse(ReadXz(path), nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(value.is_discarded()) << path << " (is xz installed?)";
  return value;
}

std::string SharedPath(const std::string& name) {
  const std::string path = std::string(CACHALOT_SOURCE_DIR) + "/../shared/" + name;
  return std::filesystem::exists(path) ? path : "";
}

TempFolder::TempFolder() {
  static std::atomic<int> count{0};
  path_ = fmt::format("{}cachalot_tokenizer_{}_{}", testing::TempDir(), getpid(), count++);
  std::filesystem::create_directories(path_);
}

TempFolder::~TempFolder() {
  std::filesystem::remove_all(path_);
}

std::string TempFolder::Write(const std::string& name, std::string_view content) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TokenizerResult FromJson(const json& tokenizer, const json& config) {
  const TempFolder folder;
  folder.Write("tokenizer.json", tokenizer.dump());
  if (!config.is_null()) folder.Write("tokenizer_config.json", config.dump());
  return Tokenizer::FromFolder(folder.path());
}

TokenizerResult FromJsonAsGguf(const json& tokenizer, const std::string& pre) {
  const json& model = tokenizer["model"];
  size_t size = 0;
  for (const auto& [text, id] : model["vocab"].items()) size = std::max(size, id.get<size_t>() + 1);
  for (const json& token : tokenizer["added_tokens"]) size = std::max(size, token["id"].get<size_t>() + 1);
  std::vector<std::string> tokens(size), merges;
  std::vector<int32_t> types(size, 1);
  for (const auto& [text, id] : model["vocab"].items()) tokens[id.get<size_t>()] = text;
  for (const json& token : tokenizer["added_tokens"]) {
    tokens[token["id"].get<size_t>()] = token["content"];
    types[token["id"].get<size_t>()] = token["special"].get<bool>() ? 3 : 4;
  }
  for (const json& merge : model["merges"]) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetString("tokenizer.ggml.pre", pre);
  writer.SetStrings("tokenizer.ggml.tokens", tokens);
  writer.SetI32s("tokenizer.ggml.token_type", types);
  writer.SetStrings("tokenizer.ggml.merges", merges);
  const TempFolder folder;
  const std::string path = folder.path() + "/vocab.gguf";
  RETURN_IF_ERROR(writer.Write(path, [](const GgufTensor&, ByteSink&) { return Status::Ok(); }));
  ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::Open(path));
  return Tokenizer::FromGguf(*file);
}

json ByteLevelJson(const std::vector<std::string>& merges, const std::vector<json>& added) {
  json vocab = json::object();
  for (int b = 0; b < 256; ++b) vocab[std::string(ByteToAlphabet(static_cast<uint8_t>(b)))] = b;
  int next_id = 256;
  for (std::string text : merges) {
    text.erase(text.find(' ', 1), 1);
    if (!vocab.contains(text)) vocab[text] = next_id++;
  }
  json tokens = json::array();
  for (json token : added) {
    token["id"] = next_id++;
    tokens.push_back(token);
  }
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"added_tokens", tokens},      {"normalizer", nullptr},
          {"pre_tokenizer", byte_level}, {"post_processor", nullptr},
          {"decoder", byte_level},       {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

json Special(const std::string& text) {
  return {{"content", text}, {"special", true}};
}
json Ordinary(const std::string& text) {
  return {{"content", text}, {"special", false}, {"normalized", false}};
}

std::unique_ptr<Tokenizer> LoadJson(const json& tokenizer, const json& config) {
  TokenizerResult result = FromJson(tokenizer, config);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return std::move(result).value();
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
  Result<std::vector<int32_t>> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

std::vector<int32_t> BytesAsIds(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

}  // namespace cachalot
