// JsonPrefix: checks a JSON object as it arrives byte by byte, and says what would complete it. Invariant: what was accepted,
// followed by Rest(), is a JSON object (of text that is UTF-8), with at most kMaxDepth brackets in each other and numbers that
// a double holds.
#pragma once

#include <cstdint>
#include <string>

namespace cachalot {

class JsonPrefix {
 public:
  static constexpr size_t kMaxDepth = 64;
  static constexpr int kMaxNumberBytes = 64;
  static constexpr int kMaxPowerDigits = 2;

  // False: no object goes on like that; the byte is not taken.
  bool Push(char c);
  bool complete() const { return state_ == State::kDone; }
  // Any character may come.
  bool in_string() const { return state_ == State::kString && !low_due_; }
  // The shortest end of it.
  std::string Rest() const;

 private:
  enum class State : uint8_t {
    kStart,        // the outermost {
    kFirstKey,     // behind {: a key or }
    kKey,          // behind a comma in an object
    kColon,
    kValue,
    kFirstElement, // behind [: a value or ]
    kNext,         // behind a value: a comma or the bracket's end
    kString,
    kEscape,       // behind a backslash
    kHex,          // of \u
    kLiteral,
    kMinus, kZero, kDigits, kPoint, kFraction, kExponent, kSign, kPower,  // of a number, behind the one named
    kDone,
  };

  bool BeginValue(char c);
  bool PushHex(char c);
  bool PushNumber(char c);
  void EndValue() { state_ = open_.empty() ? State::kDone : State::kNext; }
  bool Close(char bracket);

  State state_ = State::kStart;
  std::string open_;             // the closing brackets that are still to come, last first
  bool is_key_ = false;          // the string
  int hex_left_ = 0;
  unsigned hex_ = 0;             // the digits so far
  bool low_due_ = false;         // behind the first half of a surrogate pair: \uDC00 to \uDFFF must follow
  int number_bytes_ = 0;
  int power_digits_ = 0;
  const char* literal_ = "";     // what is left of it
};

}  // namespace cachalot
