// Mutator: makes new inputs from seeds, the same ones for the same seed number on every machine. It knows no
// format: what it does well is turning lengths, counts and offsets into nasty ones, cutting, repeating and
// mixing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cachalot::fuzz {

class Mutator {
 public:
  // max_bytes bounds what is made. Without seeds it starts from the empty input.
  Mutator(std::vector<std::string> seeds, uint64_t seed_number, size_t max_bytes);

  // A seed, changed one to eight times.
  std::string Next();

 private:
  uint64_t Random();
  size_t Below(size_t bound);  // bound > 0
  const std::string& AnySeed() { return seeds_[Below(seeds_.size())]; }
  void Mutate(std::string* input);

  void FlipBit(std::string* input);
  void SetByte(std::string* input);
  void InsertBytes(std::string* input);
  void EraseBlock(std::string* input);
  void Truncate(std::string* input);
  void RepeatBlock(std::string* input);
  void SwapBlocks(std::string* input);
  void SetInteger(std::string* input);
  void AddToInteger(std::string* input);
  void InsertToken(std::string* input);
  void ReplaceNumber(std::string* input);
  void Splice(std::string* input);

  std::vector<std::string> seeds_;
  uint64_t state_;
  size_t max_bytes_;
};

}  // namespace cachalot::fuzz
