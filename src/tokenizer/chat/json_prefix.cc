#include "tokenizer/chat/json_prefix.h"

#include <cstring>

#include "tokenizer/chat/json_scanner.h"

namespace cachalot {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

bool JsonPrefix::Close(char bracket) {
  if (open_.empty() || open_.back() != bracket) return false;
  open_.pop_back();
  EndValue();
  return true;
}

bool JsonPrefix::BeginValue(char c) {
  switch (c) {
    case '{':
    case '[':
      if (open_.size() >= kMaxDepth) return false;
      open_.push_back(c == '{' ? '}' : ']');
      state_ = c == '{' ? State::kFirstKey : State::kFirstElement;
      return true;
    case '"':
      is_key_ = false;
      state_ = State::kString;
      return true;
    case 't':
    case 'f':
    case 'n':
      literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
      state_ = State::kLiteral;
      return true;
    case '-':
      number_bytes_ = 1;
      power_digits_ = 0;
      state_ = State::kMinus;
      return true;
    default:
      number_bytes_ = 1;
      power_digits_ = 0;
      if (!IsDigit(c)) return false;
      state_ = c == '0' ? State::kZero : State::kDigits;
      return true;
  }
}

// Whether the byte belongs to the number; where it does not, that must not end here (kMinus, kPoint, …).
bool JsonPrefix::PushNumber(char c) {
  const bool digit = IsDigit(c);
  const bool exponent = c == 'e' || c == 'E';
  State next = State::kDone;
  switch (state_) {
    case State::kMinus:
      if (digit) next = c == '0' ? State::kZero : State::kDigits;
      break;
    case State::kZero:
    case State::kDigits:
      if (digit && state_ == State::kDigits) next = State::kDigits;
      if (c == '.') next = State::kPoint;
      if (exponent) next = State::kExponent;
      break;
    case State::kPoint:
      if (digit) next = State::kFraction;
      break;
    case State::kFraction:
      if (digit) next = State::kFraction;
      if (exponent) next = State::kExponent;
      break;
    case State::kExponent:
      if (c == '+' || c == '-') next = State::kSign;
      [[fallthrough]];
    case State::kSign:
    case State::kPower:
      if (digit && power_digits_ < kMaxPowerDigits) next = State::kPower;
      break;
    default:
      break;
  }
  if (next == State::kDone || number_bytes_ == kMaxNumberBytes) return false;
  ++number_bytes_;
  power_digits_ += next == State::kPower ? 1 : 0;
  state_ = next;
  return true;
}

bool JsonPrefix::PushHex(char c) {
  if (!IsHex(c)) return false;
  const auto digit = static_cast<unsigned>(IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
  const unsigned hex = hex_ << 4 | digit;
  if (hex_left_ == 4 && low_due_ && hex != 0xd) return false;
  if (hex_left_ == 3 && (hex >= 0xdc && hex <= 0xdf) != low_due_) return false;
  hex_ = hex;
  if (--hex_left_ > 0) return true;
  low_due_ = hex >= 0xd800 && hex <= 0xdbff;
  state_ = State::kString;
  return true;
}

bool JsonPrefix::Push(char c) {
  switch (state_) {
    case State::kString:
      if (low_due_ && c != '\\') return false;
      if (c == '"') {
        if (is_key_) state_ = State::kColon;
        else EndValue();
      } else if (c == '\\') {
        state_ = State::kEscape;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        return false;
      }
      return true;
    case State::kEscape:
      if (c == 'u') {
        hex_left_ = 4;
        hex_ = 0;
        state_ = State::kHex;
        return true;
      }
      if (low_due_ || c == '\0' || std::strchr("\"\\/bfnrt", c) == nullptr) return false;
      state_ = State::kString;
      return true;
    case State::kHex:
      return PushHex(c);
    case State::kLiteral:
      if (*literal_ != c) return false;
      if (*++literal_ == '\0') EndValue();
      return true;
    case State::kMinus:
    case State::kPoint:
    case State::kExponent:
    case State::kSign:
      return PushNumber(c);
    case State::kZero:
    case State::kDigits:
    case State::kFraction:
    case State::kPower: {
      if (PushNumber(c)) return true;
      // The number ended before it.
      const State number = state_;
      EndValue();
      if (Push(c)) return true;
      state_ = number;
      return false;
    }
    default:
      break;
  }
  if (IsJsonSpace(c)) return true;
  switch (state_) {
    case State::kStart:
      return c == '{' && BeginValue(c);
    case State::kFirstKey:
      if (c == '}') return Close(c);
      [[fallthrough]];
    case State::kKey:
      if (c != '"') return false;
      is_key_ = true;
      state_ = State::kString;
      return true;
    case State::kColon:
      if (c != ':') return false;
      state_ = State::kValue;
      return true;
    case State::kFirstElement:
      if (c == ']') return Close(c);
      [[fallthrough]];
    case State::kValue:
      return BeginValue(c);
    case State::kNext:
      if (c != ',') return Close(c);
      state_ = open_.back() == '}' ? State::kKey : State::kValue;
      return true;
    default:
      return false;
  }
}

std::string JsonPrefix::Rest() const {
  std::string rest;
  const auto end_string = [&] { rest += is_key_ ? "\": null" : "\""; };
  switch (state_) {
    case State::kStart:
      return "{}";
    case State::kString:
      if (low_due_) rest = "\\udc00";
      end_string();
      break;
    case State::kEscape:
      rest = low_due_ ? "udc00" : "\\";
      end_string();
      break;
    case State::kHex: {
      const auto left = static_cast<size_t>(hex_left_);
      rest = low_due_ ? std::string("dc00").substr(4 - left) : std::string(left, '0');
      const unsigned whole = hex_ << 4 * left;
      if (!low_due_ && whole >= 0xd800 && whole <= 0xdbff) rest += "\\udc00";
      end_string();
      break;
    }
    case State::kKey:
      rest = "\"\": null";
      break;
    case State::kColon:
      rest = ": null";
      break;
    case State::kValue:
      rest = "null";
      break;
    case State::kLiteral:
      rest = literal_;
      break;
    case State::kMinus:
    case State::kPoint:
    case State::kExponent:
    case State::kSign:
      rest = "0";
      break;
    default:
      break;
  }
  rest.append(open_.rbegin(), open_.rend());
  return rest;
}

}  // namespace cachalot
