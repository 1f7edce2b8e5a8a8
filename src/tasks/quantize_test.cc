#include "tasks/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "formats/gguf_writer.h"
#include "quant/format.h"
#include "tasks/importance.h"

namespace cachalot {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLayers = 8, kHidden = 256;

class QuantizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        ::testing::TempDir() + "cachalot_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  struct Tensor {
    std::string name;
    std::vector<int64_t> dims;
  };

  // Values without a pattern, a function of name and index.
  static std::vector<float> ValuesOf(const Tensor& tensor) {
    int64_t count = 1;
    for (const int64_t dim : tensor.dims) count *= dim;
    std::vector<float> values(static_cast<size_t>(count));
    uint32_t state = static_cast<uint32_t>(std::hash<std::string>()(tensor.name));
    for (float& value : values) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-36f;
    }
    return values;
  }

  static std::vector<Tensor> SmallModel() {
    std::vector<Tensor> tensors = {{"token_embd.weight", {40, kHidden}}, {"output_norm.weight", {kHidden}}};
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string block = fmt::format("blk.{}.", layer);
      tensors.push_back({block + "attn_norm.weight", {kHidden}});
      tensors.push_back({block + "attn_q.weight", {kHidden, kHidden}});
      tensors.push_back({block + "attn_v.weight", {64, kHidden}});
      tensors.push_back({block + "ffn_gate_inp.weight", {4, kHidden}});
      tensors.push_back({block + "ffn_down_exps.weight", {4, 32, 512}});
    }
    return tensors;
  }

  std::string WriteModel(const std::vector<Tensor>& tensors, float bad = 0) {
    GgufWriter writer;
    writer.SetString("general.architecture", "llama");
    writer.SetU32("llama.block_count", kLayers);
    writer.SetU32("llama.attention.head_count", 8);
    writer.SetU32("llama.attention.head_count_kv", 2);
    writer.SetU32("llama.expert_count", 4);
    writer.SetU32("general.file_type", 0);
    writer.SetString("some.key", "kept");
    writer.SetU32("split.count", 1);
    for (const Tensor& tensor : tensors) {
      EXPECT_TRUE(writer.AddTensor(tensor.name, DType::kF32, tensor.dims).ok());
    }
    size_t next = 0;
    const std::string path = Path("in.gguf");
    const Status status = writer.Write(path, [&](const GgufTensor&, ByteSink& sink) {
      std::vector<float> values = ValuesOf(tensors[next++]);
      if (bad != 0 && next == tensors.size()) values[values.size() / 2] = bad;
      return sink.Append(std::as_bytes(std::span(values)));
    });
    EXPECT_TRUE(status.ok()) << status.ToString();
    return path;
  }

  QuantizeRequest Request(const std::string& recipe) const {
    QuantizeRequest request;
    request.in = Path("in.gguf");
    request.out = Path("out.gguf");
    request.choices.recipe = FindQuantizeRecipe(recipe).value();
    request.num_threads = 2;
    return request;
  }

  static std::vector<std::byte> BytesOf(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.FindTensor(name);
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<std::byte> bytes(static_cast<size_t>(tensor->bytes));
    EXPECT_TRUE(file.files()[0]->ReadAt(tensor->offset, bytes).ok());
    return bytes;
  }

  static DType TypeIn(const QuantizeReport& report, const std::string& name) {
    for (const QuantizedTensor& tensor : report.tensors) {
      if (tensor.name == name) return tensor.to;
    }
    ADD_FAILURE() << name;
    return DType::kBool;
  }

  std::string folder_;
};

