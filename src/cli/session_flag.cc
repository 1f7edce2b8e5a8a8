#include "cli/session_flag.h"

#include "base/file.h"
#include "base/log.h"
#include "cli/console.h"
#include "tasks/output_check.h"

namespace cachalot {

void SessionFlag::Declare(FlagSet* flags) {
  flags->Path("--session", &path, "FILE",
              "goes on with the conversation in FILE, if it is there, and keeps it there\nwith its KV cache, so that nothing is computed twice");
}

Status SessionFlag::Check(std::span<const std::string> inputs) const {
  if (!given()) return Status::Ok();
  if (ResolveOutput(path).in_place) return InvalidArgument("--session {}: is no regular file", path);
  return CheckOutput("--session", path, inputs);
}

Result<Conversation> SessionFlag::Load(Session* session) const {
  if (!FileExists(path)) return Conversation();
  ASSIGN_OR_RETURN(const Engine::LoadedSession loaded, session->engine().LoadSession(path));
  if (!loaded.same_model) PrintNote("(the session is another model's, or of another KV type: its text is taken, its KV cache is not)\n");
  LOG_INFO("{}: {} KV blocks", path, loaded.num_blocks);
  Result<Conversation> conversation = Conversation::FromJson(loaded.note);
  if (!conversation.ok()) return conversation.status().WithContext(path);
  return conversation;
}

Status SessionFlag::Save(Session* session, const Conversation& conversation, std::span<const int32_t> tokens) const {
  return session->engine().SaveSession(path, conversation.Json(), tokens);
}

}  // namespace cachalot
