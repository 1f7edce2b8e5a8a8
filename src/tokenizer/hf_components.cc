#include "tokenizer/hf_components.h"

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "formats/text.h"

namespace cachalot {
namespace {

using nlohmann::json;

constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kMetaSpace = "▁";

Status NotSupported(std::string_view what, std::string_view kind) {
  return Unsupported("{} '{}' is not supported", what, Printable(kind));
}

// {"String": "…"} or {"Regex": "…"}
struct Pattern {
  bool regex = false;
  std::string text;
};

Result<Pattern> ReadPattern(const json& object) {
  const json* pattern = JsonMember(object, "pattern");
  if (pattern == nullptr || !pattern->is_object()) return InvalidArgument("pattern is missing or no object");
  Pattern result;
  for (const char* kind : {"String", "Regex"}) {
    if (!pattern->contains(kind)) continue;
    ASSIGN_OR_RETURN(result.text, JsonString(*pattern, kind, ""));
    result.regex = std::string_view(kind) == "Regex";
    return result;
  }
  return Unsupported("pattern {} is not supported", JsonPreview(*pattern));
}

Result<SplitBehavior> ReadBehavior(const json& object, std::string_view default_value) {
  ASSIGN_OR_RETURN(const std::string name, JsonString(object, "behavior", default_value));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return NotSupported("behavior", name);
}

// The members of {"type": "Sequence", list: […]}.
Result<const json::array_t*> ReadSequence(const json& object, const char* list) {
  const json* members = JsonMember(object, list);
  if (members == nullptr || !members->is_array())
    return InvalidArgument("Sequence: {} is missing or no list", list);
  return members->get_ptr<const json::array_t*>();
}

Result<std::string> FromBase64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return Corrupt("precompiled_charsmap is no base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  return bytes;
}

}  // namespace

const json* JsonMember(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<bool> JsonBool(const json& object, const char* key, bool default_value) {
  const json* value = JsonMember(object, key);
  if (value == nullptr) return default_value;
  if (!value->is_boolean()) return InvalidArgument("{} is {}, not true or false", key, JsonPreview(*value));
  return value->get<bool>();
}

Result<std::string> JsonString(const json& object, const char* key, std::string_view default_value) {
  const json* value = JsonMember(object, key);
  if (value == nullptr) return std::string(default_value);
  if (!value->is_string()) return InvalidArgument("{} is {}, not a string", key, JsonPreview(*value));
  return value->get<std::string>();
}

Result<std::string> JsonType(const json& object, std::string_view what) {
  if (!object.is_object()) return InvalidArgument("{} is {}, not an object", what, JsonPreview(object));
  ASSIGN_OR_RETURN(std::string type, JsonString(object, "type", ""));
  if (type.empty()) return NotFound("{} has no type", what);
  return type;
}

Status ReadNormalizer(const json& object, Normalizer* normalizer) {
  if (object.is_null()) return Status::Ok();
  ASSIGN_OR_RETURN(const std::string type, JsonType(object, "normalizer"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json::array_t* members, ReadSequence(object, "normalizers"));
    for (const json& member : *members) RETURN_IF_ERROR(ReadNormalizer(member, normalizer));
    return Status::Ok();
  }
  if (type == "NFC") {
    normalizer->AddForm(NormalForm::kNfc);
  } else if (type == "NFD") {
    normalizer->AddForm(NormalForm::kNfd);
  } else if (type == "NFKC") {
    normalizer->AddForm(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    normalizer->AddForm(NormalForm::kNfkd);
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, JsonString(object, "prepend", ""));
    normalizer->AddPrepend(std::move(prefix));
  } else if (type == "Precompiled") {
    ASSIGN_OR_RETURN(const std::string base64, JsonString(object, "precompiled_charsmap", ""));
    if (base64.empty()) return Status::Ok();
    ASSIGN_OR_RETURN(const std::string bytes, FromBase64(base64));
    ASSIGN_OR_RETURN(Charsmap charsmap, Charsmap::Parse(bytes));
    normalizer->AddGraphemeCharsmap(std::move(charsmap));
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, JsonBool(object, "strip_left", true));
    ASSIGN_OR_RETURN(const bool right, JsonBool(object, "strip_right", true));
    normalizer->AddStrip(left, right);
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(object));
    if (pattern.regex && pattern.text == " {2,}") {
      ASSIGN_OR_RETURN(std::string content, JsonString(object, "content", ""));
      normalizer->AddSpaceRuns(std::move(content));
      return Status::Ok();
    }
    if (pattern.regex) return NotSupported("normalizer Replace with the regular expression", pattern.text);
    ASSIGN_OR_RETURN(std::string content, JsonString(object, "content", ""));
    normalizer->AddReplace(std::move(pattern.text), std::move(content));
  } else {
    return NotSupported("normalizer", type);
  }
  return Status::Ok();
}

