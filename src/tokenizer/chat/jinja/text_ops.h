// The operations of Python's str on our strings. All keep provenance and Markup.
#pragma once

#include <optional>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_strings.h"

namespace cachalot::jinja {

enum class CaseMode : uint8_t { kUpper, kLower, kTitle, kCapitalize, kSwap, kFold };

Result<const String*> ChangeCase(Runtime& rt, const String* s, CaseMode mode);
// `chars` nullptr: whitespace.
Result<const String*> StripText(Runtime& rt, const String* s, const String* chars, bool left, bool right);
// `separator` nullptr: runs of whitespace. max_split < 0: no limit.
Result<std::vector<Value>> SplitText(Runtime& rt, const String* s, const String* separator,
                                     int64_t max_split);
Result<std::vector<Value>> SplitTextRight(Runtime& rt, const String* s, const String* separator,
                                          int64_t max_split);
Result<std::vector<Value>> SplitLines(Runtime& rt, const String* s, bool keep_ends);
// count < 0: all.
Result<const String*> ReplaceText(Runtime& rt, const String* s, const String* old_text,
                                  const String* new_text, int64_t count);
Result<const String*> RepeatText(Runtime& rt, const String* s, Int count);
Result<const String*> ReverseText(Runtime& rt, const String* s);
// `left` and `right` copies of one character around the text.
Result<const String*> PadText(Runtime& rt, const String* s, int64_t left, int64_t right, const String* fill);
Result<const String*> CenterText(Runtime& rt, const String* s, int64_t width, const String* fill);
// Every `step`-th character from `start`, `count` of them.
Result<const String*> PickChars(Runtime& rt, const String* s, int64_t start, int64_t step, int64_t count);

// "…" % value
Result<const String*> FormatPercent(Runtime& rt, const String* format, const Value& value);
// "…".format(…); `mapping` instead of the arguments for format_map.
Result<const String*> FormatBraces(Runtime& rt, const String* format, const Args& args, const Value* mapping);
// format(value, spec)
Result<const String*> FormatWithSpec(Runtime& rt, const Value& value, std::string_view spec,
                                     bool spec_from_user);
// The digits of a number in a printf style ('e', 'f', 'g', 'E', …), without sign.
std::string FormatFloatStyle(double magnitude, char style, int precision, bool alternate);

}  // namespace cachalot::jinja
