// Translates the regular expressions of tokenizer.json, which mean what Oniguruma's Ruby syntax means by
// them, into PCRE2 patterns that match the same. Invariant: what would mean something else to PCRE2 is
// translated or refused (kUnsupported, naming it), never passed on; no verbs, recursion, callouts or back
// references get through.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace cachalot {

// The pattern is valid UTF-8. The result is meant for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE with LF as the
// only newline.
Result<std::string> TranslateRegex(std::string_view pattern);

}  // namespace cachalot
