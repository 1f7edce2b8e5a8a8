// A tokenizer from a Hugging Face folder.
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/file.h"
#include "base/log.h"
#include "formats/json.h"
#include "formats/sentencepiece.h"
#include "formats/text.h"
#include "tokenizer/hf_components.h"
#include "tokenizer/known_tokens.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/tokenizer_json.h"

namespace cachalot {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokenizerBytes = int64_t{128} << 20;
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// An entry of added_tokens or added_tokens_decoder.
Result<AddedToken> ReadAddedToken(const json& object, int64_t id) {
  AddedToken token;
  token.id = static_cast<int32_t>(id);
  ASSIGN_OR_RETURN(token.text, JsonString(object, "content", ""));
  ASSIGN_OR_RETURN(token.special, JsonBool(object, "special", false));
  ASSIGN_OR_RETURN(token.normalized, JsonBool(object, "normalized", !token.special));
  ASSIGN_OR_RETURN(token.lstrip, JsonBool(object, "lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, JsonBool(object, "rstrip", false));
  ASSIGN_OR_RETURN(token.single_word, JsonBool(object, "single_word", false));
  return token;
}

// A token given as its text or as {"content": text}; "" if missing.
std::string TokenText(const json* value) {
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  const json* content = JsonMember(*value, "content");
  return content != nullptr && content->is_string() ? content->get<std::string>() : "";
}

class Loader {
 public:
  explicit Loader(const TokenizerFiles& files) : files_(files), impl_(std::make_unique<TokenizerImpl>()) {}

  Result<std::unique_ptr<TokenizerImpl>> Run() {
    if (files_.sentencepiece == nullptr) {
      ASSIGN_OR_RETURN(parsed_, ParseTokenizerJson(files_.tokenizer_json, files_.place));
    }
    const Status status =
        files_.sentencepiece == nullptr ? Build() : BuildSentencePiece(*files_.sentencepiece);
    if (!status.ok()) return status.WithContext(files_.place);
    return std::move(impl_);
  }

 private:
  const json& Part(const char* key) const {
    static const json null;
    const json* part = JsonMember(parsed_.rest, key);
    return part == nullptr ? null : *part;
  }

  Status Build() {
    if (!parsed_.rest.is_object()) return InvalidArgument("not a JSON object");
    const json& model = Part("model");
    ASSIGN_OR_RETURN(const std::string type, JsonString(model, "type", parsed_.merges.empty() ? "" : "BPE"));
    const bool unigram = type == "Unigram";
    if ((!unigram && type != "BPE") || parsed_.has_vocab_list != unigram) {
      return Unsupported("model type '{}': supported are BPE and Unigram", Printable(type));
    }
    impl_->description = "tokenizer.json/" + type;
    RETURN_IF_ERROR(ReadNormalizer(Part("normalizer"), &impl_->normalizer));
    TokenStyle style{.byte_level = false};
    RETURN_IF_ERROR(ReadPreTokenizer(Part("pre_tokenizer"), &impl_->pre_tokenizer, &style.byte_level));
    RETURN_IF_ERROR(ReadDecoder(Part("decoder"), &style));
    RETURN_IF_ERROR(ReadVocab());
    RETURN_IF_ERROR(ReadPostProcessor(Part("post_processor"), &impl_->prefix_ids, &impl_->suffix_ids));
    for (const std::vector<int32_t>* ids : {&impl_->prefix_ids, &impl_->suffix_ids}) {
      for (const int32_t id : *ids) {
        if (!impl_->vocab.IsDefined(id)) return InvalidArgument("post_processor: there is no token {}", id);
      }
    }
    RETURN_IF_ERROR(ReadConfigs());
    RETURN_IF_ERROR(unigram ? ReadUnigram(model, style) : ReadModel(model, style));
    impl_->Finish();
    return Status::Ok();
  }

  Status ReadVocab() {
    std::vector<AddedToken> added;
    const json& list = Part("added_tokens");
    if (!list.is_null() && !list.is_array()) return InvalidArgument("added_tokens is no list");
    impl_->vocab.Reserve(static_cast<int64_t>(parsed_.vocab.size() + list.size()),
                         static_cast<int64_t>(parsed_.arena.size()));
    for (const TokenizerJson::Token& token : parsed_.vocab) {
      RETURN_IF_ERROR(impl_->vocab.Set(token.id, parsed_.Text(token)).WithContext("model.vocab"));
    }
    for (const json& item : list) {
      const json* id = JsonMember(item, "id");
      if (id == nullptr || !id->is_number_integer())
        return InvalidArgument("added_tokens: an entry without id");
      RETURN_IF_ERROR(Add(item, id->get<int64_t>(), &added).WithContext("added_tokens"));
    }
    return SetAddedTokens(std::move(added));
  }

  // With what the configuration adds besides.
  Status SetAddedTokens(std::vector<AddedToken> added) {
    const json* decoder = files_.tokenizer_config == nullptr
                              ? nullptr
                              : JsonMember(*files_.tokenizer_config, "added_tokens_decoder");
    if (decoder != nullptr && decoder->is_object()) {
      for (const auto& [key, item] : decoder->items()) {
        int64_t id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc() || end != key.data() + key.size()) {
          return InvalidArgument("added_tokens_decoder: '{}' is no token id", Printable(key));
        }
        if (impl_->vocab.Find(TokenText(&item)) >= 0) continue;
        RETURN_IF_ERROR(Add(item, id, &added).WithContext("added_tokens_decoder"));
      }
    }
    MarkAdditionalSpecial(&added);
    return impl_->SetAddedTokens(std::move(added));
  }

  Status Add(const json& item, int64_t id, std::vector<AddedToken>* added) {
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(item, id));
    if (token.text.empty()) return Status::Ok();
    token.in_model = impl_->vocab.IsDefined(id) && impl_->vocab.Text(id) == token.text;
    if (!token.in_model) RETURN_IF_ERROR(impl_->vocab.Set(id, token.text));
    added->push_back(std::move(token));
    return Status::Ok();
  }

  void MarkAdditionalSpecial(std::vector<AddedToken>* added) const {
    const json* list = files_.tokenizer_config == nullptr
                           ? nullptr
                           : JsonMember(*files_.tokenizer_config, "additional_special_tokens");
    if (list == nullptr || !list->is_array()) return;
    std::unordered_set<std::string> special;
    for (const json& item : *list) special.insert(TokenText(&item));
    for (AddedToken& token : *added) token.special = token.special || special.contains(token.text);
  }

  // tokenizer.model, where there is no tokenizer.json: what LlamaTokenizer makes of it.
  Status BuildSentencePiece(const SentencePieceModel& model) {
    using Kind = SentencePieceModel::Kind;
    const bool unigram = model.algorithm == SentencePieceModel::Algorithm::kUnigram;
    if (!unigram && model.algorithm != SentencePieceModel::Algorithm::kBpe) {
      return Unsupported("model type {}: supported are Unigram (1) and BPE (2)",
                         static_cast<int>(model.algorithm));
    }
    if (!model.escape_whitespaces) return Unsupported("escape_whitespaces: false is not supported");
    impl_->description = unigram ? "tokenizer.model/Unigram" : "tokenizer.model/BPE";
    if (!model.charsmap.empty()) {
      ASSIGN_OR_RETURN(Charsmap charsmap, Charsmap::Parse(model.charsmap));
      impl_->normalizer.AddCharsmap(std::move(charsmap));
    }
    if (model.remove_extra_whitespaces) impl_->normalizer.AddSqueeze();
    if (model.add_dummy_prefix) impl_->normalizer.AddPrepend("▁");
    impl_->normalizer.AddReplace(" ", "▁");
    std::vector<AddedToken> added;
    std::vector<float> scores;
    std::vector<int32_t> fixed;
    for (const SentencePieceModel::Piece& piece : model.pieces) {
      const auto id = static_cast<int32_t>(scores.size());
      scores.push_back(piece.score);
      RETURN_IF_ERROR(impl_->vocab.Set(id, piece.text).WithContext("pieces"));
      if (piece.text.empty()) continue;
      // What a user defined is found in the normalized text, spaces and all; but markers that steer a model
      // are for those who may write them.
      const bool user_defined = piece.kind == Kind::kUserDefined, marker = LooksLikeMarkup(piece.text);
      if (user_defined && !marker) fixed.push_back(id);
      if (piece.kind == Kind::kUnknown || piece.kind == Kind::kControl || (user_defined && marker)) {
        added.push_back({.id = id, .text = piece.text, .special = !user_defined, .in_model = user_defined});
      }
    }
    RETURN_IF_ERROR(SetAddedTokens(std::move(added)));
    const auto defined = [this](int32_t id) {
      return impl_->vocab.IsDefined(id) ? id : -1;
    };  // a piece may be empty
    default_bos_ = defined(model.bos_id);
    default_eos_ = defined(model.eos_id);
    default_pad_ = defined(model.pad_id);
    if (default_bos_ >= 0) impl_->prefix_ids = {default_bos_};
    RETURN_IF_ERROR(ReadConfigs());
    scores.resize(static_cast<size_t>(impl_->vocab.size()));
    // A strange character of a user's must not end or begin a text.
    const bool frames_text = model.unk_id == impl_->bos_id || model.unk_id == impl_->eos_id;
    const int32_t unk_id = frames_text ? -1 : defined(model.unk_id);
    const TokenStyle style = {.byte_level = false,
                              .meta_space = true,
                              .byte_fallback = model.byte_fallback,
                              .strip_leading_space = model.add_dummy_prefix};
    if (unigram) {
      impl_->SetUnigram(std::move(scores), fixed, {.byte_fallback = model.byte_fallback, .unk_id = unk_id},
                        style);
    } else {
      impl_->SetModel(
          {.byte_level = false, .byte_fallback = model.byte_fallback, .unk_id = unk_id, .fuse_unk = true},
          style);
      impl_->SetScores(std::move(scores), fixed);
    }
    impl_->Finish();
    return Status::Ok();
  }

  Status ReadUnigram(const json& model, const TokenStyle& style) {
    if (style.byte_level) return Unsupported("a Unigram model behind ByteLevel is not supported");
    UnigramOptions options;
    ASSIGN_OR_RETURN(options.byte_fallback, JsonBool(model, "byte_fallback", false));
    const json* unk = JsonMember(model, "unk_id");
    if (unk != nullptr) {
      if (!unk->is_number_integer() || !impl_->vocab.IsDefined(unk->get<int64_t>())) {
        return InvalidArgument("model.unk_id is {}, which is no token", JsonPreview(*unk));
      }
      options.unk_id = static_cast<int32_t>(unk->get<int64_t>());
    }
    // A strange character of a user's must not end or begin a text.
    if (options.unk_id == impl_->bos_id || options.unk_id == impl_->eos_id) options.unk_id = -1;
    std::vector<float> scores = parsed_.scores;
    scores.resize(static_cast<size_t>(impl_->vocab.size()));
    impl_->SetUnigram(std::move(scores), {}, options, style);
    return Status::Ok();
  }

  Status ReadModel(const json& model, const TokenStyle& style) {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      ASSIGN_OR_RETURN(const std::string value, JsonString(model, key, ""));
      if (!value.empty()) return Unsupported("model.{} '{}' is not supported", key, Printable(value));
    }
    BpeOptions options;
    options.byte_level = style.byte_level;
    ASSIGN_OR_RETURN(options.ignore_merges, JsonBool(model, "ignore_merges", false));
    ASSIGN_OR_RETURN(options.byte_fallback, JsonBool(model, "byte_fallback", false));
    ASSIGN_OR_RETURN(options.fuse_unk, JsonBool(model, "fuse_unk", false));
    ASSIGN_OR_RETURN(const std::string unk, JsonString(model, "unk_token", ""));
    // A strange character of a user's must not end or begin a text.
    const int32_t unk_id = unk.empty() ? -1 : impl_->vocab.Find(unk);
    const std::vector<int32_t>& stops = impl_->stop_ids;
    const bool frames_text = unk_id == impl_->bos_id || unk_id == impl_->eos_id ||
                             std::find(stops.begin(), stops.end(), unk_id) != stops.end();
    if (!frames_text) options.unk_id = unk_id;
    impl_->SetModel(options, style);
    impl_->ReserveMerges(static_cast<int64_t>(parsed_.merges.size()));
    for (size_t i = 0; i < parsed_.merges.size(); ++i) {
      const TokenizerJson::Merge& merge = parsed_.merges[i];
      if (impl_->AddMerge(parsed_.Left(merge), parsed_.Right(merge))) continue;
      return InvalidArgument("model.merges[{}]: '{}' and '{}' are not tokens of the vocabulary that make one",
                             i, Printable(parsed_.Left(merge)), Printable(parsed_.Right(merge)));
    }
    return Status::Ok();
  }

