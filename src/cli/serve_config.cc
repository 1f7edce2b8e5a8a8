#include "cli/serve_config.h"

#include <CLI/CLI.hpp>
#include <set>
#include <sstream>

#include "base/file.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

}  // namespace

Result<std::vector<std::string>> FlagsOfConfig(const std::string& text, const std::string& place) {
  std::vector<CLI::ConfigItem> items;
  try {
    std::istringstream stream(text);
    items = CLI::ConfigTOML().from_config(stream);
  } catch (const std::exception& exception) {
    return InvalidArgument("{}: {}", place, exception.what());
  }
  std::vector<std::string> flags;
  std::set<std::string> names;
  for (const auto& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // how CLI11 marks the borders of a section
    if (item.name.empty()) return InvalidArgument("{}: a line has a value and no name", place);
    if (!names.insert(item.name).second) return InvalidArgument("{}: {} is given twice", place, item.name);
    if (!item.parents.empty() && item.parents != std::vector<std::string>{"serve"}) {
      return InvalidArgument("{}: [{}]: there are no sections but [serve]", place, item.parents[0]);
    }
    if (item.name == "config") return InvalidArgument("{}: a configuration names no other", place);
    const std::string flag = (item.name.size() == 1 ? "-" : "--") + item.name;
    if (item.inputs.empty()) return InvalidArgument("{}: {} has no value", place, item.name);
    if (item.inputs.size() == 1 && item.inputs[0] == "true") {
      flags.push_back(flag);
    } else if (!(item.inputs.size() == 1 && item.inputs[0] == "false")) {
      for (const auto& value : item.inputs) flags.push_back(flag + "=" + value);
    }
  }
  return flags;
}

Result<std::vector<std::string>> WithConfig(std::span<const std::string> args) {
  std::string path;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--config" && i + 1 < args.size()) path = args[i + 1];
    if (args[i].starts_with("--config=")) path = args[i].substr(9);
  }
  std::vector<std::string> all;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
    ASSIGN_OR_RETURN(all, FlagsOfConfig(text, path));
  }
  all.insert(all.end(), args.begin(), args.end());
  return all;
}

}  // namespace cachalot