namespace {

Status ReadSplit(const json& object, PreTokenizer* pre_tokenizer) {
  ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(object));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(object, ""));
  ASSIGN_OR_RETURN(const bool invert, JsonBool(object, "invert", false));
  return pattern.regex ? pre_tokenizer->AddRegex(pattern.text, behavior, invert)
                       : pre_tokenizer->AddLiteral(pattern.text, behavior, invert);
}

Status ReadByteLevel(const json& object, PreTokenizer* pre_tokenizer) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, JsonBool(object, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, JsonBool(object, "use_regex", true));
  if (add_prefix_space) RETURN_IF_ERROR(pre_tokenizer->SetPrefix(" ", /*whole_text_only=*/false));
  return use_regex ? pre_tokenizer->AddRegex(kGpt2Split, SplitBehavior::kIsolated) : Status::Ok();
}

// "always", "first" or "never". Older files say add_prefix_space instead.
Result<std::string> PrependScheme(const json& object) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, JsonBool(object, "add_prefix_space", true));
  ASSIGN_OR_RETURN(std::string scheme,
                   JsonString(object, "prepend_scheme", add_prefix_space ? "always" : "never"));
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return NotSupported("prepend_scheme", scheme);
  return scheme;
}

Status ReadMetaspace(const json& object, PreTokenizer* pre_tokenizer) {
  ASSIGN_OR_RETURN(const std::string replacement, JsonString(object, "replacement", kMetaSpace));
  ASSIGN_OR_RETURN(const std::string scheme, PrependScheme(object));
  ASSIGN_OR_RETURN(const bool split, JsonBool(object, "split", true));
  if (replacement != kMetaSpace) return NotSupported("Metaspace replacement", replacement);
  RETURN_IF_ERROR(pre_tokenizer->SetSpace(replacement));
  if (scheme != "never") RETURN_IF_ERROR(pre_tokenizer->SetPrefix(replacement, scheme == "first"));
  return split ? pre_tokenizer->AddLiteral(replacement, SplitBehavior::kMergedWithNext) : Status::Ok();
}

}  // namespace

Status ReadPreTokenizer(const json& object, PreTokenizer* pre_tokenizer, bool* byte_level) {
  if (object.is_null()) return Status::Ok();
  const Result<std::string> found = JsonType(object, "pre_tokenizer");
  if (!found.ok()) return found.status();
  const std::string_view type = *found;
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json::array_t* members, ReadSequence(object, "pretokenizers"));
    for (const json& member : *members) RETURN_IF_ERROR(ReadPreTokenizer(member, pre_tokenizer, byte_level));
    return Status::Ok();
  }
  if (*byte_level)
    return Unsupported("pre_tokenizer '{}' behind ByteLevel is not supported", Printable(type));
  if (type == "Split") return ReadSplit(object, pre_tokenizer);
  if (type == "Metaspace") return ReadMetaspace(object, pre_tokenizer);
  if (type == "ByteLevel") {
    *byte_level = true;
    return ReadByteLevel(object, pre_tokenizer);
  }
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, JsonBool(object, "individual_digits", false));
    return pre_tokenizer->AddRegex(individual ? "\\p{N}" : "\\p{N}+", SplitBehavior::kIsolated);
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(object, "Isolated"));
    return pre_tokenizer->AddRegex(R"([!-/:-@\[-`{-~\p{P}])", behavior);
  }
  return NotSupported("pre_tokenizer", type);
}