  // The id in `key` of generation_config.json or config.json; -1 for none. All of a list in *all.
  int32_t ConfiguredId(const char* key, std::vector<int32_t>* all = nullptr) const {
    for (const json* config : {files_.generation_config, files_.config}) {
      const json* value = config == nullptr ? nullptr : JsonMember(*config, key);
      if (value == nullptr) continue;
      int32_t first = -1;
      const auto take = [&](const json& id) {
        if (!id.is_number_integer()) return;
        const int64_t number = id.get<int64_t>();
        if (!impl_->vocab.IsDefined(number)) {
          LOG_WARN("{}: {} is {}, which is no token; ignored", files_.place, key, number);
          return;
        }
        if (first < 0) first = static_cast<int32_t>(number);
        if (all != nullptr) all->push_back(static_cast<int32_t>(number));
      };
      if (value->is_array()) {
        for (const json& id : *value) take(id);
      } else {
        take(*value);
      }
      if (first >= 0) return first;
    }
    return -1;
  }

  // By the text the tokenizer's configuration has, else by number.
  int32_t NamedToken(const char* text_key, const char* id_key) const {
    const json* token =
        files_.tokenizer_config == nullptr ? nullptr : JsonMember(*files_.tokenizer_config, text_key);
    if (const int32_t id = impl_->vocab.Find(TokenText(token)); id >= 0) return id;
    return ConfiguredId(id_key);
  }

