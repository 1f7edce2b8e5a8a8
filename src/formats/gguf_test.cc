// What GgufFile reads, and that every kind of malformation is refused with a message that names file and
// field. Files are built byte by byte here, so that the reader is not tested against its own writer.
#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/gguf_header.h"

namespace cachalot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RawGguf {
 public:
  explicit RawGguf(uint64_t num_tensors = 0, uint64_t num_keys = 0, uint32_t version = 3) {
    U32(kGgufMagic).U32(version).U64(num_tensors).U64(num_keys);
  }
  template <typename T>
  RawGguf& Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  RawGguf& U32(uint32_t value) { return Put(value); }
  RawGguf& U64(uint64_t value) { return Put(value); }
  RawGguf& Str(std::string_view text) {
    U64(text.size());
    bytes_ += text;
    return *this;
  }
  RawGguf& Key(std::string_view key, GgufType type) { return Str(key).U32(static_cast<uint32_t>(type)); }
  RawGguf& ArrayKey(std::string_view key, GgufType element, uint64_t count) {
    return Key(key, GgufType::kArray).U32(static_cast<uint32_t>(element)).U64(count);
  }
  RawGguf& Tensor(std::string_view name, std::vector<uint64_t> ne, uint32_t type, uint64_t offset) {
    Str(name).U32(static_cast<uint32_t>(ne.size()));
    for (const uint64_t n : ne) U64(n);
    return U32(type).U64(offset);
  }
  // Padding to the alignment and `size` bytes of tensor data.
  RawGguf& Data(size_t size, size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + size);
    return *this;
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }
  std::string& text() { return bytes_; }

  Result<std::shared_ptr<const GgufFile>> Parse() const { return GgufFile::Parse(bytes(), "m.gguf"); }
  std::string Error() const { return Parse().status().ToString(); }

 private:
  std::string bytes_;
};

RawGguf OneTensor(std::vector<uint64_t> ne, uint32_t type, uint64_t offset, size_t data) {
  RawGguf raw(1, 0);
  raw.Tensor("t", std::move(ne), type, offset).Data(data);
  return raw;
}

