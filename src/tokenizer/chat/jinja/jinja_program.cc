#include "tokenizer/chat/jinja/jinja_program.h"

#include <algorithm>

namespace cachalot::jinja {

Result<std::unique_ptr<const Program>> Program::Parse(std::string_view source,
                                                      const ChatTemplateLimits& limits) {
  if (static_cast<int64_t>(source.size()) > limits.max_source_bytes) {
    return Exhausted("a chat template of {} bytes is longer than {}", source.size(), limits.max_source_bytes);
  }
  auto program = std::make_unique<Program>();
  ASSIGN_OR_RETURN(program->parsed_, Parser(source, limits.max_depth).Parse());
  ASSIGN_OR_RETURN(program->scope_, ResolveScopes(&program->parsed_.body));
  return std::unique_ptr<const Program>(std::move(program));
}

bool Program::Reads(std::string_view name) const {
  return std::find(scope_.names.begin(), scope_.names.end(), name) != scope_.names.end();
}

}  // namespace cachalot::jinja
