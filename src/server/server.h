// Server: a model behind HTTP. Listen opens the port, where all but what needs no model is 503 until Serve; BeginDrain
// takes it down gently, Stop at once.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "server/server_context.h"

namespace cachalot {

class Server {
 public:
  static Result<std::unique_ptr<Server>> Listen(ServerOptions options);
  // Once. bundle (with tokenizer and runtime) and engine outlive the server; the engine is used by nobody else meanwhile.
  Status Serve(ModelBundle* bundle, Engine* engine, const ExecutorInfo& info);
  // Both.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, ModelBundle* bundle, Engine* engine, const ExecutorInfo& info);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int32_t port() const;
  ServerContext& context() { return context_; }

  // New generations are refused from now on, connections end after their response.
  void BeginDrain();
  bool idle() const;
  // Ends what is left: requests get an error, then connections are broken off.
  void Stop();

 private:
  Server() = default;

  ServerContext context_;
  std::unique_ptr<HttpServer> http_;
  bool stopped_ = false;
};

}  // namespace cachalot
