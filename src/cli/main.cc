// The program: everything it can do is a row in the table of commands.
#include <clocale>
#include <string>
#include <vector>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/console.h"

int main(int argc, char** argv) {
  std::setlocale(LC_CTYPE, "");
  cachalot::InitLog();
  cachalot::InstallSignalHandlers();
  const std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return cachalot::Dispatch(args);
}
