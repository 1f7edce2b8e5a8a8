// Which variable a name means. Follows jinja2's compile-time rules: a scope's variables are slots of the
// function around it; on entry each takes its value from an outer variable, from the render's context, or is
// empty.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_parser.h"

namespace cachalot::jinja {

struct RootScope {
  std::vector<std::string> names;  // asked from the context, by name_id
  std::vector<SlotLoad> loads;
  uint32_t num_slots = 0;
};

// Fills in every slot of the tree. Errors: an assignment to `loop`, an unknown filter or test outside an if.
Result<RootScope> ResolveScopes(Body* body);

}  // namespace cachalot::jinja
