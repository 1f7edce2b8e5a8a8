// What SafetensorsFolder reads, that every kind of malformation is refused with a message that names file and
// tensor, and round trips through SafetensorsWriter. Malformed files are built byte by byte.
#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/fault.h"
#include "formats/safetensors_writer.h"

namespace cachalot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Raw(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), 8);
  out += header;
  out.append(data_bytes, 'x');
  return out;
}

Result<std::shared_ptr<const SafetensorsFolder>> ParseRaw(std::string_view bytes) {
  return SafetensorsFolder::Parse(std::as_bytes(std::span(bytes)), "m.safetensors");
}

std::string ErrorOf(std::string_view header, size_t data_bytes = 8) {
  return ParseRaw(Raw(header, data_bytes)).status().ToString();
}

TEST(Safetensors, ReadsEveryTypeInTheOrderOfTheData) {
  std::string header = R"({"__metadata__": {"format": "pt"})";
  int64_t offset = 0;
  const std::pair<const char*, int> types[] = {{"F64", 8},     {"F32", 4},     {"F16", 2}, {"BF16", 2},
                                               {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},  {"U8", 1},
                                               {"I16", 2},     {"I32", 4},     {"I64", 8}, {"BOOL", 1}};
  for (const auto& [name, bytes] : types) {
    header += fmt::format(R"(, "t.{}": {{"dtype": "{}", "shape": [3, 5], "data_offsets": [{}, {}]}})", name,
                          name, offset, offset + 15 * bytes);
    offset += 15 * bytes;
  }
  header += "}   ";
  const std::string bytes = Raw(header, static_cast<size_t>(offset));
  auto parsed = ParseRaw(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  const auto& tensors = (*parsed)->tensors();
  ASSERT_EQ(tensors.size(), std::size(types));
  int64_t expected = 8 + static_cast<int64_t>(header.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_STREQ(DTypeName(tensors[i].dtype), types[i].first);
    EXPECT_THAT(tensors[i].dims, ElementsAre(3, 5));
    EXPECT_EQ(tensors[i].offset, expected);  // odd ones too
    EXPECT_EQ(tensors[i].bytes, 15 * types[i].second);
    expected += tensors[i].bytes;
    EXPECT_EQ((*parsed)->Find(tensors[i].name), &tensors[i]);
  }
  EXPECT_EQ((*parsed)->Find("none"), nullptr);
  EXPECT_EQ((*parsed)->tensor_bytes(), offset);
  EXPECT_EQ((*parsed)->total_bytes(), static_cast<int64_t>(bytes.size()));
}

TEST(Safetensors, ReadsScalarsAndEmptyTensors) {
  EXPECT_EQ(ErrorOf("{}", 0), "ok");
  auto parsed = ParseRaw(Raw(R"({"b": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
      "a": {"dtype": "F32", "shape": [7, 0], "data_offsets": [4, 4]},
      "c": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                             8));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_TRUE((*parsed)->Find("b")->dims.empty());
  EXPECT_EQ((*parsed)->Find("a")->bytes, 0);
}

TEST(Safetensors, RefusesABadHeaderLength) {
  EXPECT_EQ(
      ParseRaw("abc").status().ToString(),
      "corrupt: m.safetensors: header length: the file ends at byte 3, inside a field of 8 bytes at byte 0");
  for (const uint64_t length : {uint64_t{3}, uint64_t{100'000'000'000}, UINT64_MAX}) {
    std::string bytes(reinterpret_cast<const char*>(&length), 8);
    bytes += "{}";
    EXPECT_EQ(
        ParseRaw(bytes).status().ToString(),
        fmt::format(
            "corrupt: m.safetensors: header length = {}, must be at most 104857600 and the 2 bytes that "
            "follow",
            length));
  }
  EXPECT_THAT(ErrorOf(""), HasSubstr("m.safetensors: header: no valid JSON at byte"));
  EXPECT_THAT(ErrorOf("{\"a\": "), HasSubstr("m.safetensors: header: no valid JSON at byte"));
  EXPECT_EQ(ErrorOf("[]"), "corrupt: m.safetensors: header: holds array, not an object");
  EXPECT_EQ(ErrorOf(std::string(9, '[')), "corrupt: m.safetensors: header: JSON nested more than 8 deep");
  EXPECT_EQ(ErrorOf(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                        "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})"),
            "corrupt: m.safetensors: header: key 'a' is given twice");
}

TEST(Safetensors, RefusesBadTensors) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return ErrorOf(
        fmt::format(R"({{"t": {{"dtype": {}, "shape": {}, "data_offsets": {}}}}})", dtype, shape, offsets));
  };
  EXPECT_EQ(one("\"F32\"", "[2]", "[0, 8]"), "ok");
  EXPECT_EQ(ErrorOf(R"({"t": 3})"), "corrupt: m.safetensors: tensor 't': must be an object");
  EXPECT_EQ(ErrorOf(R"({"t": {}})"), "corrupt: m.safetensors: tensor 't': dtype must be a string");
  EXPECT_EQ(one("3", "[2]", "[0, 8]"), "corrupt: m.safetensors: tensor 't': dtype must be a string");
  EXPECT_EQ(
      one("\"F4\"", "[2]", "[0, 8]"),
      "unsupported: m.safetensors: tensor 't': dtype = \"F4\": must be one of F64, F32, F16, BF16, F8_E4M3, "
      "F8_E5M2, I8, U8, I16, I32, I64, BOOL");
  for (const char* shape : {"3", "\"a\"", "null", "[1, 1, 1, 1, 1, 1, 1, 1, 1]"}) {
    EXPECT_EQ(one("\"F32\"", shape, "[0, 8]"),
              "corrupt: m.safetensors: tensor 't': shape must be a list of at most 8 dimensions");
  }
  for (const char* shape : {"[-1]", "[1.5]", "[\"2\"]", "[[2]]", "[18446744073709551615]"}) {
    EXPECT_THAT(one("\"F32\"", shape, "[0, 8]"), HasSubstr("must be sizes")) << shape;
  }
  EXPECT_EQ(
      one("\"F32\"", "[4294967296, 4294967296]", "[0, 8]"),
      "corrupt: m.safetensors: tensor 't': shape = [4294967296, 4294967296]: the number of bytes overflows");
  for (const char* offsets :
       {"3", "[0]", "[0, 8, 9]", "[8, 0]", "[-8, 0]", "[0.0, 8.0]", "[0, \"8\"]", "null"}) {
    EXPECT_EQ(one("\"F32\"", "[2]", offsets),
              "corrupt: m.safetensors: tensor 't': data_offsets must be [begin, end]")
        << offsets;
  }
  EXPECT_EQ(
      one("\"F32\"", "[3]", "[0, 8]"),
      "corrupt: m.safetensors: tensor 't': data_offsets = [0, 8] are 8 bytes, but shape [3] of F32 takes 12");
  EXPECT_EQ(one("\"F32\"", "[1]", "[4, 8]"),
            "corrupt: m.safetensors: tensor 't': data_offsets begin at 4, after a hole behind the tensor "
            "before, which "
            "ends at 0");
  EXPECT_EQ(one("\"F32\"", "[4]", "[0, 16]"),
            "corrupt: m.safetensors: tensor 't': data_offsets end at 16, but the file has 8 bytes of data "
            "(cut short?)");
  EXPECT_EQ(one("\"F32\"", "[1]", "[0, 4]"),
            "corrupt: m.safetensors: 8 bytes of data, but the tensors cover 4");
  EXPECT_EQ(ErrorOf(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                        "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})"),
            "corrupt: m.safetensors: tensor 'b': data_offsets begin at 4, inside the tensor before, which "
            "ends at 8");
  EXPECT_EQ(ErrorOf(R"({"t\n\u0000": 3})"),
            "corrupt: m.safetensors: tensor 't\\x0a\\x00': must be an object");
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole = Raw(R"({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 8);
  for (size_t size = 0; size < whole.size(); ++size) {
    const Status status = ParseRaw(std::string_view(whole).substr(0, size)).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << size;
    EXPECT_THAT(status.message(), HasSubstr("m.safetensors: "));
  }
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(::testing::TempDir()) /
           (std::string("cachalot_st_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    const std::vector<std::pair<DType, std::vector<int64_t>>> tensors = {
        {DType::kBool, {3}},    {DType::kF32, {10, 20}},    {DType::kFP8E4M3, {7, 3}},
        {DType::kBF16, {5, 5}}, {DType::kF32, {400, 1000}}, {DType::kI64, {}},
        {DType::kF16, {0, 4}},
    };
    for (const auto& [dtype, dims] : tensors) {
      const Status status = writer_.AddTensor(fmt::format("t{}", writer_.tensors().size()), dtype, dims);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }

  static std::byte PatternAt(const std::string& name, size_t i) {
    return static_cast<std::byte>(i * 7 + name.back());
  }
  static Status Fill(const SafetensorsTensor& tensor, ByteSink& sink) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = PatternAt(tensor.name, i);
    const size_t half = bytes.size() / 2;
    RETURN_IF_ERROR(sink.Append(std::span(bytes).first(half)));
    return sink.Append(std::span(bytes).subspan(half));
  }
  void ExpectContent(const SafetensorsFolder& folder) const {
    ASSERT_EQ(folder.tensors().size(), writer_.tensors().size());
    for (const auto& wanted : writer_.tensors()) {
      const SafetensorsTensor* tensor = folder.Find(wanted.name);
      ASSERT_NE(tensor, nullptr) << wanted.name;
      EXPECT_EQ(tensor->dtype, wanted.dtype);
      EXPECT_EQ(tensor->dims, wanted.dims);
      EXPECT_EQ(tensor->offset % GetDTypeInfo(tensor->dtype).block_bytes, 0) << tensor->name;
      std::vector<std::byte> bytes(static_cast<size_t>(tensor->bytes));
      ASSERT_TRUE(folder.files()[static_cast<size_t>(tensor->file_idx)]->ReadAt(tensor->offset, bytes).ok());
      for (size_t i = 0; i < bytes.size(); ++i)
        ASSERT_EQ(bytes[i], PatternAt(tensor->name, i)) << tensor->name;
    }
  }
  std::string OpenError() const { return SafetensorsFolder::Open(dir_.string()).status().ToString(); }

  std::filesystem::path dir_;
  SafetensorsWriter writer_;
};

TEST_F(SafetensorsFileTest, RoundTripsOneFile) {
  ASSERT_TRUE(writer_.WriteFile(Path("a.safetensors"), Fill).ok());
  auto file = SafetensorsFolder::OpenFile(Path("a.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ExpectContent(**file);

  ASSERT_TRUE(writer_.WriteFolder(dir_.string(), 1 << 30, Fill).ok());
  EXPECT_FALSE(FileExists(Path("model.safetensors.index.json")));
  auto folder = SafetensorsFolder::Open(dir_.string());
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  ExpectContent(**folder);
}

TEST_F(SafetensorsFileTest, RoundTripsShards) {
  const Status status = writer_.WriteFolder(dir_.string(), 1000, Fill);
  ASSERT_TRUE(status.ok()) << status.ToString();
  auto folder = SafetensorsFolder::Open(dir_.string());
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  EXPECT_EQ((*folder)->files().size(), 3u);  // the large tensor has a file to itself
  EXPECT_EQ((*folder)->path(), dir_.string());
  ExpectContent(**folder);
  const auto index = nlohmann::json::parse(*ReadTextFile(Path("model.safetensors.index.json"), 1 << 20));
  EXPECT_EQ(index["metadata"]["total_size"], (*folder)->tensor_bytes());

  EXPECT_EQ(writer_.WriteFolder(dir_.string(), 1 << 30, Fill).ToString(),
            "invalid_argument: " + Path("model.safetensors.index.json") +
                ": is in the way of the model to be written: remove it first");
}

TEST_F(SafetensorsFileTest, WriterRefusesWhatAReaderWould) {
  const auto error = [&](const std::string& name, DType dtype, std::vector<int64_t> dims) {
    return writer_.AddTensor(name, dtype, dims).ToString();
  };
  EXPECT_EQ(error("t0", DType::kF32, {1}), "invalid_argument: tensor 't0': added twice");
  for (const char* name : {"", "__metadata__", "\xff"}) {
    EXPECT_THAT(error(name, DType::kF32, {1}),
                HasSubstr("a name must be UTF-8, not empty and not __metadata__"));
  }
  EXPECT_EQ(error("q", DType::kQ4_0, {32}), "invalid_argument: tensor 'q': safetensors has no type Q4_0");
  EXPECT_EQ(error("q", DType::kF32, {-1}),
            "invalid_argument: tensor 'q': dimension -1 is negative or too large");
  EXPECT_THAT(error("q", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}), HasSubstr("too large"));
  EXPECT_EQ(error("q", DType::kF32, std::vector<int64_t>(9, 1)),
            "invalid_argument: tensor 'q': 9 dimensions, the limit is 8");
}

TEST_F(SafetensorsFileTest, AFailedWriteLeavesNothing) {
  {
    ScopedFault fault("file.write");
    EXPECT_EQ(writer_.WriteFile(Path("a.safetensors"), Fill).code(), StatusCode::kInternal);
  }
  const auto nothing = [](const SafetensorsTensor&, ByteSink&) { return Status::Ok(); };
  EXPECT_THAT(writer_.WriteFile(Path("a.safetensors"), nothing).message(),
              HasSubstr("a.safetensors: tensor 't5': 0 bytes were given, 8 belong there"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(SafetensorsFileTest, RefusesABrokenFolder) {
  EXPECT_EQ(OpenError(), "not_found: " + dir_.string() +
                             ": neither model.safetensors nor model.safetensors.index.json is there");
  const std::string index = Path("model.safetensors.index.json");
  const auto with_index = [&](std::string_view text) {
    EXPECT_TRUE(WriteFileAtomically(index, text).ok());
    return OpenError();
  };
  EXPECT_THAT(with_index("{"), HasSubstr(index + ": no valid JSON"));
  EXPECT_EQ(with_index("[]"), "corrupt: " + index + ": weight_map must be an object");
  EXPECT_EQ(with_index(R"({"weight_map": []})"), "corrupt: " + index + ": weight_map must be an object");
  for (const char* shard : {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "x.bin",
                            "x\\\\y.safetensors", "x\\u0000.safetensors"}) {
    EXPECT_THAT(with_index(fmt::format(R"({{"weight_map": {{"t": "{}"}}}})", shard)),
                HasSubstr("must be the name of a .safetensors file beside the index"))
        << shard;
  }
  EXPECT_THAT(with_index(R"({"weight_map": {"t": 3}})"), HasSubstr("weight_map: 't' = 3: must be the name"));
  EXPECT_EQ(with_index(R"({"weight_map": {"t": "gone.safetensors"}})"),
            "not_found: " + Path("gone.safetensors") + ": no such file");

  ASSERT_TRUE(writer_.WriteFile(Path("a.safetensors"), Fill).ok());
  EXPECT_EQ(
      with_index(R"({"weight_map": {"t1": "a.safetensors", "no": "a.safetensors"}})"),
      "corrupt: " + Path("a.safetensors") + ": tensor 'no', which " + index + " places here, is missing");
  EXPECT_EQ(with_index(R"({"weight_map": {"t1": "a.safetensors"}})"), "ok");
  EXPECT_EQ((*SafetensorsFolder::Open(dir_.string()))->tensors().size(), 1u);  // the index decides
}

TEST(SafetensorsReal, OpensTheSharedModels) {
  const std::string shared = std::string(CACHALOT_SOURCE_DIR) + "/../shared";
  if (!IsDirectory(shared + "/golden")) GTEST_SKIP() << shared << " is not there";
  for (const auto& entry : std::filesystem::directory_iterator(shared + "/golden")) {
    if (!entry.is_directory()) continue;
    auto model = SafetensorsFolder::Open(entry.path().string());
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    EXPECT_GT((*model)->tensors().size(), 10u);
    auto golden = SafetensorsFolder::OpenFile((entry.path() / "golden.safetensors").string());
    ASSERT_TRUE(golden.ok()) << golden.status().ToString();
  }
  auto sharded = SafetensorsFolder::Open(shared + "/models/tiny-deepseek-v3");
  ASSERT_TRUE(sharded.ok()) << sharded.status().ToString();
  EXPECT_EQ((*sharded)->files().size(), 4u);
  EXPECT_EQ((*sharded)->Find("model.embed_tokens.weight")->dims, (std::vector<int64_t>{8192, 256}));
}

}  // namespace
}  // namespace cachalot