Status ReadDecoder(const json& object, TokenStyle* style) {
  if (object.is_null()) return Status::Ok();
  ASSIGN_OR_RETURN(const std::string type, JsonType(object, "decoder"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json::array_t* members, ReadSequence(object, "decoders"));
    for (const json& member : *members) RETURN_IF_ERROR(ReadDecoder(member, style));
  } else if (type == "ByteFallback") {
    style->byte_fallback = true;
  } else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(const std::string scheme, PrependScheme(object));
    style->meta_space = true;
    style->strip_leading_space = scheme != "never";
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(object));
    ASSIGN_OR_RETURN(const std::string content, JsonString(object, "content", ""));
    if (pattern.regex || pattern.text != kMetaSpace || content != " ") {
      return Unsupported("decoder Replace of '{}' by '{}' is not supported", Printable(pattern.text),
                         Printable(content));
    }
    style->meta_space = true;
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(const std::string content, JsonString(object, "content", ""));
    const json* start = JsonMember(object, "start");
    const json* stop = JsonMember(object, "stop");
    if (content != " " || start == nullptr || *start != 1 || (stop != nullptr && *stop != 0)) {
      return Unsupported("decoder Strip of anything but one space at the start is not supported");
    }
    style->strip_leading_space = true;
  } else if (type != "ByteLevel" && type != "Fuse") {
    return NotSupported("decoder", type);
  }
  return Status::Ok();
}

namespace {

// "special_tokens": {name: {"ids": […]}} of a TemplateProcessing.
Status AppendTemplateToken(const json& object, const json& item, std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const std::string name, JsonString(item, "id", ""));
  const json* tokens = JsonMember(object, "special_tokens");
  const json* token = tokens == nullptr ? nullptr : JsonMember(*tokens, name.c_str());
  const json* token_ids = token == nullptr ? nullptr : JsonMember(*token, "ids");
  if (token_ids == nullptr || !token_ids->is_array()) {
    return InvalidArgument("post_processor: no ids for special token '{}'", Printable(name));
  }
  for (const json& id : *token_ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= Vocab::kMaxSize) {
      return InvalidArgument("post_processor: {} is no token id", JsonPreview(id));
    }
    ids->push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return Status::Ok();
}

}  // namespace

Status ReadPostProcessor(const json& object, std::vector<int32_t>* prefix_ids,
                         std::vector<int32_t>* suffix_ids) {
  if (object.is_null()) return Status::Ok();
  ASSIGN_OR_RETURN(const std::string type, JsonType(object, "post_processor"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const json::array_t* members, ReadSequence(object, "processors"));
    for (const json& member : *members) RETURN_IF_ERROR(ReadPostProcessor(member, prefix_ids, suffix_ids));
    return Status::Ok();
  }
  if (type == "ByteLevel") return Status::Ok();  // changes offsets only
  if (type != "TemplateProcessing") return NotSupported("post_processor", type);
  const json* single = JsonMember(object, "single");
  if (single == nullptr || !single->is_array())
    return InvalidArgument("post_processor: single is missing or no list");
  bool behind_text = false;
  for (const json& item : *single) {
    if (JsonMember(item, "Sequence") != nullptr) {
      behind_text = true;
    } else if (const json* special = JsonMember(item, "SpecialToken"); special != nullptr) {
      RETURN_IF_ERROR(AppendTemplateToken(object, *special, behind_text ? suffix_ids : prefix_ids));
    } else {
      return Unsupported("post_processor: {} in a template is not supported", JsonPreview(item));
    }
  }
  return Status::Ok();
}

}  // namespace cachalot