TEST_F(QuantizeTest, MixtureOfMedium) {
  WriteModel(SmallModel());
  const auto report = Quantize(Request("q4_k_m"), nullptr);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto file = GgufFile::Open(Path("out.gguf")).value();
  EXPECT_EQ(file->Int("general.file_type", 0, 100).value(), 15);
  EXPECT_EQ(file->String("some.key").value(), "kept");
  EXPECT_FALSE(file->Has("split.count"));
  // The first and last eighth of 8 layers and every third between: 0, 3, 6, 7.
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const bool more = layer == 0 || layer == 3 || layer == 6 || layer == 7;
    const std::string block = fmt::format("blk.{}.", layer);
    EXPECT_EQ(file->FindTensor(block + "attn_v.weight")->dtype, more ? DType::kQ6_K : DType::kQ4_K) << layer;
    EXPECT_EQ(file->FindTensor(block + "ffn_down_exps.weight")->dtype, more ? DType::kQ6_K : DType::kQ4_K)
        << layer;
    EXPECT_EQ(file->FindTensor(block + "attn_q.weight")->dtype, DType::kQ4_K);
    EXPECT_EQ(file->FindTensor(block + "attn_norm.weight")->dtype, DType::kF32);
    EXPECT_EQ(file->FindTensor(block + "ffn_gate_inp.weight")->dtype, DType::kF32);
  }
  EXPECT_EQ(file->FindTensor("token_embd.weight")->dtype, DType::kQ6_K);  // it is the output too

  // What is in the file is what the encoder makes of the values; what stays is as it was.
  const Tensor down = {"blk.1.ffn_down_exps.weight", {4, 32, 512}},
               norm = {"blk.2.attn_norm.weight", {kHidden}};
  const std::vector<float> values = ValuesOf(down);
  std::vector<std::byte> want(static_cast<size_t>(DTypeBytes(DType::kQ4_K, 4 * 32 * 512)));
  FindQuantFormat(DType::kQ4_K)->encode(values.data(), want.data(), 4 * 32 * 512);
  EXPECT_EQ(BytesOf(*file, down.name), want);
  const std::vector<float> norms = ValuesOf(norm);
  EXPECT_EQ(std::memcmp(BytesOf(*file, norm.name).data(), norms.data(), kHidden * sizeof(float)), 0);
}

TEST_F(QuantizeTest, PlanSaysWhatIsWritten) {
  WriteModel(SmallModel());
  for (const QuantizeRecipe& recipe : AllQuantizeRecipes()) {
    SCOPED_TRACE(recipe.name);
    const auto planned = PlanQuantize(Request(recipe.name));
    int64_t told_bytes = 0;
    std::filesystem::remove(Path("out.gguf"));
    const auto done = Quantize(Request(recipe.name), nullptr, [&](const QuantizeReport& report) {
      told_bytes = report.to_bytes;
      EXPECT_FALSE(std::filesystem::exists(Path("out.gguf"))) << "before anything is written";
    });
    ASSERT_TRUE(planned.ok() && done.ok()) << done.status().ToString();
    EXPECT_EQ(told_bytes, planned->to_bytes);
    EXPECT_EQ(planned->to_bytes, done->to_bytes);
    const auto file = GgufFile::Open(Path("out.gguf")).value();
    int64_t bytes = 0;
    for (size_t i = 0; i < file->tensors().size(); ++i) {
      EXPECT_EQ(file->tensors()[i].dtype, planned->tensors[i].to);
      bytes += file->tensors()[i].bytes;
    }
    EXPECT_EQ(bytes, planned->to_bytes);
    EXPECT_EQ(TypeIn(*planned, "blk.1.attn_q.weight"), recipe.base);
  }
}

TEST_F(QuantizeTest, PureAndRulesAndFallbacks) {
  std::vector<Tensor> tensors = SmallModel();
  tensors.push_back({"output.weight", {40, kHidden}});
  tensors.push_back({"blk.0.ffn_up.weight", {8, 288}});
  tensors.push_back({"blk.0.attn_k.weight", {8, 40}});
  WriteModel(tensors);
  QuantizeRequest request = Request("Q4_K_M");
  auto report = PlanQuantize(request).value();
  EXPECT_EQ(TypeIn(report, "output.weight"), DType::kQ6_K);
  EXPECT_EQ(TypeIn(report, "token_embd.weight"), DType::kQ4_K);
  EXPECT_EQ(TypeIn(report, "blk.0.ffn_up.weight"), DType::kQ5_0);  // rows of 9 * 32
  EXPECT_EQ(TypeIn(report, "blk.0.attn_k.weight"), DType::kF16);

  request.choices.pure = true;
  request.choices.rules = {ParseTensorTypeRule("attn_v=q8_0").value(),
                           ParseTensorTypeRule("blk\\.[12]\\.=q5_0").value()};
  request.choices.output_type = static_cast<int32_t>(DType::kF16);
  report = PlanQuantize(request).value();
  EXPECT_EQ(TypeIn(report, "blk.1.attn_v.weight"), DType::kQ8_0);  // the first rule that fits
  EXPECT_EQ(TypeIn(report, "blk.1.attn_q.weight"), DType::kQ5_0);
  EXPECT_EQ(TypeIn(report, "blk.3.ffn_down_exps.weight"), DType::kQ4_K);
  EXPECT_EQ(TypeIn(report, "blk.1.attn_norm.weight"), DType::kF32);
  EXPECT_EQ(TypeIn(report, "output.weight"), DType::kF16);
  EXPECT_EQ(TypeIn(report, "token_embd.weight"), DType::kQ4_K);

  EXPECT_THAT(report.warnings, ::testing::IsEmpty());
  request.choices.rules.push_back(ParseTensorTypeRule("atn_v=q8_0").value());
  EXPECT_THAT(PlanQuantize(request)->warnings, ::testing::ElementsAre(HasSubstr("--tensor-type atn_v")));
  // The choices are those that can be written.
  for (const char* type : {"q9", "iq1_m", "i32"}) {
    const std::string error = ParseTensorTypeRule(std::string("a=") + type).status().message();
    EXPECT_THAT(error, HasSubstr("Q4_K, "));
    EXPECT_THAT(error, ::testing::Not(HasSubstr("I64")));
  }

  request.choices.rules = {ParseTensorTypeRule("ffn_up=q6_k").value()};
  EXPECT_THAT(PlanQuantize(request).status().message(), HasSubstr("288"));
}

TEST_F(QuantizeTest, WhatWasQuantisedStaysUnlessAsked) {
  WriteModel(SmallModel());
  ASSERT_TRUE(Quantize(Request("q8_0"), nullptr).ok());
  std::filesystem::rename(Path("out.gguf"), Path("in.gguf"));
  QuantizeRequest request = Request("q4_0");
  EXPECT_THAT(Quantize(request, nullptr).status().message(), HasSubstr("--allow-requantize"));
  EXPECT_FALSE(FileExists(Path("out.gguf")));
  request.allow_requantize = true;
  EXPECT_TRUE(Quantize(request, nullptr).ok());
  // The same type is a copy.
  const QuantizeRequest copy = Request("q8_0");
  ASSERT_TRUE(Quantize(copy, nullptr).ok());
  const auto in = GgufFile::Open(copy.in).value(), out = GgufFile::Open(copy.out).value();
  EXPECT_EQ(BytesOf(*in, "blk.4.attn_q.weight"), BytesOf(*out, "blk.4.attn_q.weight"));
}

TEST_F(QuantizeTest, NothingIsLeftOfWhatFails) {
  WriteModel(SmallModel(), std::numeric_limits<float>::quiet_NaN());
  QuantizeRequest request = Request("q4_k_s");
  Status status = Quantize(request, nullptr).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("blk.7.ffn_down_exps.weight"));
  status = Quantize(request, [](int64_t, int64_t) { return false; }).status();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  int64_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1);

  request.out = folder_ + "/./in.gguf";
  EXPECT_THAT(Quantize(request, nullptr).status().message(), HasSubstr("that is read"));
}

TEST(QuantizeRecipeTest, BadWordsNameTheChoices) {
  EXPECT_THAT(FindQuantizeRecipe("q4_k_x").status().message(), HasSubstr("Q4_K_M"));
  EXPECT_THAT(ParseTensorTypeRule("attn_v").status().message(), HasSubstr("REGEX=TYPE"));
  EXPECT_THAT(ParseTensorTypeRule("attn_v=iq1_m").status().message(), HasSubstr("IQ1_M"));
  EXPECT_THAT(ParseTensorTypeRule("attn_v=q9").status().message(), HasSubstr("q9"));
  EXPECT_EQ(ParseTensorTypeRule("attn_(v=q8_0").status().code(), StatusCode::kInvalidArgument);
}

// --- Importance. ---

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// The older file: one matrix for attn_q, four for the experts; two calls each.
std::string BinaryImportance(const std::vector<float>& q, const std::vector<float>& experts) {
  std::string out;
  Put<int32_t>(&out, 2);
  const auto entry = [&](const std::string& name, const std::vector<float>& values) {
    Put<int32_t>(&out, static_cast<int32_t>(name.size()));
    out += name;
    Put<int32_t>(&out, 2);
    Put<int32_t>(&out, static_cast<int32_t>(values.size()));
    for (const float value : values) Put<float>(&out, value * 2);
  };
  entry("blk.1.attn_q.weight", q);
  entry("blk.1.ffn_down_exps.weight", experts);
  Put<int32_t>(&out, 7);
  Put<int32_t>(&out, 5);
  return out + "a.txt";
}

