#include "tasks/vocab_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/json.h"
#include "tokenizer/pre_tokenizer_table.h"

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxTokens = 4'000'000;

bool IsAdded(int32_t type) {
  return type == static_cast<int32_t>(TokenType::kControl) ||
         type == static_cast<int32_t>(TokenType::kUserDefined) ||
         type == static_cast<int32_t>(TokenType::kUnknown);
}

std::string TokenText(const VocabTable& vocab, int32_t id) {
  return id >= 0 && id < static_cast<int32_t>(vocab.tokens.size()) ? vocab.tokens[static_cast<size_t>(id)]
                                                                   : "";
}

Json AddedTokens(const VocabTable& vocab) {
  Json added = Json::array();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (!IsAdded(vocab.types[id])) continue;
    added.push_back({{"id", id},
                     {"content", vocab.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", vocab.types[id] != static_cast<int32_t>(TokenType::kUserDefined)}});
  }
  return added;
}

Json PostProcessor(const VocabTable& vocab) {
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
  const std::string bos = TokenText(vocab, vocab.bos_id);
  if (!vocab.add_bos || bos.empty()) return byte_level;
  const auto special = [&](int type_id) {
    return Json{{"SpecialToken", {{"id", bos}, {"type_id", type_id}}}};
  };
  const auto sequence = [](const char* id, int type_id) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type_id}}}};
  };
  const Json with_bos = {
      {"type", "TemplateProcessing"},
      {"single", {special(0), sequence("A", 0)}},
      {"pair", {special(0), sequence("A", 0), special(1), sequence("B", 1)}},
      {"special_tokens",
       {{bos, {{"id", bos}, {"ids", Json::array({vocab.bos_id})}, {"tokens", Json::array({bos})}}}}}};
  return {{"type", "Sequence"}, {"processors", Json::array({byte_level, with_bos})}};
}

Status ReadAdded(const nlohmann::json& root, const std::string& place, VocabTable* vocab,
                 std::vector<std::pair<int64_t, std::string>>* tokens,
                 std::vector<std::pair<int64_t, bool>>* special) {
  if (!root.contains("added_tokens")) return Status::Ok();
  for (const auto& added : root["added_tokens"]) {
    if (!added.is_object() || !added.contains("id") || !added["id"].is_number_integer() ||
        !added.contains("content") || !added["content"].is_string()) {
      return Corrupt("{}: added_tokens has an entry without id and content: {}", place, JsonPreview(added));
    }
    const auto id = added["id"].get<int64_t>();
    tokens->emplace_back(id, added["content"].get<std::string>());
    special->emplace_back(id, added.value("special", false));
  }
  return Status::Ok();
}

// "left right", or ["left", "right"] as newer files have it.
Status ReadMerges(const nlohmann::json& model, const std::string& place, VocabTable* vocab) {
  if (!model.contains("merges") || !model["merges"].is_array())
    return Corrupt("{}: model.merges is no list", place);
  for (const auto& merge : model["merges"]) {
    if (merge.is_string()) {
      vocab->merges.push_back(merge.get<std::string>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      vocab->merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    } else {
      return Corrupt("{}: model.merges has {}, no pair of tokens", place, JsonPreview(merge));
    }
  }
  return Status::Ok();
}

// A special token of tokenizer_config.json: its text, or an object with the text in "content".
std::string SpecialText(const nlohmann::json& config, const char* key) {
  if (!config.contains(key)) return "";
  const auto& value = config[key];
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return "";
}

}  // namespace

Result<std::string> TokenizerJson(const VocabTable& vocab) {
  ASSIGN_OR_RETURN(const GgufPreTokenizer* pre, FindGgufPreTokenizer(vocab.pre));
  Json splits = Json::array();
  for (const std::string_view split : pre->splits) {
    splits.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", split}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  splits.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  Json ids = Json::object();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    // Appended without the search for the key that ordered_json's [] makes: tokens are unique.
    if (vocab.types[id] == static_cast<int32_t>(TokenType::kNormal)) {
      ids.get_ref<Json::object_t&>().Container::emplace_back(vocab.tokens[id], id);
    }
  }
  const Json root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", AddedTokens(vocab)},
      {"normalizer", pre->nfc ? Json{{"type", "NFC"}} : Json(nullptr)},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(splits)}}},
      {"post_processor", PostProcessor(vocab)},
      {"decoder",
       {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", pre->ignore_merges},
        {"vocab", std::move(ids)},
        {"merges", vocab.merges}}}};
  return root.dump(1, ' ') + "\n";
}

std::string TokenizerConfigJson(const VocabTable& vocab) {
  const auto text_or_null = [&](int32_t id) {
    const std::string text = TokenText(vocab, id);
    return text.empty() ? Json(nullptr) : Json(text);
  };
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"add_bos_token", vocab.add_bos},
                 {"add_eos_token", false},
                 {"bos_token", text_or_null(vocab.bos_id)},
                 {"eos_token", text_or_null(vocab.eos_id)},
                 {"pad_token", text_or_null(vocab.pad_id)},
                 {"unk_token", text_or_null(vocab.unk_id)},
                 {"clean_up_tokenization_spaces", false}};
  if (!vocab.chat_template.empty()) config["chat_template"] = vocab.chat_template;
  return config.dump(2) + "\n";
}