  Status ReadConfigs() {
    const auto named = [this](const char* text_key, const char* id_key, int32_t default_id) {
      const int32_t id = NamedToken(text_key, id_key);
      return id >= 0 ? id : default_id;
    };
    impl_->bos_id = named("bos_token", "bos_token_id", default_bos_);
    impl_->eos_id = named("eos_token", "eos_token_id", default_eos_);
    impl_->pad_id = named("pad_token", "pad_token_id", default_pad_);
    ConfiguredId("eos_token_id", &impl_->stop_ids);
    if (files_.tokenizer_config != nullptr) {
      // Outranks the post-processor: DeepSeek's files say it here only.
      RETURN_IF_ERROR(Override(*files_.tokenizer_config, "add_bos_token", impl_->bos_id, &impl_->prefix_ids));
      RETURN_IF_ERROR(Override(*files_.tokenizer_config, "add_eos_token", impl_->eos_id, &impl_->suffix_ids));
      RETURN_IF_ERROR(ReadTemplates(JsonMember(*files_.tokenizer_config, "chat_template")));
    }
    if (!files_.chat_template.empty()) impl_->chat_template = files_.chat_template;
    return Status::Ok();
  }

  static Status Override(const json& config, const char* key, int32_t id, std::vector<int32_t>* ids) {
    if (JsonMember(config, key) == nullptr) return Status::Ok();
    ASSIGN_OR_RETURN(const bool wanted, JsonBool(config, key, false));
    const bool present = std::find(ids->begin(), ids->end(), id) != ids->end();
    if (id < 0 || wanted == present) return Status::Ok();
    if (wanted) {
      ids->insert(ids->begin(), id);
    } else {
      std::erase(*ids, id);
    }
    return Status::Ok();
  }

