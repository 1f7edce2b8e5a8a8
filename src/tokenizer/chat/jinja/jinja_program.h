// A template that was parsed and resolved: immutable, shared by all its renders.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/jinja/jinja_parser.h"
#include "tokenizer/chat/jinja/jinja_scope.h"

namespace cachalot::jinja {

class Program {
 public:
  static Result<std::unique_ptr<const Program>> Parse(std::string_view source,
                                                      const ChatTemplateLimits& limits);

  const Body& body() const { return parsed_.body; }
  uint32_t num_texts() const { return parsed_.num_texts; }
  const RootScope& scope() const { return scope_; }
  // Whether the template asks the context for a variable.
  bool Reads(std::string_view name) const;

 private:
  ParsedTemplate parsed_;
  RootScope scope_;
};

}  // namespace cachalot::jinja
