// Dummies as files: GGUF and folder hold the in-memory values, in the layout of each, and the same
// vocabulary.
#include "tasks/dummy_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "quant/format.h"
#include "tasks/model_files.h"
#include "tasks/vocab_json.h"
#include "tokenizer/tokenizer.h"
#include "weights/dummy/dummy_values.h"

namespace cachalot {
namespace {

using ::testing::HasSubstr;

class DummyModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "cachalot_dummy_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  static std::shared_ptr<const GgufFile> WriteGguf(DummyRequest request) {
    const auto report = WriteDummy(request, nullptr);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    auto file = GgufFile::Open(request.out);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return file.ok() ? *file : nullptr;
  }

  std::string folder_;
};

std::vector<float> Read(const GgufFile& file, const std::string& name) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) return {};
  std::vector<std::byte> bytes(static_cast<size_t>(tensor->bytes));
  EXPECT_TRUE(file.files()[0]->ReadAt(tensor->offset, bytes).ok());
  int64_t count = 1;
  for (int i = 0; i < tensor->num_dims; ++i) count *= tensor->dims[static_cast<size_t>(i)];
  std::vector<float> values(static_cast<size_t>(count));
  FindQuantFormat(tensor->dtype)->decode(bytes.data(), values.data(), count);
  return values;
}

std::vector<float> Generated(const std::string& spec, const std::string& type, const std::string& name) {
  const auto weights = MakeDummySource(spec, 0, type).value().source;
  const SourceTensor* tensor = weights->Find(name);
  if (tensor == nullptr) return {};
  const auto bytes = weights->Fetch(*tensor).value();
  std::vector<float> values(static_cast<size_t>(tensor->num_values()));
  FindQuantFormat(tensor->dtype)->decode(bytes.data, values.data(), tensor->num_values());
  return values;
}

TEST_F(DummyModelTest, GgufRearrangesTheSameValues) {
  const auto llama = WriteGguf({.spec = "tiny-llama", .type = "f32", .out = Path("llama.gguf")});
  ASSERT_NE(llama, nullptr);
  EXPECT_EQ(llama->String("general.architecture").value(), "llama");
  EXPECT_EQ(llama->Int("llama.block_count", 0, 100).value(), 2);
  EXPECT_EQ(Read(*llama, "token_embd.weight"), Generated("tiny-llama", "f32", "model.embed_tokens.weight"));
  EXPECT_EQ(llama->FindTensor("output.weight"), nullptr);
  // Rotary pairs stand side by side: rows 0, 1, 2, 3 of a head of 16 come from 0, 8, 1, 9.
  const auto hub = Generated("tiny-llama", "f32", "model.layers.1.self_attn.k_proj.weight");
  const auto gguf = Read(*llama, "blk.1.attn_k.weight");
  ASSERT_EQ(hub.size(), gguf.size());
  for (const auto& [to, from] : {std::pair{0, 0}, {1, 8}, {2, 1}, {3, 9}, {16, 16}, {17, 24}}) {
    for (int col = 0; col < 64; ++col) EXPECT_EQ(gguf[to * 64 + col], hub[from * 64 + col]) << to;
  }

  const auto v3 = WriteGguf({.spec = "tiny-deepseek-v3", .type = "bf16", .out = Path("v3.gguf")});
  ASSERT_NE(v3, nullptr);
  EXPECT_EQ(v3->FindTensor("blk.3.attn_norm.weight"), nullptr) << "the MTP layer is left out";
  const auto kv_b = Generated("tiny-deepseek-v3", "bf16", "model.layers.2.self_attn.kv_b_proj.weight");
  const auto k_b = Read(*v3, "blk.2.attn_k_b.weight"), v_b = Read(*v3, "blk.2.attn_v_b.weight");
  ASSERT_EQ(k_b.size() + v_b.size(), kv_b.size());
  for (int head = 0; head < 4; ++head) {
    for (int i = 0; i < 32; ++i) {
      for (int j = 0; j < 32; ++j) {
        EXPECT_EQ(k_b[(head * 32 + j) * 32 + i], kv_b[(head * 64 + i) * 32 + j]);
        EXPECT_EQ(v_b[(head * 32 + i) * 32 + j], kv_b[(head * 64 + 32 + i) * 32 + j]);
      }
    }
  }
  const auto stack = Read(*v3, "blk.2.ffn_down_exps.weight");
  const auto expert = Generated("tiny-deepseek-v3", "bf16", "model.layers.2.mlp.experts.15.down_proj.weight");
  ASSERT_EQ(stack.size(), 16 * expert.size());
  EXPECT_TRUE(std::equal(expert.begin(), expert.end(), stack.end() - static_cast<int64_t>(expert.size())));
  EXPECT_EQ(v3->FindTensor("blk.1.ffn_gate_inp.weight")->dtype, DType::kF32);
  EXPECT_EQ(v3->FindTensor("blk.1.exp_probs_b.bias")->dtype, DType::kF32);
}