RawGguf EveryType(uint32_t version) {
  RawGguf raw(2, 18, version);
  raw.Key("u8", GgufType::kU8).Put<uint8_t>(200);
  raw.Key("i8", GgufType::kI8).Put<int8_t>(-100);
  raw.Key("u16", GgufType::kU16).Put<uint16_t>(60000);
  raw.Key("i16", GgufType::kI16).Put<int16_t>(-30000);
  raw.Key("u32", GgufType::kU32).Put<uint32_t>(4'000'000'000u);
  raw.Key("i32", GgufType::kI32).Put<int32_t>(-2'000'000'000);
  raw.Key("u64", GgufType::kU64).Put<uint64_t>(UINT64_MAX);
  raw.Key("i64", GgufType::kI64).Put<int64_t>(INT64_MIN);
  raw.Key("f32", GgufType::kF32).Put<float>(1e-5f);
  raw.Key("f64", GgufType::kF64).Put<double>(0.1);
  raw.Key("inf", GgufType::kF32).Put<float>(std::numeric_limits<float>::infinity());
  raw.Key("bool", GgufType::kBool).Put<uint8_t>(1);
  raw.Key("string", GgufType::kString).Str("a\nb\xff");
  raw.ArrayKey("strings", GgufType::kString, 3).Str("").Str("x").Str(std::string(1000, 'y'));
  raw.ArrayKey("i32s", GgufType::kI32, 3).Put<int32_t>(-1).Put<int32_t>(2).Put<int32_t>(3);
  raw.ArrayKey("f32s", GgufType::kF32, 2).Put<float>(0.5f).Put<float>(-2.0f);
  raw.ArrayKey("u64s", GgufType::kU64, 2).Put<uint64_t>(1).Put<uint64_t>(UINT64_MAX);
  raw.ArrayKey("bools", GgufType::kBool, 2).Put<uint8_t>(0).Put<uint8_t>(1);
  raw.Tensor("q", {64, 3, 2}, /*Q4_0*/ 2, 0).Tensor("f", {5}, /*F32*/ 0, 224).Data(224 + 20);
  return raw;
}

TEST(Gguf, ReadsEveryTypeInVersions2And3) {
  for (const uint32_t version : {2u, 3u}) {
    auto parsed = EveryType(version).Parse();
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    const GgufFile& gguf = **parsed;
    EXPECT_EQ(gguf.version(), static_cast<int>(version));
    EXPECT_EQ(*gguf.Int("u8", 0, 255), 200);
    EXPECT_EQ(*gguf.Int("i8", -128, 127), -100);
    EXPECT_EQ(*gguf.Int("u16", 0, 1 << 20), 60000);
    EXPECT_EQ(*gguf.Int("i16", -40000, 0), -30000);
    EXPECT_EQ(*gguf.Int("u32", 0, INT64_MAX), 4'000'000'000);
    EXPECT_EQ(*gguf.Int("i32", INT64_MIN, 0), -2'000'000'000);
    EXPECT_EQ(*gguf.Int("i64", INT64_MIN, INT64_MAX), INT64_MIN);
    EXPECT_EQ(static_cast<float>(*gguf.Float("f32")), 1e-5f);
    EXPECT_EQ(*gguf.Float("f64"), 0.1);
    EXPECT_EQ(*gguf.Float("u8"), 200.0);
    EXPECT_TRUE(*gguf.Bool("bool"));
    EXPECT_EQ(*gguf.String("string"), "a\nb\xff");
    EXPECT_THAT(*gguf.Strings("strings"), ElementsAre("", "x", std::string(1000, 'y')));
    EXPECT_THAT(*gguf.Ints("i32s"), ElementsAre(-1, 2, 3));
    EXPECT_THAT(*gguf.Floats("f32s"), ElementsAre(0.5f, -2.0f));

    ASSERT_EQ(gguf.tensors().size(), 2u);
    const GgufTensor& q = *gguf.FindTensor("q");
    EXPECT_EQ(q.dtype, DType::kQ4_0);
    EXPECT_EQ(q.num_dims, 3);
    EXPECT_THAT(q.dims, ElementsAre(2, 3, 64, 0));
    EXPECT_EQ(q.bytes, 6 * 2 * 18);
    EXPECT_EQ(q.offset % 32, 0);
    EXPECT_EQ(gguf.FindTensor("f")->offset, q.offset + 224);
    EXPECT_EQ(gguf.FindTensor("none"), nullptr);
    EXPECT_EQ(gguf.tensor_bytes(), 216 + 20);
    EXPECT_EQ(gguf.total_bytes(), q.offset + 244);
  }
}

TEST(Gguf, GettersRefuseWithFileKeyValueAndLimits) {
  auto parsed = EveryType(3).Parse();
  ASSERT_TRUE(parsed.ok());
  const GgufFile& gguf = **parsed;
  EXPECT_EQ(gguf.Int("gone", 1, 9).status().ToString(),
            "not_found: m.gguf: key 'gone' is missing, it must be an integer in 1..9");
  EXPECT_EQ(gguf.Int("u8", 1, 64).status().ToString(),
            "invalid_argument: m.gguf: u8 = 200 (u8): must be an integer in 1..64");
  EXPECT_EQ(gguf.Int("u64", 0, INT64_MAX).status().message(),
            "m.gguf: u64 = 18446744073709551615 (u64): must be an integer of at least 0");
  EXPECT_FALSE(gguf.Int("f32", 0, 1).ok());
  EXPECT_FALSE(gguf.Int("bool", 0, 1).ok());
  EXPECT_FALSE(gguf.Int("string", 0, 1).ok());
  EXPECT_EQ(gguf.Float("inf").status().message(), "m.gguf: inf = inf (f32): must be a finite number");
  EXPECT_EQ(gguf.Float("f64", 1, 2).status().message(), "m.gguf: f64 = 0.1 (f64): must be a number in 1..2");
  EXPECT_EQ(gguf.Bool("u8").status().message(), "m.gguf: u8 = 200 (u8): must be a bool");
  EXPECT_EQ(
      gguf.String("strings").status().message(),
      "m.gguf: strings = [\"\", \"x\", \"" + std::string(60, 'y') + "…\"] (string[3]): must be a string");
  EXPECT_EQ(gguf.Ints("i32s", 0, 9).status().message(), "m.gguf: i32s[0] = -1: must be an integer in 0..9");
  EXPECT_EQ(gguf.Ints("u64s", 0, 9).status().message(),
            "m.gguf: u64s[1] = 18446744073709551615: must be an integer in 0..9");
  EXPECT_FALSE(gguf.Ints("u64s").ok());
  EXPECT_FALSE(gguf.Ints("f32s").ok());
  EXPECT_FALSE(gguf.Ints("u8").ok());
  EXPECT_FALSE(gguf.Floats("bools").ok());
  EXPECT_FALSE(gguf.Floats("strings").ok());
  EXPECT_EQ(gguf.Strings("i32s"), nullptr);
  EXPECT_EQ(gguf.Strings("gone"), nullptr);
  EXPECT_EQ(*gguf.IntOr("gone", 5, 0, 9), 5);
  EXPECT_FALSE(gguf.IntOr("u8", 5, 0, 9).ok());
  EXPECT_EQ(*gguf.FloatOr("gone", 0.5), 0.5);
  EXPECT_EQ(*gguf.BoolOr("gone", true), true);
  EXPECT_EQ(*gguf.StringOr("gone", "d"), "d");
}

TEST(Gguf, IntPerLayerTakesOneOrMany) {
  auto parsed = EveryType(3).Parse();
  ASSERT_TRUE(parsed.ok());
  const GgufFile& gguf = **parsed;
  EXPECT_THAT(*gguf.IntPerLayer("u8", 3, 1, 255), ElementsAre(200, 200, 200));
  EXPECT_THAT(*gguf.IntPerLayer("i32s", 3, -1, 9), ElementsAre(-1, 2, 3));
  EXPECT_THAT(*gguf.IntPerLayer("i32s", 2, -1, 9), ElementsAre(-1, 2));
  EXPECT_EQ(gguf.IntPerLayer("i32s", 4, -1, 9).status().message(),
            "m.gguf: i32s has 3 values, one for each of 4 layers is needed");
  EXPECT_FALSE(gguf.IntPerLayer("i32s", 3, 0, 9).ok());
  EXPECT_EQ(gguf.IntPerLayer("gone", 3, 0, 9).status().code(), StatusCode::kNotFound);
}

TEST(Gguf, EntriesAreTextForPeople) {
  auto parsed = EveryType(3).Parse();
  ASSERT_TRUE(parsed.ok());
  std::string all;
  for (const auto& [key, value] : (*parsed)->entries())
    all += key + " " + value.TypeName() + " " + value.Text(12) + "|";
  EXPECT_EQ(all,
            "u8 u8 200|i8 i8 -100|u16 u16 60000|i16 i16 -30000|u32 u32 4000000000|i32 i32 -2000000000|"
            "u64 u64 18446744073709551615|i64 i64 -9223372036854775808|f32 f32 1e-05|f64 f64 0.1|inf f32 inf|"
            "bool bool true|string string a\\x0ab\\xff|strings string[3] [\"\", \"x\", \"yyyyyyyyyyyy…\"]|"
            "i32s i32[3] [-1, 2, 3]|f32s f32[2] [0.5, -2]|u64s u64[2] [1, 18446744073709551615]|"
            "bools bool[2] [false, true]|");
}

TEST(Gguf, KnowsEveryTensorTypeByName) {
  int num_known = 0;
  for (uint32_t type = 0; type < 64; ++type) {
    auto raw = OneTensor({256}, type, 0, 4096);
    auto parsed = raw.Parse();
    if (parsed.ok()) {
      ++num_known;
      EXPECT_EQ((*parsed)->tensors()[0].bytes, DTypeBytes((*parsed)->tensors()[0].dtype, 256));
    } else {
      EXPECT_EQ(parsed.status().code(), StatusCode::kUnsupported);
      EXPECT_THAT(parsed.status().message(), HasSubstr("m.gguf: tensor 't': t"));
    }
  }
  EXPECT_EQ(num_known, 34);
  EXPECT_EQ(OneTensor({256}, 31, 0, 4096).Error(),
            "unsupported: m.gguf: tensor 't': type Q4_0_4_4 (31) was withdrawn from GGUF");
  EXPECT_EQ(OneTensor({256}, 99, 0, 4096).Error(),
            "unsupported: m.gguf: tensor 't': tensor type number 99 is not one this version knows");
}

TEST(Gguf, RefusesWhatIsNoGguf) {
  EXPECT_EQ(GgufFile::Parse({}, "m.gguf").status().ToString(),
            "corrupt: m.gguf: magic: the file ends at byte 0, inside a field of 4 bytes at byte 0");
  RawGguf raw;
  raw.text()[0] = 'g';
  EXPECT_EQ(raw.Error(), "corrupt: m.gguf: magic is 0x46554767, not 'GGUF'");
  EXPECT_EQ(RawGguf(0, 0, 1).Error(), "unsupported: m.gguf: GGUF version 1, only 2 and 3 can be read");
  EXPECT_EQ(RawGguf(0, 0, 4).Error(), "unsupported: m.gguf: GGUF version 4, only 2 and 3 can be read");
  EXPECT_EQ(RawGguf(0, 0, 0).Error(), "unsupported: m.gguf: GGUF version 0, only 2 and 3 can be read");
  EXPECT_EQ(
      RawGguf(0, 0, 0x03000000).Error(),
      "unsupported: m.gguf: version 0x03000000: a big-endian GGUF file, only little-endian ones can be read");
  EXPECT_EQ(GgufFile::Open("/nonexistent.gguf").status().code(), StatusCode::kNotFound);
}

TEST(Gguf, RefusesEveryTruncation) {
  const RawGguf whole = EveryType(3);
  const auto bytes = whole.bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Status status = GgufFile::Parse(bytes.first(size), "m.gguf").status();
    ASSERT_FALSE(status.ok()) << size;
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("m.gguf: ")) << size;
  }
}

TEST(Gguf, RefusesAbsurdCountsBeforeAllocating) {
  for (const uint64_t count : {uint64_t{1} << 62, UINT64_MAX, uint64_t{1} << 32}) {
    EXPECT_EQ(RawGguf(0, count).Error(),
              fmt::format("corrupt: m.gguf: metadata_kv_count = {}, but only 0 bytes follow", count));
    EXPECT_EQ(RawGguf(count, 0).Error(),
              fmt::format("corrupt: m.gguf: tensor_count = {}, but only 0 bytes follow", count));
    EXPECT_EQ(RawGguf(0, 1).U64(count).Data(64).Error(),
              fmt::format("corrupt: m.gguf: key 0 length = {}, but only 64 bytes follow", count));
    EXPECT_EQ(RawGguf(0, 1).Key("k", GgufType::kString).U64(count).Data(64).Error(),
              fmt::format("corrupt: m.gguf: key 'k' length = {}, but only 83 bytes follow", count));
    EXPECT_EQ(RawGguf(0, 1).ArrayKey("k", GgufType::kString, count).Data(64).Error(),
              fmt::format("corrupt: m.gguf: key 'k' count = {}, but only 79 bytes follow", count));
    EXPECT_EQ(RawGguf(0, 1).ArrayKey("k", GgufType::kF64, count).Data(64).Error(),
              fmt::format("corrupt: m.gguf: key 'k' count = {}, but only 79 bytes follow", count));
    EXPECT_EQ(RawGguf(0, 1).ArrayKey("k", GgufType::kString, 1).U64(count).Data(64).Error(),
              fmt::format("corrupt: m.gguf: key 'k'[0]: a string of {} bytes, but only 71 follow", count));
    EXPECT_EQ(RawGguf(1, 0).U64(count).Data(64).Error(),
              fmt::format("corrupt: m.gguf: tensor 0 name length = {}, but only 64 bytes follow", count));
  }
  EXPECT_EQ(RawGguf(0, 1).U64(70'000).Data(70'000).Error(),
            "corrupt: m.gguf: key 0 length = 70000, the limit is 65535");
  EXPECT_EQ(RawGguf(1, 0).U64(513).Data(600).Error(),
            "corrupt: m.gguf: tensor 0 name length = 513, the limit is 512");
  EXPECT_EQ(RawGguf(0, 65537).Data(65537 * 14).Error(),
            "corrupt: m.gguf: metadata_kv_count = 65537, the limit is 65536");
}

TEST(Gguf, RefusesBadMetadata) {
  EXPECT_EQ(RawGguf(0, 1).Str("").Data(64).Error(), "corrupt: m.gguf: key 0 is empty");
  EXPECT_EQ(RawGguf(0, 1).Str("k").U32(13).U64(0).Error(),
            "corrupt: m.gguf: key 'k': value type 13, must be below 13");
  EXPECT_EQ(RawGguf(0, 1).Key("k", GgufType::kBool).Put<uint8_t>(2).Error(),
            "corrupt: m.gguf: key 'k' = 2: a bool must be 0 or 1");
  EXPECT_EQ(RawGguf(0, 1).ArrayKey("k", GgufType::kBool, 2).Put<uint8_t>(1).Put<uint8_t>(7).Error(),
            "corrupt: m.gguf: key 'k'[1] = 7: a bool must be 0 or 1");
  EXPECT_EQ(RawGguf(0, 1).ArrayKey("k", GgufType::kArray, 1).U32(0).U64(1).Data(8).Error(),
            "unsupported: m.gguf: key 'k': an array of arrays");
  RawGguf twice(0, 3);
  twice.Key("a", GgufType::kU8).Put<uint8_t>(1).Key("b", GgufType::kU8).Put<uint8_t>(1);
  twice.Key("a", GgufType::kU8).Put<uint8_t>(1);
  EXPECT_EQ(twice.Error(), "corrupt: m.gguf: key 'a' is given twice");
  EXPECT_EQ(RawGguf(0, 1).Str("a\nb\x80").U32(13).U64(0).Error(),
            "corrupt: m.gguf: key 'a\\x0ab\\x80': value type 13, must be below 13");
}

TEST(Gguf, BoundsTheMemoryForMetadata) {
  // 9 million empty strings: 72 MB of file would take 288 MB of memory.
  RawGguf raw(0, 1);
  raw.ArrayKey("k", GgufType::kString, 9'000'000).Data(72'000'000);
  EXPECT_EQ(raw.Error(), "corrupt: m.gguf: key 'k' count = 9000000, the limit is 8388608");
  // Below each single limit, but not in sum.
  RawGguf sum(0, 3);
  for (const char* key : {"a", "b", "c"}) {
    sum.ArrayKey(key, GgufType::kString, 4'000'000);
    sum.text().append(32'000'000, '\0');
  }
  EXPECT_EQ(sum.Error(), "corrupt: m.gguf: key 'c': the metadata takes more than 268435456 bytes");
}

TEST(Gguf, HonoursAndChecksTheAlignment) {
  const auto with_alignment = [](uint32_t alignment, uint64_t offset) {
    RawGguf raw(2, 1);
    raw.Key("general.alignment", GgufType::kU32).U32(alignment);
    raw.Tensor("a", {1}, 0, 0)
        .Tensor("b", {1}, 0, offset)
        .Data(offset + 4, alignment <= 4096 ? std::max(alignment, 1u) : 1);
    return raw;
  };
  for (const uint32_t alignment : {8u, 32u, 64u, 4096u}) {
    auto parsed = with_alignment(alignment, alignment).Parse();
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_EQ((*parsed)->alignment(), alignment);
    EXPECT_EQ((*parsed)->tensors()[0].offset % alignment, 0);
    EXPECT_EQ((*parsed)->tensors()[1].offset - (*parsed)->tensors()[0].offset, alignment);
  }
  EXPECT_EQ(with_alignment(64, 32).Error(),
            "corrupt: m.gguf: tensor 'b': offset 32 is no multiple of the alignment 64");
  for (const uint32_t alignment : {0u, 24u, 1u << 31}) {
    EXPECT_EQ(with_alignment(alignment, 0).Error(),
              fmt::format(
                  "corrupt: m.gguf: general.alignment = {} (u32): must be a power of two of at most 1048576",
                  alignment));
  }
  EXPECT_THAT(RawGguf(0, 1).Key("general.alignment", GgufType::kString).Str("32").Error(),
              HasSubstr("general.alignment = 32 (string): must be"));
}

TEST(Gguf, RefusesBadTensors) {
  EXPECT_EQ(OneTensor({}, 0, 0, 64).Error(), "corrupt: m.gguf: tensor 't': 0 dimensions, must be 1..4");
  EXPECT_EQ(OneTensor({1, 1, 1, 1, 1}, 0, 0, 64).Error(),
            "corrupt: m.gguf: tensor 't': 5 dimensions, must be 1..4");
  EXPECT_EQ(OneTensor({4, 0}, 0, 0, 64).Error(), "corrupt: m.gguf: tensor 't': dimension 0 is 0");
  EXPECT_EQ(OneTensor({uint64_t{1} << 63}, 0, 0, 64).Error(),
            "corrupt: m.gguf: tensor 't': dimension 0 is 9223372036854775808");
  EXPECT_EQ(OneTensor({1u << 31, 1u << 31, 1u << 31}, 0, 0, 64).Error(),
            "corrupt: m.gguf: tensor 't': the number of values overflows at dimension 0 of 2147483648");
  EXPECT_EQ(OneTensor({uint64_t{1} << 62}, 0, 0, 64).Error(),
            "corrupt: m.gguf: tensor 't': 4611686018427387904 values of F32 overflow");
  EXPECT_EQ(OneTensor({48, 2}, 2, 0, 64).Error(),
            "corrupt: m.gguf: tensor 't': rows of 48 values are no multiple of Q4_0's block of 32");
  EXPECT_EQ(OneTensor({4}, 0, 16, 64).Error(),
            "corrupt: m.gguf: tensor 't': offset 16 is no multiple of the alignment 32");
  EXPECT_EQ(OneTensor({4}, 0, UINT64_MAX - 31, 64).Error(),
            "corrupt: m.gguf: tensor 't': offset 18446744073709551584 is no multiple of the alignment 32");
  EXPECT_EQ(OneTensor({16}, 0, 32, 64).Error(),
            "corrupt: m.gguf: tensor 't': 64 bytes at offset 32 of the tensor data, which has 64 (file cut "
            "short?)");
  EXPECT_TRUE(OneTensor({8}, 0, 32, 64).Parse().ok());
  EXPECT_EQ(RawGguf(1, 0).Str("").Data(64).Error(), "corrupt: m.gguf: tensor 0 name is empty");
  EXPECT_EQ(RawGguf(2, 0).Tensor("t", {4}, 0, 0).Tensor("t", {4}, 0, 32).Data(64).Error(),
            "corrupt: m.gguf: tensor 't' is given twice");
  EXPECT_THAT(RawGguf(2, 0).Tensor("a", {12}, 0, 32).Tensor("b", {12}, 0, 0).Data(128).Error(),
              HasSubstr("corrupt: m.gguf: tensor 'b' (bytes 96..144) overlaps tensor 'a' (from byte 128)"));
  EXPECT_THAT(RawGguf(2, 0).Tensor("a", {4}, 0, 0).Tensor("b", {4}, 0, 0).Data(128).Error(),
              HasSubstr("overlaps"));
}

}  // namespace
}  // namespace cachalot
