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

std::string_view ByteToAlphabet(uint8_t byte) { return GetAlphabet().text[byte]; }

int AlphabetToByte(int32_t code_point) {
  return code_point >= 0 && code_point < kAlphabetEnd ? GetAlphabet().byte[static_cast<size_t>(code_point)] : -1;
}

bool AppendAlphabetBytes(std::string_view text, std::string* out) {
  const size_t old_size = out->size();
  const Alphabet& alphabet = GetAlphabet();
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = NextUtf8Char(text.substr(pos));
    const int byte = c.code_point >= 0 && c.code_point < kAlphabetEnd
                         ? alphabet.byte[static_cast<size_t>(c.code_point)]
                         : -1;
    if (byte < 0) {
      out->resize(old_size);
      return false;
    }
    out->push_back(static_cast<char>(byte));
    pos += static_cast<size_t>(c.size);
  }
  return true;
}

}  // namespace cachalot
