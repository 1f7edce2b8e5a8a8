#include "fuzz/mutator.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace cachalot::fuzz {
namespace {

// Where counts, lengths and shifts break: around powers of two and the ends of the types.
constexpr uint64_t kIntegers[] = {0,
                                  1,
                                  2,
                                  3,
                                  7,
                                  8,
                                  13,
                                  16,
                                  31,
                                  32,
                                  64,
                                  127,
                                  128,
                                  255,
                                  256,
                                  511,
                                  512,
                                  1000,
                                  1024,
                                  4096,
                                  32767,
                                  32768,
                                  65535,
                                  65536,
                                  1u << 20,
                                  1u << 24,
                                  0x7fffffff,
                                  0x80000000,
                                  0xfffffffe,
                                  0xffffffff,
                                  1ull << 32,
                                  1ull << 33,
                                  1ull << 48,
                                  1ull << 53,
                                  1ull << 60,
                                  1ull << 61,
                                  1ull << 62,
                                  (1ull << 62) + 1,
                                  (1ull << 63) - 1,
                                  1ull << 63,
                                  0xffffffffffffffe0ull,
                                  0xfffffffffffffffeull,
                                  0xffffffffffffffffull};

// Text that parsers of JSON, templates and vocabularies stumble over.
constexpr std::string_view kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "\\",
                                        "\\u0000",
                                        "\\ud800",
                                        "null",
                                        "true",
                                        "false",
                                        "-1",
                                        "0",
                                        "1e999",
                                        "-0.0",
                                        "1e-400",
                                        "NaN",
                                        "Infinity",
                                        "[[[[[[",
                                        "{\"",
                                        "\"a\":",
                                        "{}",
                                        "[]",
                                        "\n",
                                        "\t",
                                        "\xef\xbb\xbf",
                                        "\xff",
                                        "\xc3\xa4",
                                        "\xe2\x82\xac",
                                        "\xf0\x9f\x98\x80",
                                        "\xed\xa0\x80",
                                        "../",
                                        "%s",
                                        std::string_view("\0", 1),
                                        "18446744073709551616",
                                        "9223372036854775808",
                                        "0.1",
                                        "_",
                                        "{{",
                                        "}}",
                                        "{%",
                                        "%}"};

constexpr std::string_view kNumbers[] = {"0",
                                         "-1",
                                         "1",
                                         "2147483648",
                                         "4294967296",
                                         "9007199254740993",
                                         "9223372036854775807",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "1.5",
                                         "1e308",
                                         "1e-320",
                                         "-9223372036854775808"};

}  // namespace

Mutator::Mutator(std::vector<std::string> seeds, uint64_t seed_number, size_t max_bytes)
    : seeds_(std::move(seeds)), state_(seed_number), max_bytes_(max_bytes) {
  if (seeds_.empty()) seeds_.emplace_back();
}

// SplitMix64: the whole state is one number, every seed number is a good one.
uint64_t Mutator::Random() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

size_t Mutator::Below(size_t bound) {
  return static_cast<size_t>(Random() % bound);
}

std::string Mutator::Next() {
  std::string input = AnySeed();
  size_t changes = 1;  // few changes are the most likely: many at once rarely get past the first check
  while (changes < 8 && Below(2) == 0) ++changes;
  for (size_t i = 0; i < changes; ++i) Mutate(&input);
  if (input.size() > max_bytes_) input.resize(max_bytes_);
  return input;
}

void Mutator::Mutate(std::string* input) {
  if (input->empty()) return InsertBytes(input);
  switch (Below(14)) {
    case 0:
      return FlipBit(input);
    case 1:
      return SetByte(input);
    case 2:
      return InsertBytes(input);
    case 3:
      return EraseBlock(input);
    case 4:
      return Truncate(input);
    case 5:
      return RepeatBlock(input);
    case 6:
      return SwapBlocks(input);
    case 7:
    case 8:
      return SetInteger(input);
    case 9:
      return AddToInteger(input);
    case 10:
      return InsertToken(input);
    case 11:
    case 12:
      return ReplaceNumber(input);
    default:
      return Splice(input);
  }
}

void Mutator::FlipBit(std::string* input) {
  (*input)[Below(input->size())] ^= static_cast<char>(1u << Below(8));
}

void Mutator::SetByte(std::string* input) {
  (*input)[Below(input->size())] = static_cast<char>(Random());
}

void Mutator::InsertBytes(std::string* input) {
  std::string bytes(1 + Below(16), static_cast<char>(Random()));
  if (Below(2) == 0) {
    for (char& byte : bytes) byte = static_cast<char>(Random());
  }
  input->insert(Below(input->size() + 1), bytes);
}

void Mutator::EraseBlock(std::string* input) {
  const size_t start = Below(input->size());
  const size_t limit = Below(2) == 0 ? std::min<size_t>(input->size() - start, 16) : input->size() - start;
  input->erase(start, 1 + Below(limit));
}

void Mutator::Truncate(std::string* input) {
  input->resize(Below(input->size()));
}

// Once as a rule; sometimes so often that depth and size limits are met.
void Mutator::RepeatBlock(std::string* input) {
  const size_t start = Below(input->size());
  const std::string block = input->substr(start, 1 + Below(std::min<size_t>(input->size() - start, 64)));
  size_t times = Below(8) == 0 ? 1 + Below(1000) : 1 + Below(3);
  times = std::min(times, max_bytes_ / block.size());
  std::string repeated;
  for (size_t i = 0; i < times; ++i) repeated += block;
  input->insert(start, repeated);
}

void Mutator::SwapBlocks(std::string* input) {
  const size_t length = 1 + Below(std::min<size_t>(input->size(), 32));
  const size_t a = Below(input->size() - length + 1);
  const size_t b = Below(input->size() - length + 1);
  const std::string block = input->substr(a, length);
  input->replace(a, length, input->substr(b, length));
  input->replace(b, length, block);
}

void Mutator::SetInteger(std::string* input) {
  const size_t width = size_t{1} << Below(4);
  if (input->size() < width) return;
  const uint64_t value = kIntegers[Below(std::size(kIntegers))];
  std::memcpy(input->data() + Below(input->size() - width + 1), &value, width);
}

void Mutator::AddToInteger(std::string* input) {
  const size_t width = size_t{1} << Below(4);
  if (input->size() < width) return;
  char* place = input->data() + Below(input->size() - width + 1);
  uint64_t value = 0;
  std::memcpy(&value, place, width);
  value += Below(65) - 32;
  std::memcpy(place, &value, width);
}

void Mutator::InsertToken(std::string* input) {
  input->insert(Below(input->size() + 1), kTokens[Below(std::size(kTokens))]);
}

// A run of digits somewhere behind a random place becomes another number.
void Mutator::ReplaceNumber(std::string* input) {
  const size_t start = input->find_first_of("0123456789", Below(input->size()));
  if (start == input->npos) return InsertToken(input);
  const size_t end = std::min(input->find_first_not_of("0123456789.eE+-", start), input->size());
  input->replace(start, end - start, kNumbers[Below(std::size(kNumbers))]);
}

// The head of this one and the tail of another, or a piece of another put in.
void Mutator::Splice(std::string* input) {
  const std::string& other = AnySeed();
  if (other.empty()) return;
  const size_t from = Below(other.size());
  if (Below(2) == 0) {
    input->resize(Below(input->size()));
    *input += other.substr(from);
  } else {
    input->insert(Below(input->size() + 1), other.substr(from, 1 + Below(64)));
  }
}

}  // namespace cachalot::fuzz
