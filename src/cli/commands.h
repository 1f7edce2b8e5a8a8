// The subcommands: one file each (cmd_*.cc), one row each in the table.
#pragma once

#include <span>
#include <string>

namespace cachalot {

using Args = std::span<const std::string>;

struct Command {
  const char* name;
  const char* summary;
  int (*run)(Args args);  // the exit code
};
std::span<const Command> AllCommands();

int RunCommand(Args args);
int ChatCommand(Args args);
int InspectCommand(Args args);
int TokenizeCommand(Args args);
int DetokenizeCommand(Args args);
int EvalCommand(Args args);
int LogitsCommand(Args args);
int BenchCommand(Args args);
int DummyCommand(Args args);
int ServeCommand(Args args);
int ReplayCommand(Args args);
int BenchServeCommand(Args args);  // bench serve
int QuantizeCommand(Args args);
int KvCommand(Args args);
int KvCalibrateCommand(Args args);  // kv calibrate
int KvReportCommand(Args args);     // kv report
int PullCommand(Args args);
int ImatrixCommand(Args args);

// argv without the program's name.
int Dispatch(Args args);

}  // namespace cachalot
