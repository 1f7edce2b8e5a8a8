// --config FILE: flags from a TOML file, by the names that they have on the command line.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

// A flag by one of its names, with dashes.
struct KnownFlag {
  std::string first_name;  // "": there is no such flag
  bool is_switch = false;  // takes no value
  std::string hint = "";   // where there is none: what may have been meant, behind an error message
};
using FindFlag = std::function<KnownFlag(const std::string& name)>;

// args, with what the file of its --config says in front: of a flag that is given twice the last one counts, so the
// command line wins; so does --no-NAME there over NAME = true, and the other way round. Unchanged without --config.
Result<std::vector<std::string>> WithConfig(std::span<const std::string> args, const FindFlag& find);
// `name = value` lines as flags: "port = 80" → --port=80, "mlock = true" → --mlock, "mlock = false" → --no-mlock, where there
// is such a flag. Values are numbers, true, false, strings without escapes, and lists of them. `place` stands in error messages.
// A flag stands there once, whichever of its names is used.
Result<std::vector<std::string>> FlagsOfConfig(const std::string& text, const std::string& place, const FindFlag& find);

}  // namespace cachalot
