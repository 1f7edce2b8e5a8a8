// cachalot serve: the model behind an OpenAI-compatible HTTP API, until SIGTERM or Ctrl-C.
#include <chrono>
#include <cstdlib>
#include <future>

#include "base/fault.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/nearest.h"
#include "cli/serve_config.h"
#include "cli/serve_flags.h"
#include "cli/serve_signals.h"
#include "cli/session.h"
#include "runtime/runtime.h"
#include "server/server.h"

namespace cachalot {
namespace {

// Requests that run may end; a second signal, or the time, ends the wait.
void Drain(Server* server, const StopSignals& signals, int32_t timeout_ms) {
  server->BeginDrain();
  const size_t running = server->context().live.size();
  if (running > 0) PrintNote(fmt::format("stopping: {} requests are still running (again Ctrl-C: at once)\n", running));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!server->idle() && std::chrono::steady_clock::now() < deadline && signals.Wait(20) < 2) {
  }
}

// Loads the model while the port answers already. A signal meanwhile ends the process at once: nothing is promised to
// anybody yet, and loading cannot be broken off.
Result<std::unique_ptr<Session>> Load(const ServeFlags& flags, Server* server, const StopSignals& signals) {
  auto loading = std::async(std::launch::async, [&flags]() -> Result<std::unique_ptr<Session>> {
    return Session::Open(flags.model.options, flags.engine);
  });
  while (loading.wait_for(std::chrono::milliseconds(0)) != std::future_status::ready) {
    if (signals.Wait(20) == 0) continue;
    PrintNote("stopped while loading\n");
    server->Stop();
    std::_Exit(kExitOk);
  }
  return loading.get();
}

Status Serve(ServeFlags* flags) {
  flags->server.version = CACHALOT_VERSION;
  const StopSignals signals;
  std::vector<std::unique_ptr<ScopedFault>> faults;
  for (const auto& [point, calls] : flags->faults) faults.push_back(std::make_unique<ScopedFault>(point, calls, 1, /*again=*/true));
  std::unique_ptr<Session> session;  // outlives the server
  ASSIGN_OR_RETURN(const auto server, Server::Listen(flags->server));
  ASSIGN_OR_RETURN(session, Load(*flags, server.get(), signals));
  RETURN_IF_ERROR(session->tokenizer().status());
  const ExecutorInfo info = session->bundle().runtime->info();
  RETURN_IF_ERROR(server->Serve(&session->bundle(), &session->engine(), info));
  const std::string& host = flags->server.http.host;
  const bool v6 = host.find(':') != std::string::npos;
  PrintNote(fmt::format("{} is served at http{}://{}{}{}:{}/ (context {}, {} sequences, loaded in {:.2f} s)\n",
                        server->context().facts.names[0], flags->server.http.ssl_cert_file.empty() ? "" : "s", v6 ? "[" : "", host, v6 ? "]" : "", server->port(),
                        server->context().facts.max_context, info.max_seqs, session->load_seconds()));
  while (signals.Wait(1000) == 0) {
  }
  Drain(server.get(), signals, flags->server.drain_timeout_ms);
  server->Stop();
  return Status::Ok();
}

}  // namespace

int ServeCommand(Args args) {
  ServeFlags flags;
  FlagSet set("serve -m FILE|FOLDER --port 8080",
              "Serves a model over HTTP with OpenAI's API; a page to chat with it is at /. SIGTERM ends it gently.");
  flags.Declare(&set);
  Output output;
  const Result<std::vector<std::string>> all = WithConfig(args, [&set](const std::string& name) {
    const std::string first_name = set.FirstName(name);
    return KnownFlag{first_name, set.IsSwitch(name), first_name.empty() ? NearestHint(name, set.Names()) : ""};
  });
  if (!all.ok()) return ExitUsage(all.status());
  if (const Status status = set.Parse(*all); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (const Status status = flags.Resolve(); !status.ok()) return ExitUsage(status);
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  return ExitWith(Serve(&flags), output);
}

}  // namespace cachalot
