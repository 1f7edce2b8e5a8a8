// --session FILE: a conversation that goes on in another process, with its KV cache.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cli/conversation.h"
#include "cli/flag_set.h"
#include "cli/session.h"

namespace cachalot {

struct SessionFlag {
  std::string path;

  void Declare(FlagSet* flags);
  bool given() const { return !path.empty(); }
  // Before the work: the file can be written, and is none of those that are read.
  Status Check(std::span<const std::string> inputs) const;
  // What the file says, if there is one; its KV blocks are cached then.
  Result<Conversation> Load(Session* session) const;
  // `tokens`: of the last prompt and its answer.
  Status Save(Session* session, const Conversation& conversation, std::span<const int32_t> tokens) const;
};

}  // namespace cachalot
