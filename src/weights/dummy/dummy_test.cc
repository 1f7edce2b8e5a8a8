// The generated models: shapes that hold together, values of the promised distribution, the same bytes in any
// order, and vocabularies in which every word is reachable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "quant/format.h"
#include "weights/dummy/dummy_source.h"
#include "weights/dummy/dummy_values.h"
#include "weights/dummy/dummy_vocab.h"

namespace cachalot {
namespace {

using ::testing::HasSubstr;

std::vector<float> Decode(const DummyTensor& tensor, std::span<const std::byte> bytes) {
  std::vector<float> values(static_cast<size_t>(tensor.info.num_values()));
  FindQuantFormat(tensor.info.dtype)
      ->decode(bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

TEST(DummySpecTest, EverySpecHoldsTogether) {
  for (const auto& spec : AllDummySpecs()) {
    SCOPED_TRACE(spec.name);
    EXPECT_EQ(spec.q_heads % spec.kv_heads, 0);
    EXPECT_TRUE(spec.mla() || spec.head_dim > 0);
    EXPECT_EQ(spec.experts > 0, spec.top_k > 0);
    EXPECT_EQ(spec.experts % spec.groups, 0);
    std::set<std::string> names;
    for (const auto& tensor : ListDummyTensors(spec, spec.type)) {
      EXPECT_TRUE(names.insert(tensor.info.name).second) << tensor.info.name;
      EXPECT_GT(tensor.info.num_values(), 0) << tensor.info.name;
    }
    const auto config = nlohmann::json::parse(DummyConfigJson(spec, spec.type));
    EXPECT_EQ(config["num_hidden_layers"], spec.layers);
    EXPECT_EQ(config.contains("quantization_config"), spec.type == DType::kFP8E4M3);
  }
}

// Parameters as the models' own cards have them.
TEST(DummySpecTest, ParameterCounts) {
  const auto parameters = [](const char* name) {
    const auto spec = FindDummySpec(name).value();
    int64_t count = 0;
    for (const auto& tensor : ListDummyTensors(spec, DType::kBF16)) {
      if (tensor.layer < spec.layers) count += tensor.info.num_values();
    }
    return static_cast<double>(count) / 1e9;
  };
  EXPECT_NEAR(parameters("smollm2-135m"), 0.13452, 1e-4);
  EXPECT_NEAR(parameters("llama-1b"), 1.2358, 1e-3);
  EXPECT_NEAR(parameters("r1-distill-llama-8b"), 8.0303, 1e-3);
  EXPECT_NEAR(parameters("r1-distill-qwen-1.5b"), 1.7771, 1e-3);
  EXPECT_NEAR(parameters("r1-distill-qwen-7b"), 7.6156, 1e-3);
  EXPECT_NEAR(parameters("qwen3-0.6b"), 0.5960, 1e-3);
  EXPECT_NEAR(parameters("mistral-7b"), 7.2417, 1e-3);
  EXPECT_NEAR(parameters("mixtral-8x7b"), 46.703, 1e-2);
  EXPECT_NEAR(parameters("qwen3-30b-a3b"), 30.532, 1e-2);
  EXPECT_NEAR(parameters("deepseek-v2-lite"), 15.706, 1e-2);
  EXPECT_NEAR(parameters("deepseek-v3"), 671.0, 0.5);
}

TEST(DummySpecTest, BadRequestsNameTheChoices) {
  EXPECT_THAT(ResolveDummy("lama", 0, "").status().message(), HasSubstr("smollm2-135m"));
  EXPECT_THAT(ResolveDummy("tiny-llama", -1, "").status().message(), HasSubstr("1..1000"));
  EXPECT_THAT(ResolveDummy("tiny-llama", 0, "q9").status().message(), HasSubstr("q9"));
  const auto model = ResolveDummy("deepseek-v3", 4, "").value();
  EXPECT_EQ(model.spec.layers, 4);
  EXPECT_EQ(model.type, DType::kFP8E4M3);
}

TEST(DummyValuesTest, DistributionInEveryType) {
  auto spec = FindDummySpec("tiny-llama").value();
  spec.intermediate = 1024;
  spec.hidden = 256;
  for (const auto& format : AllQuantFormats()) {
    if (format.encode == nullptr) continue;
    SCOPED_TRACE(DTypeName(format.dtype));
    const auto tensors = ListDummyTensors(spec, format.dtype);
    const auto up =
        std::find_if(tensors.begin(), tensors.end(), [](auto& t) { return t.role == DummyRole::kUp; });
    std::vector<std::byte> bytes(static_cast<size_t>(up->info.num_bytes()));
    FillDummyTensor(*up, bytes);
    double sum = 0, squares = 0;
    const auto values = Decode(*up, bytes);
    for (const float value : values) {
      ASSERT_TRUE(std::isfinite(value));
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_NEAR(sum / count / up->std, 0.0, 0.01);
    // Least squares at 2 and 3 bits leave some of the variance out.
    const bool coarse = format.dtype == DType::kQ2_K || format.dtype == DType::kQ3_K;
    EXPECT_NEAR(std::sqrt(squares / count) / up->std, 1.0, coarse ? 0.08 : 0.05);
  }
}

TEST(DummyValuesTest, AnyOrderGivesTheSameBytes) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    const auto spec = FindDummySpec("tiny-llama").value();
    for (const auto& tensor : ListDummyTensors(spec, type)) {
      const DummyRows rows(tensor);
      std::vector<std::byte> whole(static_cast<size_t>(tensor.info.num_bytes())), pieces(whole.size());
      FillDummyTensor(tensor, whole);
      for (int64_t row = tensor.num_rows() - 1; row >= 0; --row) {
        rows.Fill(row, 1, pieces.data() + row * rows.row_bytes());
      }
      ASSERT_EQ(whole, pieces) << tensor.info.name;
    }
  }
  // A tensor so large that threads share it.
  DummyTensor large;
  large.info = {.name = "large", .dtype = DType::kBF16, .num_dims = 2, .dims = {4099, 3000}};
  large.std = 1.0f;
  std::vector<std::byte> whole(static_cast<size_t>(large.info.num_bytes())), row(6000);
  FillDummyTensor(large, whole);
  DummyRows(large).Fill(4098, 1, row.data());
  EXPECT_TRUE(std::equal(row.begin(), row.end(), whole.end() - 6000));
  EXPECT_FALSE(std::equal(row.begin(), row.end(), whole.begin()));
}

TEST(DummySourceTest, FetchesByName) {
  auto weights = MakeDummySource("tiny-deepseek-v3", 0, "fp8");
  ASSERT_TRUE(weights.ok()) << weights.status().ToString();
  const auto& source = *weights->source;
  EXPECT_EQ(source.Find("model.layers.99.mlp.gate.weight"), nullptr);
  const auto* scale = source.Find("model.layers.0.mlp.up_proj.weight_scale_inv");
  ASSERT_NE(scale, nullptr);
  EXPECT_EQ(scale->dims[0], 2);
  EXPECT_EQ(scale->dims[1], 1);
  const auto* mtp = source.Find("model.layers.3.eh_proj.weight");
  ASSERT_NE(mtp, nullptr);
  const auto bytes = source.Fetch(*mtp);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->size, 64 * 128);
  const auto config = nlohmann::json::parse(weights->config_json);
  EXPECT_EQ(config["bos_token_id"], 0);
  EXPECT_EQ(config["eos_token_id"], 1);
}

// A byte-pair encoder in its plainest form: the best-ranked neighbouring pair is joined until none is left.
std::vector<std::string> PlainBpe(std::vector<std::string> symbols,
                                  const std::unordered_map<std::string, size_t>& ranks) {
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find(symbols[i] + " " + symbols[i + 1]);
      if (found != ranks.end() && found->second < best) best = found->second, at = i;
    }
    if (best == SIZE_MAX) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<int64_t>(at) + 1);
  }
}

