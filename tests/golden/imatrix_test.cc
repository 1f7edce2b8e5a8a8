// Importance matrices: the sums against a naive reference, and a file that quantize reads.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "golden/golden_harness.h"
#include "tasks/importance.h"
#include "tasks/importance_collector.h"

namespace cachalot {
namespace {

class ImatrixTest : public testing::TestWithParam<const char*> {};

TEST_P(ImatrixTest, SumsAndCounts) {
  auto golden = LoadGoldenCase(GetParam());
  if (golden.status().code() == StatusCode::kNotFound) GTEST_SKIP() << golden.status().message();
  ASSERT_TRUE(golden.ok()) << golden.status().ToString();
  ImportanceCollector collector;
  ModelSpec spec;
  {
    const ScopedMatmulTap tap(&collector);
    auto harness = GoldenHarness::Open(*golden, {.isa = "ref", .mla_form = MlaForm::kAbsorbed});
    ASSERT_TRUE(harness.ok()) << harness.status().ToString();
    spec = (*harness)->bundle().spec;
    ASSERT_TRUE((*harness)->Generate(*golden, golden->tokens.size(), 0).ok());
  }
  const auto sums = collector.Take();
  const bool mla = spec.attention.kind == AttentionKind::kMla;
  const auto tokens = static_cast<float>(golden->tokens.size());

  // The first layer's input: the norm of the embeddings.
  const std::string weights = golden->folder + "/model.safetensors";
  const auto embedding = ReadFloats(weights, "model.embed_tokens.weight");
  const auto norm = ReadFloats(weights, "model.layers.0.input_layernorm.weight");
  if (embedding.ok() && norm.ok()) {
    const auto hidden = static_cast<size_t>(spec.hidden_size);
    std::vector<double> want(hidden);
    for (const int32_t token : golden->tokens) {
      const float* x = embedding->data() + static_cast<size_t>(token) * hidden;
      double square = 0;
      for (size_t c = 0; c < hidden; ++c) square += double{x[c]} * x[c] / static_cast<double>(hidden);
      for (size_t c = 0; c < hidden; ++c) {
        const double value = x[c] / std::sqrt(square + spec.norm_eps) * (*norm)[c];
        want[c] += value * value;
      }
    }
    const auto& got = sums.at(mla ? "blk.0.attn_kv_a_mqa.weight" : "blk.0.attn_q.weight");
    ASSERT_EQ(got.squares.size(), hidden);
    EXPECT_EQ(got.counts, std::vector<float>{tokens});
    for (size_t c = 0; c < hidden; ++c) EXPECT_NEAR(got.squares[c], want[c], 1e-4 * want[c] + 1e-6) << c;
  }
  if (mla) {
    const auto heads = static_cast<size_t>(spec.attention.num_q_heads);
    EXPECT_EQ(sums.at("blk.0.attn_k_b.weight").counts, std::vector<float>(heads, tokens));
    EXPECT_EQ(sums.at("blk.0.attn_v_b.weight").counts, std::vector<float>(heads, tokens));
  } else {
    EXPECT_EQ(sums.at("blk.0.attn_q.weight").squares, sums.at("blk.0.attn_v.weight").squares);
  }
  EXPECT_FALSE(sums.contains("output.weight"));
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer);
    if (!spec.layers[static_cast<size_t>(layer)].moe) {
      EXPECT_EQ(sums.at(block + "ffn_down.weight").counts, std::vector<float>{tokens});
      continue;
    }
    const auto& gate = sums.at(block + "ffn_gate_exps.weight");
    const auto& down = sums.at(block + "ffn_down_exps.weight");
    float total = 0;
    for (const float count : gate.counts) total += count;
    EXPECT_EQ(total, tokens * static_cast<float>(spec.moe.top_k));
    EXPECT_EQ(gate.counts, down.counts);
    EXPECT_EQ(gate.squares, sums.at(block + "ffn_up_exps.weight").squares);
  }

  const std::string path = testing::TempDir() + "imatrix_" + GetParam() + ".gguf";
  ASSERT_TRUE(WriteImportance(path, collector, "tokens", 1, 512).ok());
  const auto matrix = ReadImportanceMatrix(path);
  ASSERT_TRUE(matrix.ok()) << matrix.status().ToString();
  EXPECT_EQ(matrix->dataset, "tokens");
  EXPECT_EQ(matrix->num_chunks, 1);
  ASSERT_EQ(matrix->values.size(), sums.size());
  for (const auto& [name, values] : matrix->values) {
    const auto& from = sums.at(name);
    const auto columns = static_cast<size_t>(from.columns);
    for (size_t i = 0; i < values.size(); ++i) {
      const float count = from.counts[i / columns];
      EXPECT_FLOAT_EQ(values[i], count > 0 ? from.squares[i] / count : 1.0f);
    }
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Models, ImatrixTest, testing::Values("llama", "mixtral", "deepseek-v3"), [](const auto& test) {
  return std::string(test.param) == "deepseek-v3" ? std::string("deepseek_v3") : std::string(test.param);
});

TEST(Imatrix, NothingSeenIsAnError) {
  const ImportanceCollector collector;
  EXPECT_EQ(WriteImportance(testing::TempDir() + "none.gguf", collector, "x", 1, 1).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot
