// GgufFile and GgufWriter on disk: round trips, split files, faults, and the real files that lie in
// ../shared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "base/fault.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/gguf_writer.h"

namespace cachalot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GgufFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(::testing::TempDir()) /
           (std::string("cachalot_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  size_t NumFiles() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir_), {}));
  }

  std::filesystem::path dir_;
};

// Every byte of a tensor is the low byte of its place in the tensor plus the length of its name.
Status FillPattern(const GgufTensor& tensor, ByteSink& sink) {
  for (int64_t i = 0; i < tensor.bytes;) {
    std::vector<std::byte> piece(static_cast<size_t>(std::min<int64_t>(tensor.bytes - i, 1000)));
    for (auto& byte : piece) byte = static_cast<std::byte>(static_cast<size_t>(i++) + tensor.name.size());
    RETURN_IF_ERROR(sink.Append(piece));
  }
  return Status::Ok();
}

void ExpectPattern(const GgufFile& gguf) {
  for (const auto& tensor : gguf.tensors()) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
    ASSERT_TRUE(gguf.files()[static_cast<size_t>(tensor.file_idx)]->ReadAt(tensor.offset, bytes).ok());
    for (size_t i = 0; i < bytes.size(); ++i) {
      ASSERT_EQ(bytes[i], static_cast<std::byte>(i + tensor.name.size())) << tensor.name << " at " << i;
    }
  }
}

void Add(GgufWriter* writer, const std::string& name, DType dtype, std::vector<int64_t> dims) {
  const Status status = writer->AddTensor(name, dtype, dims);
  ASSERT_TRUE(status.ok()) << status.ToString();
}

TEST_F(GgufFileTest, WriterRoundTrip) {
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  writer.SetU8("u8", 255);
  writer.SetI8("i8", -1);
  writer.SetU16("u16", 65535);
  writer.SetI16("i16", -2);
  writer.SetU32("u32", UINT32_MAX);
  writer.SetI32("i32", INT32_MIN);
  writer.SetU64("u64", uint64_t{1} << 40);
  writer.SetI64("i64", INT64_MIN);
  writer.SetF32("f32", 0.1f);
  writer.SetF64("f64", 0.1);
  writer.SetBool("bool", true);
  writer.SetStrings("strings", {"", "ä", std::string(300, 'x'), std::string("a\0b", 3)});
  writer.SetI32s("i32s", std::vector<int32_t>{1, -2, 3});
  writer.SetF32s("f32s", std::vector<float>{0.25f, -1e30f});
  writer.SetU32("general.alignment", 64);  // left out
  writer.SetU8("u8", 7);                   // replaced
  Add(&writer, "token_embd.weight", DType::kQ8_0, {100, 64});
  Add(&writer, "odd", DType::kF32, {3});
  Add(&writer, "four", DType::kBF16, {2, 3, 5, 7});
  Add(&writer, "large", DType::kF32, {300, 1000});  // larger than the writer's buffer
  const std::string path = Path("a.gguf");
  Status status = writer.Write(path, FillPattern);
  ASSERT_TRUE(status.ok()) << status.ToString();

  auto opened = GgufFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const GgufFile& gguf = **opened;
  EXPECT_EQ(gguf.version(), 3);
  EXPECT_EQ(gguf.alignment(), 32);
  EXPECT_EQ(gguf.entries().size(), 15u);
  EXPECT_EQ(*gguf.String("general.architecture"), "llama");
  EXPECT_EQ(*gguf.Int("u8", 0, 255), 7);
  EXPECT_EQ(*gguf.Int("i8", -128, 127), -1);
  EXPECT_EQ(*gguf.Int("u16", 0, 65535), 65535);
  EXPECT_EQ(*gguf.Int("i16", -9, 9), -2);
  EXPECT_EQ(*gguf.Int("u32", 0, UINT32_MAX), UINT32_MAX);
  EXPECT_EQ(*gguf.Int("i32", INT32_MIN, 0), INT32_MIN);
  EXPECT_EQ(*gguf.Int("u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(*gguf.Int("i64", INT64_MIN, 0), INT64_MIN);
  EXPECT_EQ(static_cast<float>(*gguf.Float("f32")), 0.1f);
  EXPECT_EQ(*gguf.Float("f64"), 0.1);
  EXPECT_TRUE(*gguf.Bool("bool"));
  EXPECT_THAT(*gguf.Strings("strings"), ElementsAre("", "ä", std::string(300, 'x'), std::string("a\0b", 3)));
  EXPECT_THAT(*gguf.Ints("i32s"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*gguf.Floats("f32s"), ElementsAre(0.25f, -1e30f));
  ASSERT_EQ(gguf.tensors().size(), 4u);
  EXPECT_EQ(gguf.FindTensor("token_embd.weight")->bytes, 100 * 2 * 34);
  EXPECT_THAT(gguf.FindTensor("four")->dims, ElementsAre(2, 3, 5, 7));
  EXPECT_EQ(gguf.files()[0]->size() % 32, 0);
  EXPECT_EQ(gguf.total_bytes(), gguf.files()[0]->size());
  ExpectPattern(gguf);

  // Copied entry by entry, the file is the same again.
  GgufWriter copy;
  for (const auto& [key, value] : gguf.entries()) copy.Set(key, value);
  for (const auto& tensor : gguf.tensors()) {
    Add(&copy, tensor.name, tensor.dtype, {tensor.dims.begin(), tensor.dims.begin() + tensor.num_dims});
  }
  ASSERT_TRUE(copy.Write(Path("b.gguf"), FillPattern).ok());
  EXPECT_EQ(*ReadTextFile(Path("b.gguf"), 1 << 24), *ReadTextFile(path, 1 << 24));
}

TEST_F(GgufFileTest, WriterRefusesWhatAReaderWould) {
  GgufWriter writer;
  const auto error = [&](const std::string& name, DType dtype, std::vector<int64_t> dims) {
    return writer.AddTensor(name, dtype, dims).ToString();
  };
  EXPECT_EQ(error("a", DType::kF32, {2, 2}), "ok");
  EXPECT_EQ(error("a", DType::kF32, {2, 2}), "invalid_argument: tensor 'a': added twice");
  EXPECT_EQ(error("", DType::kF32, {2}), "invalid_argument: tensor '': a name must have 1..512 bytes");
  EXPECT_EQ(error("b", DType::kFP8E4M3, {2}), "invalid_argument: tensor 'b': GGUF has no type F8_E4M3");
  EXPECT_EQ(error("b", DType::kF32, {}), "invalid_argument: tensor 'b': 0 dimensions, must be 1..4");
  EXPECT_EQ(error("b", DType::kF32, {1, 1, 1, 1, 1}),
            "invalid_argument: tensor 'b': 5 dimensions, must be 1..4");
  EXPECT_EQ(error("b", DType::kF32, {0}),
            "invalid_argument: tensor 'b': dimension 0 is not positive or too large");
  EXPECT_THAT(error("b", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}), HasSubstr("too large"));
  EXPECT_THAT(error("b", DType::kF32, {int64_t{1} << 61}), HasSubstr("overflow"));
  EXPECT_EQ(error("b", DType::kQ4_0, {2, 33}),
            "invalid_argument: tensor 'b': rows of 33 values are no multiple of Q4_0's block of 32");
  EXPECT_EQ(writer.tensors().size(), 1u);
}

TEST_F(GgufFileTest, AFailedWriteLeavesTheOldFile) {
  GgufWriter writer;
  Add(&writer, "a", DType::kF32, {1 << 20});
  const std::string path = Path("a.gguf");
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  {
    ScopedFault fault("file.write", /*skip=*/1);
    EXPECT_EQ(writer.Write(path, FillPattern).code(), StatusCode::kInternal);
  }
  EXPECT_EQ(writer.Write(path, [](const GgufTensor&, ByteSink&) { return Cancelled("stop"); }).ToString(),
            "cancelled: " + path + ": tensor 'a': stop");
  EXPECT_EQ(
      writer.Write(path, [](const GgufTensor&, ByteSink& sink) { return sink.Append("xyz"); }).message(),
      path + ": tensor 'a': 3 bytes were given, 4194304 belong there");
  const auto too_many = [](const GgufTensor& tensor, ByteSink& sink) {
    return sink.Append(std::string(static_cast<size_t>(tensor.bytes + 1), 'x'));
  };
  EXPECT_EQ(writer.Write(path, too_many).message(),
            path + ": tensor 'a': 4194305 bytes were given, only 4194304 belong there");
  EXPECT_EQ(*ReadTextFile(path, 100), "old");
  EXPECT_EQ(NumFiles(), 1u);
  EXPECT_FALSE(writer.Write(Path("no/such/folder/a.gguf"), FillPattern).ok());
}

class GgufSplitTest : public GgufFileTest {
 protected:
  static std::string Name(int number, int count) {
    return fmt::format("m-{:05}-of-{:05}.gguf", number, count);
  }

  struct Part {
    int no;
    int count;
    int tensors_count;
    std::vector<std::string> tensors;
  };
  void WritePart(const std::string& name, const Part& part) const {
    GgufWriter writer;
    if (part.no == 0) writer.SetString("general.name", "whole");
    writer.SetU16("split.no", static_cast<uint16_t>(part.no));
    writer.SetU16("split.count", static_cast<uint16_t>(part.count));
    writer.SetI32("split.tensors.count", part.tensors_count);
    for (const auto& tensor : part.tensors) Add(&writer, tensor, DType::kF16, {2, 8});
    ASSERT_TRUE(writer.Write(Path(name), FillPattern).ok());
  }
  void WriteAll() const {
    WritePart(Name(1, 3), {0, 3, 4, {"a"}});
    WritePart(Name(2, 3), {1, 3, 4, {"bb", "ccc"}});
    WritePart(Name(3, 3), {2, 3, 4, {"dddd"}});
  }
};

TEST_F(GgufSplitTest, AnyPartOpensTheWhole) {
  WriteAll();
  for (int number = 1; number <= 3; ++number) {
    auto opened = GgufFile::Open(Path(Name(number, 3)));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    const GgufFile& gguf = **opened;
    EXPECT_EQ(gguf.files().size(), 3u);
    EXPECT_EQ(gguf.path(), Path(Name(1, 3)));
    EXPECT_EQ(*gguf.String("general.name"), "whole");
    ASSERT_EQ(gguf.tensors().size(), 4u);
    EXPECT_EQ(gguf.FindTensor("a")->file_idx, 0);
    EXPECT_EQ(gguf.FindTensor("ccc")->file_idx, 1);
    EXPECT_EQ(gguf.FindTensor("dddd")->file_idx, 2);
    EXPECT_EQ(gguf.tensor_bytes(), 4 * 32);
    int64_t total = 0;
    for (const auto& file : gguf.files()) total += file->size();
    EXPECT_EQ(gguf.total_bytes(), total);
    ExpectPattern(gguf);
  }
}

TEST_F(GgufSplitTest, RefusesASetThatDoesNotFit) {
  const auto error = [&](int number) { return GgufFile::Open(Path(Name(number, 3))).status().ToString(); };
  WriteAll();
  std::filesystem::remove(Path(Name(2, 3)));
  EXPECT_EQ(error(1), "not_found: " + Path(Name(2, 3)) + ": no such file");

  WritePart(Name(2, 3), {2, 3, 4, {"bb", "ccc"}});
  EXPECT_EQ(error(3),
            "invalid_argument: " + Path(Name(2, 3)) + ": split.no = 2 (u16): must be an integer in 1..1");
  WritePart(Name(2, 3), {1, 2, 4, {"bb", "ccc"}});
  EXPECT_EQ(error(1),
            "invalid_argument: " + Path(Name(2, 3)) + ": split.count = 2 (u16): must be an integer in 3..3");
  WritePart(Name(2, 3), {1, 3, 4, {"bb"}});
  EXPECT_EQ(error(1),
            "corrupt: " + Path(Name(1, 3)) + ": split.tensors.count = 4, but the 3 files hold 3 tensors");
  WritePart(Name(2, 3), {1, 3, 4, {"bb", "a"}});
  EXPECT_EQ(error(1), "corrupt: " + Path(Name(1, 3)) + ": tensor 'a' is given twice");
  ASSERT_TRUE(WriteFileAtomically(Path(Name(2, 3)), "GGUF").ok());
  EXPECT_THAT(error(1), HasSubstr(Name(2, 3) + ": version: the file ends"));

  WritePart("renamed.gguf", {0, 3, 4, {"a"}});
  EXPECT_THAT(GgufFile::Open(Path("renamed.gguf")).status().ToString(),
              HasSubstr("renamed.gguf: split.count = 3, so the file must be named …-NNNNN-of-00003.gguf"));
  WritePart(Name(1, 2), {0, 3, 4, {"a"}});
  EXPECT_THAT(GgufFile::Open(Path(Name(1, 2))).status().ToString(),
              HasSubstr("split.count = 3, so the file must"));
  WritePart(Name(4, 3), {0, 3, 4, {"a"}});
  EXPECT_FALSE(GgufFile::Open(Path(Name(4, 3))).ok());
  WritePart("one.gguf", {0, 1, 1, {"a"}});
  EXPECT_TRUE(GgufFile::Open(Path("one.gguf")).ok());
}

TEST_F(GgufFileTest, AFailingDiskIsAStatus) {
  GgufWriter writer;
  Add(&writer, "a", DType::kF32, {4});
  ASSERT_TRUE(writer.Write(Path("a.gguf"), FillPattern).ok());
  for (int64_t skip = 0; skip < 2; ++skip) {  // the first field, and the window behind it
    ScopedFault fault("file.read", skip);
    const Status status = GgufFile::Open(Path("a.gguf")).status();
    EXPECT_EQ(status.code(), StatusCode::kInternal) << skip;
    EXPECT_THAT(status.message(), HasSubstr("a.gguf"));
  }
}

TEST_F(GgufFileTest, ALargeVocabularyOpensQuickly) {
  GgufWriter writer;
  std::vector<std::string> tokens;
  for (int i = 0; i < 300'000; ++i) tokens.push_back(fmt::format("token {} of the vocabulary", i));
  writer.SetStrings("tokenizer.ggml.tokens", tokens);
  ASSERT_TRUE(writer.Write(Path("a.gguf"), FillPattern).ok());
  const auto start = std::chrono::steady_clock::now();
  auto opened = GgufFile::Open(Path("a.gguf"));
  const auto took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(*(*opened)->Strings("tokenizer.ggml.tokens"), tokens);
  RecordProperty("milliseconds",
                 static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
}

TEST(GgufReal, OpensTheSharedVocabularies) {
  const std::string folder = std::string(CACHALOT_SOURCE_DIR) + "/../shared/tokenizers/gguf";
  if (!IsDirectory(folder)) GTEST_SKIP() << folder << " is not there";
  for (const auto& [name, num_tokens] : {std::pair{"gpt-2.gguf", 50257},
                                         {"llama-spm.gguf", 32000},
                                         {"deepseek-llm.gguf", 102400},
                                         {"deepseek-coder.gguf", 32256}}) {
    auto opened = GgufFile::Open(folder + "/" + name);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    const auto* tokens = (*opened)->Strings("tokenizer.ggml.tokens");
    ASSERT_NE(tokens, nullptr) << name;
    EXPECT_EQ(tokens->size(), static_cast<size_t>(num_tokens)) << name;
    EXPECT_EQ((*opened)->Ints("tokenizer.ggml.token_type", 0, 10)->size(), tokens->size());
    EXPECT_TRUE((*opened)->tensors().empty());
  }
}

}  // namespace
}  // namespace cachalot
