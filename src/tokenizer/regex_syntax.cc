#include "tokenizer/regex_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

#include "formats/text.h"

namespace cachalot {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr int kMaxGroupDepth = 32;

// PCRE2's own \s has U+180E besides, its \w lacks marks.
constexpr std::string_view kSpace = "\\p{White_Space}";
constexpr std::string_view kNotSpace = "\\P{White_Space}";
constexpr std::string_view kWordItems = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHexItems = "0-9A-Fa-f";

constexpr std::string_view kGeneralCategories[] = {"C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo",
                                                   "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No",
                                                   "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc",
                                                   "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};
constexpr std::string_view kScripts[] = {
    "Arabic",  "Armenian", "Bengali",  "Bopomofo", "Cyrillic", "Devanagari", "Georgian",
    "Greek",   "Gujarati", "Gurmukhi", "Han",      "Hangul",   "Hebrew",     "Hiragana",
    "Kannada", "Katakana", "Khmer",    "Lao",      "Latin",    "Malayalam",  "Myanmar",
    "Sinhala", "Tamil",    "Telugu",   "Thai",     "Tibetan"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> Run() {
    if (in_.size() > kMaxPatternBytes) {
      return Unsupported("a regular expression of {} bytes, the limit is {}", in_.size(), kMaxPatternBytes);
    }
    // Tried at every place of a long run of spaces, \s+$ takes quadratic time. All its matches begin where a
    // run does.
    if (in_ == "\\s+$") return fmt::format("(?<!{0}){0}+$", kSpace);
    int depth = 0;
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      switch (c) {
        case '\\':
          RETURN_IF_ERROR(Escape(/*in_class=*/false));
          break;
        case '[':
          RETURN_IF_ERROR(Class());
          break;
        case '(':
          if (++depth > kMaxGroupDepth)
            return Refuse(fmt::format("groups nested more than {} deep", kMaxGroupDepth));
          RETURN_IF_ERROR(GroupStart());
          break;
        case '{':
          RETURN_IF_ERROR(Interval());
          break;
        default:
          if (c == ')') --depth;
          out_ += c;
          ++pos_;
      }
    }
    return std::move(out_);
  }

 private:
  Status Refuse(std::string_view what) const {
    return Unsupported("regular expression '{}': {} at byte {}", Printable(in_, 200), what, pos_);
  }
  bool At(std::string_view text) const { return in_.substr(pos_).starts_with(text); }

  // Behind a backslash.
  Status Escape(bool in_class) {
    if (pos_ + 1 >= in_.size()) return Refuse("a backslash at the end");
    const char c = in_[pos_ + 1];
    const auto item = [&](std::string_view items, bool negated) {
      out_ += in_class ? std::string(items) : fmt::format("[{}{}]", negated ? "^" : "", items);
    };
    switch (c) {
      case 's':
        out_ += kSpace;
        break;
      case 'S':
        out_ += kNotSpace;
        break;
      case 'd':
        out_ += "\\p{Nd}";
        break;
      case 'D':
        out_ += "\\P{Nd}";
        break;
      case 'w':
        item(kWordItems, false);
        break;
      case 'h':
        item(kHexItems, false);
        break;
      case 'W':
      case 'H':
        if (in_class) return Refuse(fmt::format("\\{} in a class", c));
        item(c == 'W' ? kWordItems : kHexItems, true);
        break;
      case 'p':
      case 'P':
        return Property();
      case 'x':
      case 'u':
        return CodePoint();
      case 'v':
        out_ += "\\x0b";
        break;
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        out_ += '\\';
        out_ += c;
        break;
      default:
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
          const bool anchor = !in_class && (c == 'A' || c == 'z' || c == 'Z');
          if (!anchor) return Refuse(fmt::format("\\{}", c));
        } else if (static_cast<unsigned char>(c) >= 0x80) {
          ++pos_;  // an escaped character beyond ASCII is itself
          return Status::Ok();
        }
        out_ += '\\';
        out_ += c;
    }
    pos_ += 2;
    return Status::Ok();
  }