TEST_F(DummyModelTest, EverySmallSpecInEveryType) {
  for (const auto& spec : AllDummySpecs()) {
    if (!std::string_view(spec.name).starts_with("tiny-")) continue;
    for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"}) {
      SCOPED_TRACE(fmt::format("{} {}", spec.name, type));
      const auto file = WriteGguf({.spec = spec.name, .type = type, .out = Path("model.gguf")});
      ASSERT_NE(file, nullptr);
      for (const auto& tensor : file->tensors()) {
        for (const float value : Read(*file, tensor.name)) ASSERT_TRUE(std::isfinite(value)) << tensor.name;
      }
    }
    for (const char* type : {"f32", "bf16", "fp8"}) {
      SCOPED_TRACE(fmt::format("{} {}", spec.name, type));
      const std::string folder = Path(fmt::format("{}-{}", spec.name, type));
      const auto report = WriteDummy({.spec = spec.name, .type = type, .out = folder}, nullptr);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      const auto files = ListModelFiles(folder);
      ASSERT_TRUE(files.ok()) << files.status().ToString();
      EXPECT_EQ(files->tensors.size(), ListDummyTensors(spec, report->type).size());
    }
  }
}

// The vocabulary is the same through a GGUF file and through tokenizer.json.
TEST_F(DummyModelTest, TokenizersOfBothFormatsAgree) {
  const std::string text = " tatene Zürich 12345 don't\n\n  ¿qué? 日本語 \U0001f40b <|im_end|><｜User｜>";
  for (const auto& spec : AllDummySpecs()) {
    if (!std::string_view(spec.name).starts_with("tiny-")) continue;
    SCOPED_TRACE(spec.name);
    const auto file = WriteGguf({.spec = spec.name, .type = "bf16", .out = Path("model.gguf")});
    const std::string folder = Path(spec.name);
    ASSERT_TRUE(WriteDummy({.spec = spec.name, .type = "bf16", .out = folder}, nullptr).ok());
    const auto from_gguf = Tokenizer::FromGguf(*file);
    ASSERT_TRUE(from_gguf.ok()) << from_gguf.status().ToString();
    const auto from_folder = Tokenizer::FromFolder(folder);
    ASSERT_TRUE(from_folder.ok()) << from_folder.status().ToString();
    EXPECT_EQ((*from_gguf)->Encode(text).value(), (*from_folder)->Encode(text).value());
    EXPECT_EQ((*from_gguf)->bos_id(), (*from_folder)->bos_id());
    EXPECT_EQ((*from_gguf)->eos_id(), (*from_folder)->eos_id());
    EXPECT_EQ((*from_gguf)->add_bos(), (*from_folder)->add_bos());
    EXPECT_EQ((*from_gguf)->chat_template(), (*from_folder)->chat_template());
    const VocabTable vocab = MakeDummyVocab(spec);
    for (size_t id = 0; id < vocab.tokens.size(); id += 3) {
      if (vocab.types[id] != static_cast<int32_t>(TokenType::kNormal)) continue;
      const std::string word((*from_gguf)->TokenBytes(static_cast<int32_t>(id)));
      const auto ids = (*from_gguf)->Encode(word, {.add_special = false}).value();
      ASSERT_EQ(ids, std::vector<int32_t>{static_cast<int32_t>(id)}) << word;
    }
  }
}

TEST_F(DummyModelTest, VocabularyFromElsewhere) {
  const auto source = WriteGguf({.spec = "tiny-qwen2", .type = "bf16", .out = Path("source.gguf")});
  const std::string source_folder = Path("source");
  ASSERT_TRUE(WriteDummy({.spec = "tiny-qwen2", .type = "bf16", .out = source_folder}, nullptr).ok());
  const std::string text = "datenefa 12 <|im_start|>";
  const auto wanted = Tokenizer::FromGguf(*source).value()->Encode(text).value();
  for (const std::string& vocab : {Path("source.gguf"), source_folder}) {
    SCOPED_TRACE(vocab);
    const auto gguf = WriteGguf({.spec = "tiny-qwen2", .vocab = vocab, .out = Path("to.gguf")});
    EXPECT_EQ(Tokenizer::FromGguf(*gguf).value()->Encode(text).value(), wanted);
    const std::string folder = Path("to_folder");
    std::filesystem::remove_all(folder);
    const auto report = WriteDummy({.spec = "tiny-qwen2", .vocab = vocab, .out = folder}, nullptr);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->vocab_size, 640);
    EXPECT_EQ(Tokenizer::FromFolder(folder).value()->Encode(text).value(), wanted);
  }
  // Another size of vocabulary changes the model's.
  const auto gguf = WriteGguf(
      {.spec = "tiny-deepseek-v3", .type = "q8_0", .vocab = Path("source.gguf"), .out = Path("mixed.gguf")});
  EXPECT_EQ(gguf->FindTensor("token_embd.weight")->dims[0], 640);
  EXPECT_EQ(gguf->Int("deepseek2.vocab_size", 0, 1 << 20).value(), 640);
}

TEST_F(DummyModelTest, ErrorsNameThePlace) {
  const auto message = [](DummyRequest request) { return WriteDummy(request, nullptr).status().message(); };
  EXPECT_THAT(message({.spec = "tiny-llama", .type = "fp8", .out = Path("a.gguf")}), HasSubstr("F8_E4M3"));
  EXPECT_THAT(message({.spec = "tiny-llama", .type = "q4_0", .out = Path("folder")}), HasSubstr("Q4_0"));
  EXPECT_THAT(message({.spec = "tiny-llama", .vocab = Path("absent"), .out = Path("a.gguf")}),
              HasSubstr("absent"));
  EXPECT_THAT(message({.spec = "tiny-llama", .out = "/dev/null/a.gguf"}),
              HasSubstr("/dev/null/a.gguf"));
  const auto stopped =
      WriteDummy({.spec = "tiny-llama", .out = Path("b.gguf")}, [](int64_t, int64_t) { return false; });
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(FileExists(Path("b.gguf")));
}

}  // namespace
}  // namespace cachalot
