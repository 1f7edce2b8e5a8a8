// Hugging Face folders written as GGUF files: the same logits, whatever the folder's form.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "formats/safetensors_writer.h"
#include "golden/golden_harness.h"
#include "model/arch/architecture.h"
#include "tasks/quantize.h"

namespace cachalot {
namespace {

class HfQuantizeTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto golden = LoadGoldenCase(GetParam());
    if (golden.status().code() == StatusCode::kNotFound) GTEST_SKIP() << golden.status().message();
    ASSERT_TRUE(golden.ok()) << golden.status().ToString();
    golden_ = std::move(golden).value();
    scratch_ = testing::TempDir() + "hf_quantize_" + GetParam();
    std::filesystem::remove_all(scratch_);
    std::filesystem::create_directories(scratch_);
  }
  void TearDown() override { std::filesystem::remove_all(scratch_); }

  std::string Quantized(const std::string& folder, const char* type) {
    QuantizeRequest request;
    request.in = folder;
    request.out = scratch_ + "/" + type + ".gguf";
    request.choices.recipe = FindQuantizeRecipe(type).value();
    request.num_threads = 2;
    const auto report = Quantize(request, {});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return request.out;
  }

  std::vector<float> Logits(const std::string& model) {
    GoldenCase golden = golden_;
    golden.folder = model;
    auto harness = GoldenHarness::Open(golden, {.isa = "ref"});
    EXPECT_TRUE(harness.ok()) << harness.status().ToString();
    if (!harness.ok()) return {};
    auto run = (*harness)->Generate(golden, golden.tokens.size(), 0);
    EXPECT_TRUE(run.ok()) << run.status().ToString();
    return run.ok() ? run->logits : std::vector<float>{};
  }

  GoldenCase golden_;
  std::string scratch_;
};

// The folders hold BF16 values, so F32 and BF16 files lose nothing (FP8 ones: scaled values, which BF16 rounds).
TEST_P(HfQuantizeTest, SameModel) {
  const std::string f32 = Quantized(golden_.folder, "F32");
  EXPECT_LE(MaxDifference(Logits(f32), golden_.logits), kReferenceTolerance);
  const auto file = GgufFile::Open(f32);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto spec = SpecFromGguf(**file);
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  const auto wanted = SpecFromHf(HfConfig::Load(golden_.folder).value()).value();
  EXPECT_EQ(spec->layers.size(), wanted.layers.size());
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    EXPECT_EQ(spec->layers[i].moe, wanted.layers[i].moe);
    EXPECT_EQ(spec->layers[i].window, wanted.layers[i].window);
  }
  EXPECT_FLOAT_EQ(spec->attention.scale, wanted.attention.scale);
  EXPECT_FLOAT_EQ(spec->attention.rope.mscale, wanted.attention.rope.mscale);
  EXPECT_EQ(spec->moe.normalize, wanted.moe.normalize);
  EXPECT_EQ(spec->moe.group_score, wanted.moe.group_score);
  const bool rounds = std::string_view(GetParam()) == "deepseek-v3-fp8";
  EXPECT_LE(MaxDifference(Logits(Quantized(golden_.folder, "BF16")), golden_.logits),
            rounds ? 0.3f : kReferenceTolerance);
  std::vector<float> q8 = Logits(Quantized(golden_.folder, "Q8_0"));
  ASSERT_EQ(q8.size(), golden_.logits.size());
  // Routers of random weights are full of near-ties: where rounding flips one, a token gets another expert.
  EXPECT_GT(CosineOf(q8.data(), golden_.logits.data(), q8.size()), wanted.moe.num_experts > 0 ? 0.95 : 0.999);
}