TEST_F(QuantizeTest, ImportanceOfBothForms) {
  WriteModel(SmallModel());
  std::vector<float> q(kHidden), experts(4 * 512);
  for (size_t i = 0; i < q.size(); ++i) q[i] = i % 5 == 0 ? 100.0f : 1.0f;
  for (size_t i = 0; i < experts.size(); ++i) experts[i] = i % 512 < 128 * (i / 512 + 1) ? 40.0f : 0.5f;
  ASSERT_TRUE(WriteFileAtomically(Path("m.dat"), BinaryImportance(q, experts)).ok());
  GgufWriter writer;
  writer.SetString("general.type", "imatrix");
  writer.SetU32("imatrix.chunk_count", 7);
  writer.SetStrings("imatrix.datasets", {"a.txt"});
  const int64_t counts_q[] = {1, 1}, sums_q[] = {1, kHidden}, counts_e[] = {4, 1}, sums_e[] = {4, 512};
  ASSERT_TRUE(writer.AddTensor("blk.1.attn_q.weight.in_sum2", DType::kF32, sums_q).ok());
  ASSERT_TRUE(writer.AddTensor("blk.1.attn_q.weight.counts", DType::kF32, counts_q).ok());
  ASSERT_TRUE(writer.AddTensor("blk.1.ffn_down_exps.weight.in_sum2", DType::kF32, sums_e).ok());
  ASSERT_TRUE(writer.AddTensor("blk.1.ffn_down_exps.weight.counts", DType::kF32, counts_e).ok());
  ASSERT_TRUE(writer
                  .Write(Path("m.gguf"),
                         [&](const GgufTensor& tensor, ByteSink& sink) {
                           std::vector<float> values(static_cast<size_t>(tensor.bytes / 4), 3.0f);  // counts
                           if (tensor.name.ends_with("in_sum2")) {
                             values = tensor.name.find("attn_q") != std::string::npos ? q : experts;
                             for (float& value : values) value *= 3;
                           }
                           return sink.Append(std::as_bytes(std::span(values)));
                         })
                  .ok());

  const ImportanceMatrix old = ReadImportanceMatrix(Path("m.dat")).value(),
                         current = ReadImportanceMatrix(Path("m.gguf")).value();
  for (const ImportanceMatrix* matrix : {&old, &current}) {
    EXPECT_EQ(matrix->num_chunks, 7);
    EXPECT_EQ(matrix->dataset, "a.txt");
    ASSERT_EQ(matrix->values.size(), 2u);
    EXPECT_EQ(matrix->values.at("blk.1.attn_q.weight"), q);
    EXPECT_EQ(matrix->values.at("blk.1.ffn_down_exps.weight"), experts);
  }

  QuantizeRequest request = Request("q4_k_m");
  request.importance = Path("m.gguf");
  const auto report = Quantize(request, nullptr);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto file = GgufFile::Open(request.out).value();
  EXPECT_EQ(file->String("quantize.imatrix.file").value(), "m.gguf");
  EXPECT_EQ(file->Int("quantize.imatrix.entries_count", 0, 100).value(), 2);
  // Each expert is encoded with its own weights.
  const std::vector<float> values = ValuesOf({"blk.1.ffn_down_exps.weight", {4, 32, 512}});
  std::vector<std::byte> want;
  for (int64_t row = 0; row < 4 * 32; ++row) {
    std::vector<std::byte> bytes(static_cast<size_t>(DTypeBytes(DType::kQ4_K, 512)));
    FindQuantFormat(DType::kQ4_K)
        ->encode_weighted(values.data() + row * 512, experts.data() + row / 32 * 512, bytes.data(), 512);
    want.insert(want.end(), bytes.begin(), bytes.end());
  }
  EXPECT_EQ(BytesOf(*file, "blk.1.ffn_down_exps.weight"), want);

  // Of another model: the columns do not fit.
  ASSERT_TRUE(WriteFileAtomically(Path("m.dat"), BinaryImportance({1, 2, 3}, experts)).ok());
  request.importance = Path("m.dat");
  EXPECT_THAT(PlanQuantize(request).status().message(), HasSubstr("another model"));
}

TEST_F(QuantizeTest, BrokenImportanceIsAnError) {
  const std::string whole = BinaryImportance({1, 2, 3, 4}, {5, 6});
  for (size_t size = 0; size + 13 < whole.size(); ++size) {
    ASSERT_TRUE(WriteFileAtomically(Path("m.dat"), whole.substr(0, size)).ok());
    EXPECT_FALSE(ReadImportanceMatrix(Path("m.dat")).ok()) << size;
  }
  ASSERT_TRUE(WriteFileAtomically(Path("m.dat"), BinaryImportance({1, -2}, {5, 6})).ok());
  EXPECT_THAT(ReadImportanceMatrix(Path("m.dat")).status().message(), HasSubstr("at least 0"));
  EXPECT_EQ(ReadImportanceMatrix(Path("none")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace cachalot
