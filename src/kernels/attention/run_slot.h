// Where a run of 16 tokens lies in shared memory: the planes' rows one behind the other as in the cache, but
// moved apart or about so that the lanes of a warp, reading as code_fragments.h says, meet each bank once.
// Index arithmetic alone, the same on the host, for the test.
#pragma once

#include "kernels/attention/code_fragments.h"

namespace cachalot {

inline constexpr int kPieceBytes = 16;               // that are copied at a time
inline constexpr int kCopyBytes = 32 * kPieceBytes;  // by a warp

enum class RowOrder {
  kPlain,
  kApart32,  // as many bytes between every four tokens
  kApart64,
  kOdd,    // pieces change places in pairs in every other row
  kFours,  // the four pieces of a row are turned by the row's number among the fours
};

template <int kRow, RowOrder kOrder>
struct PlaneSlot {
  static constexpr int kRowBytes = kRow;
  static constexpr int kApart = kOrder == RowOrder::kApart32 ? 32 : kOrder == RowOrder::kApart64 ? 64 : 0;
  static constexpr int kBytes = kRunTokens * kRow + kRunTokens / 4 * kApart;
  static constexpr int kPieces = kRunTokens * kRow / kPieceBytes;
  static constexpr int kCopies = (kPieces + 31) / 32;
  static_assert(kRow == 0 || kCopyBytes % kRow == 0);

  static CACHALOT_BOTH constexpr int At(int token, int byte) {
    if (kOrder == RowOrder::kOdd) byte ^= token % 2 * kPieceBytes;
    if (kOrder == RowOrder::kFours) byte ^= token / 4 * kPieceBytes;
    return token * kRow + token / 4 * kApart + byte;
  }
  // Where the piece goes that a lane copies first, and those behind it.
  static CACHALOT_BOTH constexpr int FirstCopy(int lane) {
    return At(lane * kPieceBytes / kRow, lane * kPieceBytes % kRow);
  }
  static CACHALOT_BOTH constexpr int Copy(int first, int copy) {
    if (kOrder == RowOrder::kFours) return (first ^ copy * 2 * kPieceBytes) + copy * kCopyBytes;
    return first + copy * (kCopyBytes + kCopyBytes / kRow / 4 * kApart);
  }
};

template <typename Key, typename Value, int kDim>
struct RunSlot {
  static constexpr RowOrder kMainOrder = Key::kRowBytes == 32                   ? RowOrder::kApart64
                                         : Key::kGrouped                        ? RowOrder::kFours
                                         : Key::kBytes && Key::kRowBytes == 128 ? RowOrder::kOdd
                                                                                : RowOrder::kPlain;
  using KeyMain = PlaneSlot<Key::kRowBytes, kMainOrder>;
  using KeyHigh = PlaneSlot<Key::kHighRowBytes == 0 ? 16 : Key::kHighRowBytes,
                            Key::kHighRowBytes == 32 ? RowOrder::kApart64 : RowOrder::kPlain>;
  using ValueMain = PlaneSlot<Value::kRowBytes, RowOrder::kApart32>;

  static constexpr int kKeyHigh = KeyMain::kBytes;
  static constexpr int kValueMain = kKeyHigh + (Key::kHighRowBytes == 0 ? 0 : KeyHigh::kBytes);
  static constexpr int kKeyScales = kValueMain + ValueMain::kBytes;
  static constexpr int kKeyScaleBytes = kRunTokens * 2 * Key::kGroups;
  static constexpr int kValueScales = kKeyScales + kKeyScaleBytes;
  static constexpr int kValueScaleBytes = kRunTokens * 2 * Value::kGroups;
  static constexpr int kBytes = kValueScales + kValueScaleBytes;
  static_assert(kBytes % kPieceBytes == 0);
};

}  // namespace cachalot
