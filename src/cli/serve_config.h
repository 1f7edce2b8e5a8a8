// --config FILE: flags from a TOML file, by the names that they have on the command line.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

// args, with what the file of its --config says in front: of a flag that is given twice the last one counts, so the
// command line wins. Unchanged without --config.
Result<std::vector<std::string>> WithConfig(std::span<const std::string> args);
// `name = value` lines as flags: "port = 80" → --port 80, "mlock = true" → --mlock. `place` stands in error messages.
Result<std::vector<std::string>> FlagsOfConfig(const std::string& text, const std::string& place);

}  // namespace cachalot