  Status ReadTemplates(const json* value) {
    if (value == nullptr) return Status::Ok();
    if (value->is_string()) {
      impl_->chat_template = value->get<std::string>();
      return Status::Ok();
    }
    if (!value->is_array()) return InvalidArgument("chat_template is {}", JsonPreview(*value));
    for (const json& item : *value) {
      ASSIGN_OR_RETURN(const std::string name, JsonString(item, "name", ""));
      ASSIGN_OR_RETURN(std::string text, JsonString(item, "template", ""));
      if (name == "default") {
        impl_->chat_template = std::move(text);
      } else if (!name.empty()) {
        impl_->named_chat_templates[name] = std::move(text);
      }
    }
    return Status::Ok();
  }

  const TokenizerFiles& files_;
  TokenizerJson parsed_;
  std::unique_ptr<TokenizerImpl> impl_;
  int32_t default_bos_ = -1, default_eos_ = -1, default_pad_ = -1;  // what tokenizer.model says
};

// Null when the file is not there.
Result<json> ReadOptionalJson(const std::string& path) {
  if (!FileExists(path)) return json();
  return ParseJsonFile(path, {.max_bytes = kMaxConfigBytes});
}

}  // namespace

Result<std::unique_ptr<TokenizerImpl>> LoadTokenizerJson(const TokenizerFiles& files) {
  return Loader(files).Run();
}

