// --config FILE: flags from a TOML file, by the names that they have on the command line.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

// Of a name with dashes the first name of its flag; "" where there is none.
using FlagName = std::function<std::string(const std::string& name)>;

// args, with what the file of its --config says in front: of a flag that is given twice the last one counts, so the
// command line wins. Unchanged without --config.
Result<std::vector<std::string>> WithConfig(std::span<const std::string> args, const FlagName& flag_name = nullptr);
// `name = value` lines as flags: "port = 80" → --port 80, "mlock = true" → --mlock. `place` stands in error messages.
// A flag stands there once, whichever of its names is used.
Result<std::vector<std::string>> FlagsOfConfig(const std::string& text, const std::string& place, const FlagName& flag_name = nullptr);

}  // namespace cachalot
