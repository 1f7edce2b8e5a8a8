#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

constexpr int kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<std::string, 256> text;
  std::array<int16_t, kAlphabetEnd> byte;

  Alphabet() {
    byte.fill(-1);
    int next_substitute = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int code_point = printable ? b : next_substitute++;
      AppendUtf8(code_point, &text[static_cast<size_t>(b)]);
      byte[static_cast<size_t>(code_point)] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& GetAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string_view ByteToAlphabet(uint8_t byte) {
  return GetAlphabet().text[byte];
}

int AlphabetToByte(int32_t code_point) {
  return code_point >= 0 && code_point < kAlphabetEnd ? GetAlphabet().byte[static_cast<size_t>(code_point)]
                                                      : -1;
}

bool AppendAlphabetBytes(std::string_view text, std::string* out) {
  const size_t old_size = out->size();
  const Alphabet& alphabet = GetAlphabet();
  for (size_t pos = 0; pos < text.size(); ++pos) {
    // Every character of the alphabet has one or two bytes.
    int code_point = static_cast<uint8_t>(text[pos]);
    if (code_point >= 0xC2 && code_point <= 0xC5 && pos + 1 < text.size()) {
      code_point = (code_point & 0x1F) << 6 | (static_cast<uint8_t>(text[++pos]) & 0x3F);
    } else if (code_point >= 0x80) {
      code_point = 0;
    }
    const int byte = code_point < kAlphabetEnd ? alphabet.byte[static_cast<size_t>(code_point)] : -1;
    if (byte < 0) {
      out->resize(old_size);
      return false;
    }
    out->push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace cachalot