Result<std::unique_ptr<TokenizerImpl>> LoadTokenizerFolder(const std::string& folder) {
  TokenizerFiles files;
  files.place = folder + "/tokenizer.json";
  const std::string model_path = folder + "/tokenizer.model";
  SentencePieceModel sentencepiece;
  std::string text;
  if (FileExists(files.place)) {
    ASSIGN_OR_RETURN(text, ReadTextFile(files.place, kMaxTokenizerBytes));
    files.tokenizer_json = text;
  } else if (FileExists(model_path)) {
    ASSIGN_OR_RETURN(text, ReadTextFile(model_path, kMaxTokenizerBytes));
    ASSIGN_OR_RETURN(sentencepiece, ParseSentencePiece(std::as_bytes(std::span(text)), model_path));
    files.place = model_path;
    files.sentencepiece = &sentencepiece;
  } else {
    const char* other = FileExists(folder + "/vocab.json") ? "vocab.json with merges.txt is not supported"
                        : FileExists(folder + "/tiktoken.model") ? "tiktoken.model is not supported"
                                                                 : "is this a model's folder?";
    return NotFound("{} is missing ({})", files.place, other);
  }
  ASSIGN_OR_RETURN(const json tokenizer_config, ReadOptionalJson(folder + "/tokenizer_config.json"));
  ASSIGN_OR_RETURN(const json generation_config, ReadOptionalJson(folder + "/generation_config.json"));
  ASSIGN_OR_RETURN(const json config, ReadOptionalJson(folder + "/config.json"));
  if (const std::string path = folder + "/chat_template.jinja"; FileExists(path)) {
    ASSIGN_OR_RETURN(files.chat_template, ReadTextFile(path, kMaxConfigBytes));
  }
  files.tokenizer_config = &tokenizer_config;
  files.generation_config = &generation_config;
  files.config = &config;
  return LoadTokenizerJson(files);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(std::unique_ptr<TokenizerImpl> impl, LoadTokenizerFolder(folder));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

}  // namespace cachalot
