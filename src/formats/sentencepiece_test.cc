#include "formats/sentencepiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace cachalot {
namespace {

using ::testing::HasSubstr;

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string Number(uint32_t field, uint64_t value) {
  return Varint(field << 3) + Varint(value);
}
std::string Bytes(uint32_t field, const std::string& bytes) {
  return Varint(field << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string Float(uint32_t field, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return Varint(field << 3 | 5) + std::string(reinterpret_cast<const char*>(&bits), 4);
}
std::string Piece(const std::string& text, float score, uint64_t kind = 1) {
  return Bytes(1, Bytes(1, text) + Float(2, score) + Number(3, kind));
}

Result<SentencePieceModel> Parse(const std::string& bytes) {
  return ParseSentencePiece(std::as_bytes(std::span(bytes)), "m");
}

std::string SmallModel() {
  const std::string trainer = Number(3, 2) + Number(35, 1) + Number(41, 2) + Number(42, 77) +
                              Number(43, std::numeric_limits<uint64_t>::max()) + Bytes(7, "no matter");
  const std::string normalizer = Bytes(1, "identity") + Number(4, 0);
  return Piece("<unk>", 0, 2) + Piece("a", -1.5f) + Piece("<s>", 0, 3) + Bytes(2, trainer) +
         Bytes(3, normalizer) + Bytes(4, "self test");
}

TEST(SentencePieceTest, ReadsWhatEncodingNeeds) {
  const SentencePieceModel model = Parse(SmallModel()).value();
  ASSERT_EQ(model.pieces.size(), 3u);
  EXPECT_EQ(model.pieces[1].text, "a");
  EXPECT_EQ(model.pieces[1].score, -1.5f);
  EXPECT_EQ(model.pieces[2].kind, SentencePieceModel::Kind::kControl);
  EXPECT_EQ(model.algorithm, SentencePieceModel::Algorithm::kBpe);
  EXPECT_TRUE(model.byte_fallback);
  EXPECT_EQ(model.unk_id, 0);
  EXPECT_EQ(model.bos_id, 2);
  EXPECT_EQ(model.eos_id, -1);  // 77 is no piece
  EXPECT_EQ(model.pad_id, -1);
  EXPECT_TRUE(model.add_dummy_prefix);
  EXPECT_FALSE(model.remove_extra_whitespaces);
  EXPECT_EQ(model.charsmap, "");
}

TEST(SentencePieceTest, BrokenFilesAreErrors) {
  EXPECT_THAT(Parse("").status().message(), HasSubstr("no pieces"));
  EXPECT_THAT(Parse(Bytes(1, Float(2, std::numeric_limits<float>::infinity()))).status().message(),
              HasSubstr("inf"));
  EXPECT_THAT(Parse(Piece("x", 0, 9)).status().message(), HasSubstr("kind 9"));
  EXPECT_THAT(Parse(Piece("x", 0) + Bytes(2, Number(3, 8))).status().message(), HasSubstr("type 8"));
  EXPECT_EQ(Parse(Varint(1 << 3 | 2) + Varint(UINT64_MAX)).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(Parse(std::string(20, '\xff')).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(Parse(Varint(9 << 3 | 3)).status().code(), StatusCode::kCorrupt);  // a group
  // Every beginning, and every byte changed: an error or a model, never a crash.
  const std::string whole = SmallModel();
  for (size_t size = 0; size < whole.size(); ++size) (void)Parse(whole.substr(0, size)).ok();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {0x01, 0x07, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ change);
      (void)Parse(changed).ok();
    }
  }
}

}  // namespace
}  // namespace cachalot
