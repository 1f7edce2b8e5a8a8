// str() and repr().
#pragma once

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_strings.h"

namespace cachalot::jinja {

// str(value): never Markup. The text of a container is the request's as a whole if any part of it is.
Result<const String*> TextOf(Runtime& rt, const Value& value);
// The same, but Markup stays Markup.
Result<const String*> SoftTextOf(Runtime& rt, const Value& value);
// Appends str(value).
Status AddText(Runtime& rt, const Value& value, StrBuilder* out);
// Appends repr(value).
Status AddRepr(Runtime& rt, const Value& value, StrBuilder* out, int depth = 0);
Result<const String*> ReprOf(Runtime& rt, const Value& value);

}  // namespace cachalot::jinja