// transformers 5 may stack a layer's experts in one tensor: the same model, and the same file.
TEST_P(HfQuantizeTest, StackedExperts) {
  const auto folder = SafetensorsFolder::Open(golden_.folder);
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  const auto spec = SpecFromHf(HfConfig::Load(golden_.folder).value()).value();
  if (spec.moe.num_experts == 0) return;
  SafetensorsWriter writer;
  std::map<std::string, std::string> contents;
  const auto bytes_of = [&](const SafetensorsTensor& tensor) {
    std::string bytes(static_cast<size_t>(tensor.bytes), '\0');
    EXPECT_TRUE((*folder)->files()[0]->ReadAt(tensor.offset, std::as_writable_bytes(std::span(bytes))).ok());
    return bytes;
  };
  const auto add = [&](const std::string& name, const SafetensorsTensor& like, std::vector<int64_t> dims, std::string bytes) {
    EXPECT_TRUE(writer.AddTensor(name, like.dtype, dims).ok()) << name;
    contents[name] = std::move(bytes);
  };
  for (const SafetensorsTensor& tensor : (*folder)->tensors()) {
    if (tensor.name.find(".experts.") == std::string::npos) add(tensor.name, tensor, tensor.dims, bytes_of(tensor));
  }
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    if (!spec.layers[static_cast<size_t>(layer)].moe) continue;
    for (const char* suffix : {".weight", ".weight_scale_inv"}) {
      std::string gate_up, down;
      const SafetensorsTensor *up_tensor = nullptr, *down_tensor = nullptr;
      for (int32_t e = 0; e < spec.moe.num_experts; ++e) {
        const auto find = [&](const char* v3, const char* mixtral) {
          const auto* found = (*folder)->Find(fmt::format("model.layers.{}.mlp.experts.{}.{}{}", layer, e, v3, suffix));
          if (found != nullptr) return found;
          return (*folder)->Find(fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}{}", layer, e, mixtral, suffix));
        };
        const auto* gate = find("gate_proj", "w1");
        if (gate == nullptr) break;
        up_tensor = find("up_proj", "w3");
        down_tensor = find("down_proj", "w2");
        gate_up += bytes_of(*gate) + bytes_of(*up_tensor);
        down += bytes_of(*down_tensor);
      }
      if (up_tensor == nullptr) continue;
      const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
      const std::string end = suffix == std::string_view(".weight") ? "" : "_scale_inv";
      add(prefix + "gate_up_proj" + end, *up_tensor, {spec.moe.num_experts, 2 * up_tensor->dims[0], up_tensor->dims[1]}, gate_up);
      add(prefix + "down_proj" + end, *down_tensor, {spec.moe.num_experts, down_tensor->dims[0], down_tensor->dims[1]}, down);
    }
  }
  const std::string stacked = scratch_ + "/stacked";
  std::filesystem::create_directories(stacked);
  std::filesystem::copy_file(golden_.folder + "/config.json", stacked + "/config.json");
  ASSERT_TRUE(writer.WriteFile(stacked + "/model.safetensors", [&](const SafetensorsTensor& tensor, ByteSink& sink) {
    return sink.Append(contents.at(tensor.name));
  }).ok());
  EXPECT_EQ(Logits(stacked), Logits(golden_.folder));
  // The files differ in general.name alone, which is the folder's.
  const std::string original = Quantized(golden_.folder, "BF16");
  std::filesystem::rename(original, original + ".1");
  const auto a = GgufFile::Open(original + ".1"), b = GgufFile::Open(Quantized(stacked, "BF16"));
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ((*a)->tensors().size(), (*b)->tensors().size());
  for (size_t i = 0; i < (*a)->tensors().size(); ++i) {
    const auto read = [&](const GgufFile& file) {
      std::vector<std::byte> bytes(static_cast<size_t>(file.tensors()[i].bytes));
      EXPECT_TRUE(file.files()[0]->ReadAt(file.tensors()[i].offset, bytes).ok());
      return bytes;
    };
    EXPECT_TRUE(read(**a) == read(**b)) << (*a)->tensors()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HfQuantizeTest,
                         testing::Values("llama", "llama3-rope", "mistral", "qwen2", "qwen3", "deepseek-v2-lite",
                                         "deepseek-v2", "deepseek-v3", "deepseek-v3-fp8", "qwen3-moe", "mixtral"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A trained model with its tokenizer, as people have it.
TEST(HfQuantize, TrainedModelWithTokenizer) {
  const std::string folder = std::string(CACHALOT_SOURCE_DIR) + "/../shared/models/tiny-deepseek-v3";
  if (!IsDirectory(folder)) GTEST_SKIP() << "../shared/models/tiny-deepseek-v3 is not beside this checkout";
  QuantizeRequest request;
  request.in = folder;
  request.out = testing::TempDir() + "tiny-v3.gguf";
  request.choices.recipe = FindQuantizeRecipe("BF16").value();
  const auto report = Quantize(request, {});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto file = GgufFile::Open(request.out);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->String("tokenizer.ggml.pre").value(), "deepseek-v3");
  EXPECT_EQ((*file)->Int("deepseek2.nextn_predict_layers", 0, 9).value(), 1);
  ModelOptions options;
  options.path = request.out;
  auto bundle = OpenModel(options);
  ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
  EXPECT_NE(bundle->tokenizer, nullptr) << bundle->tokenizer_error.ToString();
  std::filesystem::remove(request.out);
}

}  // namespace
}  // namespace cachalot
