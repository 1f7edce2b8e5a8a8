#include "formats/sentencepiece.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

namespace cachalot {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 24;
constexpr size_t kMaxPieceBytes = 1 << 16;

// One field of a message: a number (varint or fixed) or bytes.
struct Field {
  uint32_t number = 0;
  bool is_bytes = false;
  uint64_t value = 0;
  std::string_view bytes;
};

// The fields of a message in order. Invariant: nothing beyond the message is read, whatever its lengths say.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : bytes_(bytes) {}

  // False at the end, and after an error (then ok() is false).
  bool Next(Field* field) {
    if (!ok_ || at_ == bytes_.size()) return false;
    const uint64_t tag = Varint();
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) ok_ = false;
    *field = Field();
    field->number = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        field->value = Varint();
        break;
      case 1:
        field->value = Fixed<uint64_t>();
        break;
      case 2: {
        const uint64_t size = Varint();
        if (!ok_ || size > bytes_.size() - at_) return ok_ = false;
        field->is_bytes = true;
        field->bytes = bytes_.substr(at_, size);
        at_ += size;
        break;
      }
      case 5:
        field->value = Fixed<uint32_t>();
        break;
      default:  // groups went out of use before this format came into being
        ok_ = false;
    }
    return ok_;
  }
  bool ok() const { return ok_; }
  size_t position() const { return at_; }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) break;
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  template <typename T>
  T Fixed() {
    T value = 0;
    if (bytes_.size() - at_ < sizeof(T)) {
      ok_ = false;
      return 0;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

// A message within the file: `take` is called for each field. False when it is broken.
template <typename Take>
bool ForEachField(std::string_view bytes, Take&& take) {
  MessageReader in(bytes);
  Field field;
  while (in.Next(&field)) take(field);
  return in.ok();
}

int32_t IdOf(const Field& field) {
  return static_cast<int32_t>(static_cast<uint32_t>(field.value));
}

}  // namespace

Result<SentencePieceModel> ParseSentencePiece(std::span<const std::byte> bytes, const std::string& place) {
  SentencePieceModel model;
  MessageReader in({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  Field field;
  while (in.Next(&field)) {
    if (!field.is_bytes) continue;
    bool ok = true;
    uint64_t kind = 1, algorithm = static_cast<uint64_t>(model.algorithm);
    if (field.number == 1) {  // a piece
      SentencePieceModel::Piece piece;
      ok = ForEachField(field.bytes, [&](const Field& f) {
        if (f.number == 1 && f.is_bytes) piece.text = f.bytes;
        if (f.number == 2 && !f.is_bytes) piece.score = std::bit_cast<float>(static_cast<uint32_t>(f.value));
        if (f.number == 3 && !f.is_bytes) kind = f.value;
      });
      if (ok && (kind < 1 || kind > 6)) {
        return Corrupt("{}: piece {} is of kind {}, must be 1..6", place, model.pieces.size(), kind);
      }
      if (ok && !std::isfinite(piece.score)) {
        return Corrupt("{}: piece {} has the score {}, not a finite number", place, model.pieces.size(),
                       piece.score);
      }
      if (piece.text.size() > kMaxPieceBytes || model.pieces.size() == kMaxPieces) {
        return Corrupt("{}: piece {} of {} bytes, the limits are {} pieces of {} bytes", place,
                       model.pieces.size(), piece.text.size(), kMaxPieces, kMaxPieceBytes);
      }
      piece.kind = static_cast<SentencePieceModel::Kind>(kind);
      model.pieces.push_back(std::move(piece));
    } else if (field.number == 2) {  // how it was trained
      ok = ForEachField(field.bytes, [&](const Field& f) {
        if (f.is_bytes) return;
        if (f.number == 3) algorithm = f.value;
        if (f.number == 35) model.byte_fallback = f.value != 0;
        if (f.number == 40) model.unk_id = IdOf(f);
        if (f.number == 41) model.bos_id = IdOf(f);
        if (f.number == 42) model.eos_id = IdOf(f);
        if (f.number == 43) model.pad_id = IdOf(f);
      });
      if (algorithm < 1 || algorithm > 4) return Corrupt("{}: model type {}, must be 1..4", place, algorithm);
      model.algorithm = static_cast<SentencePieceModel::Algorithm>(algorithm);
    } else if (field.number == 3) {  // what is done to a text before
      ok = ForEachField(field.bytes, [&](const Field& f) {
        if (f.number == 2 && f.is_bytes) model.charsmap = f.bytes;
        if (f.number == 3 && !f.is_bytes) model.add_dummy_prefix = f.value != 0;
        if (f.number == 4 && !f.is_bytes) model.remove_extra_whitespaces = f.value != 0;
        if (f.number == 5 && !f.is_bytes) model.escape_whitespaces = f.value != 0;
      });
    }
    if (!ok)
      return Corrupt("{}: no SentencePiece model: field {} that ends at byte {} is broken", place,
                     field.number, in.position());
  }
  if (!in.ok()) return Corrupt("{}: no SentencePiece model: broken at byte {}", place, in.position());
  if (model.pieces.empty()) return Corrupt("{}: no SentencePiece model: it has no pieces", place);
  for (int32_t* id : {&model.unk_id, &model.bos_id, &model.eos_id, &model.pad_id}) {
    if (*id < 0 || *id >= static_cast<int64_t>(model.pieces.size())) *id = -1;
  }
  return model;
}

}  // namespace cachalot