  // \p{Name}, \P{Name}, \p{^Name}
  Status Property() {
    const size_t end = in_.find('}', pos_);
    if (pos_ + 2 >= in_.size() || in_[pos_ + 2] != '{' || end == std::string_view::npos)
      return Refuse("\\p without {}");
    bool negated = in_[pos_ + 1] == 'P';
    std::string_view name = in_.substr(pos_ + 3, end - pos_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const auto among = [&](const auto& names) {
      return std::find(std::begin(names), std::end(names), name) != std::end(names);
    };
    // Without "sc:" PCRE2 would also match characters that merely occur in the script.
    const bool script = among(kScripts);
    if (!script && !among(kGeneralCategories)) return Refuse(fmt::format("the property {}", Printable(name)));
    out_ += fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', script ? "sc:" : "", name);
    pos_ = end + 1;
    return Status::Ok();
  }

  // \xHH, \x{H…}, \uHHHH
  Status CodePoint() {
    const bool braces = in_[pos_ + 1] == 'x' && pos_ + 2 < in_.size() && in_[pos_ + 2] == '{';
    const size_t begin = pos_ + (braces ? 3 : 2);
    size_t end = begin;
    const size_t max_digits = braces ? 6 : in_[pos_ + 1] == 'x' ? 2 : 4;
    uint32_t value = 0;
    while (end < in_.size() && end - begin < max_digits &&
           std::isxdigit(static_cast<unsigned char>(in_[end])) != 0) {
      const char digit = in_[end++];
      value = value * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    const bool complete =
        braces ? end > begin && end < in_.size() && in_[end] == '}' : end - begin == max_digits;
    // A lone \xHH is a byte there and a character here: the same only in ASCII.
    const bool lone_byte = in_[pos_ + 1] == 'x' && !braces && value > 0x7F;
    if (!complete || lone_byte || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      return Refuse("a character given by number");
    }
    out_ += fmt::format("\\x{{{:x}}}", value);
    pos_ = end + (braces ? 1 : 0);
    return Status::Ok();
  }

  Status Class() {
    out_ += in_[pos_++];
    if (pos_ < in_.size() && in_[pos_] == '^') out_ += in_[pos_++];
    if (pos_ < in_.size() && in_[pos_] == ']') return Refuse("an empty class");
    while (pos_ < in_.size() && in_[pos_] != ']') {
      if (in_[pos_] == '\\') {
        RETURN_IF_ERROR(Escape(/*in_class=*/true));
        continue;
      }
      if (in_[pos_] == '[') return Refuse("a class in a class");
      if (At("&&")) return Refuse("an intersection of classes");
      out_ += in_[pos_++];
    }
    if (pos_ == in_.size()) return Refuse("a class without an end");
    out_ += in_[pos_++];
    return Status::Ok();
  }

  Status GroupStart() {
    const bool whole = pos_ == 0;
    ++pos_;
    if (At("*")) return Refuse("(*");
    if (!At("?")) {
      out_ += "(?:";  // nothing is ever captured
      return Status::Ok();
    }
    for (const std::string_view kind : {"?:", "?=", "?!", "?>", "?<=", "?<!"}) {
      if (At(kind)) {
        out_ += '(';
        out_ += kind;
        pos_ += kind.size();
        return Status::Ok();
      }
    }
    // (?i:…), or (?i) for the whole pattern; Ruby's m is PCRE2's s.
    size_t end = pos_ + 1;
    std::string flags = "(?";
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == 'm' || in_[end] == '-')) {
      flags += in_[end] == 'm' ? 's' : in_[end];
      ++end;
    }
    const bool closed = end < in_.size() && (in_[end] == ':' || (in_[end] == ')' && whole));
    if (end == pos_ + 1 || !closed) return Refuse("this kind of group");
    out_ += flags;
    if (in_[end] == ')') {
      pos_ = end;  // the main loop takes the parenthesis and counts it
    } else {
      out_ += ':';
      pos_ = end + 1;
    }
    return Status::Ok();
  }

  // {n}, {n,}, {,m}, {n,m}: what follows them means something else in Ruby's syntax.
  Status Interval() {
    size_t end = pos_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end])) != 0) ++end;
      return in_.substr(begin, end - begin);
    };
    const std::string_view low = digits();
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const std::string_view high = comma ? digits() : std::string_view();
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      out_ += "\\{";  // no interval but the character
      ++pos_;
      return Status::Ok();
    }
    pos_ = end + 1;
    if (At("+") || (!comma && At("?"))) return Refuse("a quantifier of an interval");
    out_ += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low, comma ? "," : "", high);
    return Status::Ok();
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> TranslateRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace cachalot
