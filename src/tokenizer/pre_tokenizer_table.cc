#include "tokenizer/pre_tokenizer_table.h"

#include <fmt/ranges.h>

#include <vector>

#include "formats/text.h"

namespace cachalot {
namespace {

constexpr std::string_view kGpt2[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};

// Digits one by one, then as GPT-2.
constexpr std::string_view kDigitsThenGpt2[] = {R"(\p{N})", kGpt2[0]};

constexpr std::string_view kLlama3[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kCjk = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";

// The second lists the letters that have case, as of the Unicode version of its authors. The third takes in
// A-Z and a-z
// (":-~"), so it cuts the words that the second found where ASCII and other letters meet.
constexpr std::string_view kDeepSeekLlm[] = {
    R"([\r\n])",
    "\\s?[A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
    "]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    R"(\s+$)",
    kCjk,
    R"(\p{N}+)"};

constexpr std::string_view kDeepSeekCoder[] = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk, R"(\p{N})"};

constexpr std::string_view kDeepSeekV3[] = {
    R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Words end where capitals begin again.
#define CAPITALS R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})"
#define SMALL R"(\p{Ll}\p{Lm}\p{Lo}\p{M})"
#define CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
#define BEFORE_WORD R"([^\r\n\p{L}\p{N}]?)"
constexpr std::string_view kTekken[] = {
    BEFORE_WORD "[" CAPITALS "]*[" SMALL "]+|" BEFORE_WORD "[" CAPITALS "]+[" SMALL
                R"(]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kGpt4o[] = {
    BEFORE_WORD "[" CAPITALS "]*[" SMALL "]+" CONTRACTION "|" BEFORE_WORD "[" CAPITALS "]+[" SMALL "]*" CONTRACTION
                R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// Chinese letters stay among themselves.
constexpr std::string_view kKimiK2[] = {
    R"(\p{Han}+|)" BEFORE_WORD R"((?:(?!\p{Han})[)" CAPITALS R"(])*(?:(?!\p{Han})[)" SMALL "])+" CONTRACTION
    "|" BEFORE_WORD R"((?:(?!\p{Han})[)" CAPITALS R"(])+(?:(?!\p{Han})[)" SMALL "])*" CONTRACTION
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kYoutu[] = {
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
    "[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    BEFORE_WORD "[" CAPITALS "]*[" SMALL "]+" CONTRACTION "|" BEFORE_WORD "[" CAPITALS "]+[" SMALL "]*" CONTRACTION
                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
#undef CAPITALS
#undef SMALL
#undef CONTRACTION
#undef BEFORE_WORD

constexpr std::string_view kSeedCoder[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"};

constexpr std::string_view kPoro[] = {R"( ?[^(\s|.,!?…。，、।۔،)]+)"};
constexpr std::string_view kViking[] = {kPoro[0], R"(\p{N})"};

// What llama.cpp applies when a file names none.
constexpr std::string_view kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2[0], R"(\p{N}+)", "[0-9][0-9][0-9]"};

constexpr GgufPreTokenizer kTable[] = {
    {.names =
         "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat jina-es jina-de jina-v2-es jina-v2-de "
         "a.x-4.0 mellum exaone4",
     .splits = kGpt2},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b", .splits = kDigitsThenGpt2},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .splits = kLlama3,
     .ignore_merges = true,
     .add_bos = true},
    {.names = "dbrx smaug-bpe chatglm-bpe", .splits = kLlama3},
    {.names = "qwen2 deepseek-r1-qwen kormo megrez", .splits = kQwen2, .nfc = true},
    {.names = "stablelm2 hunyuan grok-2", .splits = kQwen2},
    {.names = "deepseek-llm", .splits = kDeepSeekLlm},
    {.names = "deepseek-coder", .splits = kDeepSeekCoder},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm", .splits = kDeepSeekV3},
    {.names = "glm4 glm5", .splits = kLlama3, .ignore_merges = true},
    {.names = "tekken", .splits = kTekken, .ignore_merges = true, .add_bos = true},
    {.names = "gpt-4o llama4 kanana2", .splits = kGpt4o},
    {.names = "kimi-k2", .splits = kKimiK2},
    {.names = "youtu", .splits = kYoutu, .ignore_merges = true},
    {.names = "seed-coder", .splits = kSeedCoder},
    {.names = "viking", .splits = kViking},
    {.names = "poro-chat", .splits = kPoro},
    {.names = "default", .splits = kDefault},
};

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

}  // namespace

std::span<const GgufPreTokenizer> AllGgufPreTokenizers() {
  return kTable;
}

Result<const GgufPreTokenizer*> FindGgufPreTokenizer(std::string_view name) {
  std::vector<std::string_view> known;
  for (const GgufPreTokenizer& row : kTable) {
    for (const std::string_view word : Words(row.names)) {
      if (word == name) return &row;
      known.push_back(word);
    }
  }
  return Unsupported("tokenizer.ggml.pre '{}' is not known; known are {}", Printable(name),
                     fmt::join(known, ", "));
}

}  // namespace cachalot
