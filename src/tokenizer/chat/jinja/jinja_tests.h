// The tests: value is name(arguments).
#pragma once

#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot::jinja {

struct TestEntry {
  std::string_view name;
  Result<bool> (*holds)(Runtime& rt, const Value& input, const Args& args);
};

// nullptr when there is none.
const TestEntry* FindTest(std::string_view name);

}  // namespace cachalot::jinja
