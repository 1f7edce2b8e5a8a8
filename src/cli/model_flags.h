// The flags that say which model to open and how; llama.cpp's names mean the same here.
#pragma once

#include <string>
#include <vector>

#include "cli/flag_set.h"
#include "cli/hub_flags.h"
#include "engine/model_bundle.h"

namespace cachalot {

struct ModelFlags {
  ModelFlags() { options.device = "auto"; }

  ModelOptions options;
  HubFlags hub;
  std::string log_level = "warn";
  std::string color = "auto";

  // Declares the flags. Commands change the defaults in `options` before. Those that have their own -t and -b
  // (lists), or no use for them, leave them out.
  enum Extent { kAll, kWithoutBatch };
  void Declare(FlagSet* flags, Extent extent = kAll);
  // Tiers below the KV cache, of the commands that answer.
  void DeclareKvTiers(FlagSet* flags);
  void DeclareTrace(FlagSet* flags);
  // After FlagSet::Parse: sees that a model is named once, that the KV types agree, and sets the log level.
  Status Resolve();
  // After Resolve: a model of the hub is fetched, and options.path says where it lies. The exit code, after an error was
  // printed.
  int Fetch();
  // After Fetch: the files and folders that are read, for CheckOutput.
  std::vector<std::string> Inputs() const;
  // "model.gguf" or "dummy SPEC", for people.
  std::string Place() const;

 private:
  Status ResolveGpuLayers();
  Status ResolveDrafts();

  bool no_mmap_ = false;
  bool no_graphs_ = false;
  std::string gpu_layers_ = "auto";
  std::string flash_attention_ = "auto";
  std::string cache_type_k_, cache_type_v_;
  bool deepseek_kv_ = false;
  std::string drafts_ = "none";
  bool draft_always_ = false;
  int32_t draft_max_ = 0;  // 0: not given
};

// -p TEXT, -p - (standard input), -f FILE.
struct PromptFlags {
  std::string prompt;
  std::string file;

  void Declare(FlagSet* flags);
  // After FlagSet::Parse: exactly one source must be there; standard input counts when it is no terminal.
  Status Resolve(const FlagSet& flags) const;
  // kPrompt: one line end at the very end of a file or of standard input does not count, as in llama.cpp.
  // The file that is read, for CheckOutput; standard input may be one too. "": none.
  std::string Input(const FlagSet& flags) const;
  enum class Use { kExactText, kPrompt };
  Result<std::string> Read(const FlagSet& flags, Use use) const;
};

// All of standard input, at most `max_bytes`.
Result<std::string> ReadStandardInput(int64_t max_bytes);

}  // namespace cachalot
