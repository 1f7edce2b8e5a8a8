// The program's edges: standard output that may be closed or full, one-line errors, Ctrl-C, and whether to
// use colour.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace cachalot {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Only the answer goes to standard output. A reader that has gone (`cachalot … | head`) is no error: the work
// ends early.
class Output {
 public:
  // kCancelled when nobody reads any more, kInternal when the disk is full and the like.
  Status Write(std::string_view text);
  bool closed() const { return closed_; }

 private:
  bool closed_ = false;
};

// Ctrl-C: until the first StopOnInterrupt ends the process at once; while one lives, it only raises the flag,
// and the second Ctrl-C ends the process.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

  bool interrupted() const;
  void Clear();
};

// Handlers for SIGINT and SIGPIPE; once, from main.
void InstallSignalHandlers();

// "cachalot: message" on standard error, on one line.
void PrintError(std::string_view message);
void PrintNote(std::string_view text);  // to standard error, as it is

// The exit code for a command that ended with `status`, after printing it: a closed output is no error.
int ExitWith(const Status& status, const Output& output);
// For a command line that was wrong.
int ExitUsage(const Status& status);

// always, never, auto: a terminal, unless NO_COLOR is set.
bool UseColor(std::string_view setting, int fd);

double SecondsSinceStart();  // of the process, as good as main knows

}  // namespace cachalot