Result<VocabTable> ReadGgufVocab(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string model, file.String("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Unsupported(
        "{}: tokenizer.ggml.model is '{}': only gpt2 (byte-level BPE) can become a tokenizer.json",
        file.path(), model);
  }
  VocabTable vocab;
  ASSIGN_OR_RETURN(vocab.pre, file.StringOr("tokenizer.ggml.pre", "default"));
  const auto* tokens = file.Strings("tokenizer.ggml.tokens");
  const auto* merges = file.Strings("tokenizer.ggml.merges");
  if (tokens == nullptr || merges == nullptr) {
    return Corrupt("{}: tokenizer.ggml.tokens or .merges is missing", file.path());
  }
  vocab.tokens = *tokens;
  vocab.merges = *merges;
  ASSIGN_OR_RETURN(const auto types, file.Ints("tokenizer.ggml.token_type", 0, 100));
  if (types.size() != tokens->size()) {
    return Corrupt("{}: tokenizer.ggml.token_type has {} values for {} tokens", file.path(), types.size(),
                   tokens->size());
  }
  vocab.types.assign(types.begin(), types.end());
  const auto id = [&](const char* key, int32_t* value) -> Status {
    ASSIGN_OR_RETURN(const int64_t read, file.IntOr(key, -1, INT64_MIN, INT64_MAX));
    *value = read >= 0 && read < static_cast<int64_t>(tokens->size()) ? static_cast<int32_t>(read) : -1;
    return Status::Ok();
  };
  RETURN_IF_ERROR(id("tokenizer.ggml.bos_token_id", &vocab.bos_id));
  RETURN_IF_ERROR(id("tokenizer.ggml.eos_token_id", &vocab.eos_id));
  RETURN_IF_ERROR(id("tokenizer.ggml.eot_token_id", &vocab.eot_id));
  RETURN_IF_ERROR(id("tokenizer.ggml.padding_token_id", &vocab.pad_id));
  RETURN_IF_ERROR(id("tokenizer.ggml.unknown_token_id", &vocab.unk_id));
  ASSIGN_OR_RETURN(const GgufPreTokenizer* pre, FindGgufPreTokenizer(vocab.pre));
  ASSIGN_OR_RETURN(vocab.add_bos, file.BoolOr("tokenizer.ggml.add_bos_token", pre->add_bos));
  ASSIGN_OR_RETURN(vocab.chat_template, file.StringOr("tokenizer.chat_template", ""));
  return vocab;
}

Result<VocabTable> ReadFolderVocab(const std::string& folder, const std::string& pre) {
  const std::string place = folder + "/tokenizer.json";
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonFile(place));
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object() ||
      root["model"].value("type", "BPE") != "BPE" || !root["model"].contains("vocab") ||
      !root["model"]["vocab"].is_object()) {
    return Unsupported("{}: no BPE model with a vocabulary", place);
  }
  VocabTable vocab;
  vocab.pre = pre;
  std::vector<std::pair<int64_t, std::string>> tokens;
  std::vector<std::pair<int64_t, bool>> special;
  for (const auto& [text, id] : root["model"]["vocab"].items()) {
    if (!id.is_number_integer())
      return Corrupt("{}: model.vocab: the id of a token is {}", place, JsonPreview(id));
    tokens.emplace_back(id.get<int64_t>(), text);
  }
  RETURN_IF_ERROR(ReadAdded(root, place, &vocab, &tokens, &special));
  RETURN_IF_ERROR(ReadMerges(root["model"], place, &vocab));
  for (const auto& [id, text] : tokens) {
    if (id < 0 || id >= kMaxTokens)
      return Corrupt("{}: token id {} is not in 0..{}", place, id, kMaxTokens - 1);
    const auto at = static_cast<size_t>(id);
    if (at >= vocab.tokens.size()) vocab.tokens.resize(at + 1), vocab.types.resize(at + 1);
    vocab.tokens[at] = text;
    vocab.types[at] = static_cast<int32_t>(TokenType::kNormal);
  }
  for (const auto& [id, is_special] : special) {
    vocab.types[static_cast<size_t>(id)] =
        static_cast<int32_t>(is_special ? TokenType::kControl : TokenType::kUserDefined);
  }
  PadVocab(static_cast<int32_t>(vocab.tokens.size()), &vocab);
  const std::string config_path = folder + "/tokenizer_config.json";
  if (!FileExists(config_path)) return vocab;
  ASSIGN_OR_RETURN(const nlohmann::json config, ParseJsonFile(config_path));
  if (!config.is_object()) return Corrupt("{}: no object", config_path);
  const auto find = [&](const char* key) -> int32_t {
    const std::string text = SpecialText(config, key);
    const auto found = std::find(vocab.tokens.begin(), vocab.tokens.end(), text);
    return text.empty() || found == vocab.tokens.end() ? -1
                                                       : static_cast<int32_t>(found - vocab.tokens.begin());
  };
  vocab.bos_id = find("bos_token");
  vocab.eos_id = find("eos_token");
  vocab.pad_id = find("pad_token");
  vocab.unk_id = find("unk_token");
  const auto add_bos = config.find("add_bos_token");
  vocab.add_bos = add_bos != config.end() && add_bos->is_boolean() && add_bos->get<bool>();
  const auto chat = config.find("chat_template");
  if (chat != config.end() && chat->is_string()) vocab.chat_template = chat->get<std::string>();
  return vocab;
}

}  // namespace cachalot