std::vector<std::string> Characters(const std::string& text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    if ((c & 0xc0) == 0x80)
      characters.back() += c;
    else
      characters.emplace_back(1, c);
  }
  return characters;
}

TEST(DummyVocabTest, EveryWordIsReachableAndSpecialsAreInPlace) {
  for (const char* name :
       {"tiny-llama", "tiny-mistral", "tiny-deepseek-v3", "smollm2-135m", "mistral-7b", "qwen3-0.6b"}) {
    SCOPED_TRACE(name);
    const auto spec = FindDummySpec(name).value();
    const VocabTable vocab = MakeDummyVocab(spec);
    ASSERT_EQ(static_cast<int32_t>(vocab.tokens.size()), spec.vocab_size);
    ASSERT_EQ(vocab.types.size(), vocab.tokens.size());
    EXPECT_EQ(std::set<std::string>(vocab.tokens.begin(), vocab.tokens.end()).size(), vocab.tokens.size());
    EXPECT_EQ(DummyVocabIds(spec).eos, vocab.eos_id);
    std::unordered_map<std::string, size_t> ranks;
    for (size_t i = 0; i < vocab.merges.size(); ++i) ranks.emplace(vocab.merges[i], i);
    EXPECT_EQ(ranks.size(), vocab.merges.size());
    size_t words = 0;
    const size_t stride = vocab.tokens.size() > 10000 ? 7 : 1;
    for (size_t id = 0; id < vocab.tokens.size(); id += stride) {
      if (vocab.types[id] != static_cast<int32_t>(TokenType::kNormal)) continue;
      ++words;
      ASSERT_EQ(PlainBpe(Characters(vocab.tokens[id]), ranks).size(), 1u) << vocab.tokens[id];
    }
    EXPECT_GT(words, 200u);
  }
  const auto text = [](const char* name, int32_t id) {
    return MakeDummyVocab(FindDummySpec(name).value()).tokens[static_cast<size_t>(id)];
  };
  EXPECT_EQ(text("r1-distill-qwen-7b", 151646), "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(text("qwen3-0.6b", 151668), "</think>");
  EXPECT_EQ(text("llama-1b", 128009), "<|eot_id|>");
  EXPECT_EQ(text("r1-distill-llama-8b", 128011), "<｜User｜>");
  EXPECT_EQ(text("deepseek-v3", 128803), "<｜User｜>");
  EXPECT_EQ(text("deepseek-v3", 128814), "<｜tool▁sep｜>");
  EXPECT_EQ(text("deepseek-v2-lite", 100001), "<｜end▁of▁sentence｜>");
  EXPECT_EQ(text("smollm2-135m", 2), "<|im_end|>");
}

TEST(DummyVocabTest, FileInMemory) {
  const auto file = MakeDummyVocabFile(FindDummySpec("tiny-llama").value());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto* tokens = (*file)->Strings("tokenizer.ggml.tokens");
  ASSERT_NE(tokens, nullptr);
  EXPECT_EQ(tokens->size(), 640u);
  EXPECT_EQ((*file)->String("tokenizer.ggml.pre").value(), "smollm");
}

TEST(DummyVocabTest, ByteSpellings) {
  EXPECT_EQ(ByteSpelling('A'), "A");
  EXPECT_EQ(ByteSpelling(' '), "Ġ");
  EXPECT_EQ(ByteSpelling('\n'), "Ċ");
  EXPECT_EQ(ByteSpelling(0xff), "ÿ");
}

}  // namespace
}  // namespace cachalot
