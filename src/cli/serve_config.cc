#include "cli/serve_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "base/file.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

std::string Dashed(const std::string& name) {
  return (name.size() == 1 ? "-" : "--") + name;
}

// The lines that begin with a name and '=', outside of strings and lists that go over several lines.
struct NamedLine {
  std::string name;
  int32_t number = 0;
  std::string_view value;  // of this line, with what stands behind it
};

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// How many lists are open behind the line.
int32_t OpenLists(std::string_view line, int32_t open) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == '\\' && quote == '"') ++i;
      else if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      break;
    } else {
      open += (c == '[') - (c == ']');
    }
  }
  return std::max(open, 0);
}

std::vector<NamedLine> NamedLines(std::string_view text) {
  std::vector<NamedLine> lines;
  int32_t open = 0;
  for (int32_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = line.find('=');
    if (open > 0) {
      open = OpenLists(line, open);
    } else if (!line.starts_with('[') && !line.starts_with('#') && !line.starts_with(';') && equals != std::string_view::npos) {
      std::string_view name = Trim(line.substr(0, equals));
      if (name.size() > 2 && name.front() == name.back() && (name.front() == '"' || name.front() == '\'')) name = name.substr(1, name.size() - 2);
      lines.push_back({std::string(name), number, Trim(line.substr(equals + 1))});
      open = OpenLists(line.substr(equals + 1), 0);
    }
  }
  return lines;
}

// "" for what TOML takes as a value (of lists the parser says more) and the flag too, else what is wrong with it.
std::string WrongValue(std::string_view value, bool is_switch) {
  const std::string_view bare = Trim(value.substr(0, value.find('#')));
  const bool is_bool = bare == "true" || bare == "false";
  if (is_switch != is_bool) return is_switch ? "it is true or false" : "it takes a value";
  if (is_bool || value.starts_with('[')) return "";
  if (value.starts_with('"') || value.starts_with('\'')) {
    const size_t end = value.find(value[0], 1);
    if (end == std::string_view::npos) return "the string has no end";
    if (value[0] == '"' && value.substr(0, end).find('\\') != std::string_view::npos) {
      return "escapes are not read: '...' takes text as it is";
    }
    const std::string_view rest = Trim(value.substr(end + 1));
    return rest.empty() || rest.starts_with('#') ? "" : "something follows the string";
  }
  double number = 0;
  const char* begin = bare.data() + (bare.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, bare.data() + bare.size(), number);
  if (error == std::errc() && end == bare.data() + bare.size()) return "";
  return "a value is a number, true, false, a \"string\" or a [list]";
}

std::string Opposite(const std::string& flag) {
  return flag.starts_with("--no-") ? "--" + flag.substr(5) : "--no-" + flag.substr(flag.find_first_not_of('-'));
}

// One value of a flag.
void AddFlag(const std::string& flag, const std::string& value, const FindFlag& find, std::vector<std::string>* flags) {
  if (!find(flag).is_switch) {
    flags->push_back(flag + "=" + value);
  } else if (value == "true") {
    flags->push_back(flag);
  } else if (const std::string opposite = Opposite(flag); !find(opposite).first_name.empty()) {
    flags->push_back(opposite);
  }
}

// Also: CLI11 makes one list of the values of a name that stands on several lines.
Status CheckLines(const std::vector<NamedLine>& lines, const std::string& place, const FindFlag& find) {
  for (size_t i = 0; i < lines.size(); ++i) {
    const KnownFlag known = find(Dashed(lines[i].name));
    const std::string& flag = known.first_name;
    if (flag.empty()) {
      return InvalidArgument("{}: line {}: there is no flag {}{}", place, lines[i].number, Dashed(lines[i].name), known.hint);
    }
    if (const std::string wrong = WrongValue(lines[i].value, known.is_switch); !wrong.empty()) {
      return InvalidArgument("{}: line {}: {} = {}: {}", place, lines[i].number, lines[i].name, lines[i].value, wrong);
    }
    for (size_t j = 0; j < i; ++j) {
      const std::string &name = lines[i].name, &before = lines[j].name;
      if (name == before) return InvalidArgument("{}: {} is given twice, on lines {} and {}", place, name, lines[j].number, lines[i].number);
      if (flag != find(Dashed(before)).first_name) continue;
      return InvalidArgument("{}: {} on line {} and {} on line {} are the same", place, before, lines[j].number, name, lines[i].number);
    }
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<std::string>> FlagsOfConfig(const std::string& text, const std::string& place, const FindFlag& find) {
  const std::vector<NamedLine> lines = NamedLines(text);
  RETURN_IF_ERROR(CheckLines(lines, place, find));
  std::vector<CLI::ConfigItem> items;
  try {
    std::istringstream stream(text);
    items = CLI::ConfigTOML().from_config(stream);
  } catch (const std::exception& exception) {
    return InvalidArgument("{}: {}", place, exception.what());
  }
  std::vector<std::string> flags;
  for (const auto& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // how CLI11 marks the borders of a section
    if (item.name.empty()) return InvalidArgument("{}: a line has a value and no name", place);
    if (!item.parents.empty() && item.parents != std::vector<std::string>{"serve"}) {
      return InvalidArgument("{}: [{}]: there are no sections but [serve]", place, item.parents[0]);
    }
    if (item.name == "config") return InvalidArgument("{}: a configuration names no other", place);
    if (item.inputs.empty()) return InvalidArgument("{}: {} has no value", place, item.name);
    for (const auto& value : item.inputs) AddFlag(Dashed(item.name), value, find, &flags);
  }
  return flags;
}

Result<std::vector<std::string>> WithConfig(std::span<const std::string> args, const FindFlag& find) {
  std::string path;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--config" && i + 1 < args.size()) path = args[i + 1];
    if (args[i].starts_with("--config=")) path = args[i].substr(9);
  }
  std::vector<std::string> all;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
    ASSIGN_OR_RETURN(all, FlagsOfConfig(text, path, find));
    std::erase_if(all, [&](const std::string& flag) { return std::find(args.begin(), args.end(), Opposite(flag)) != args.end(); });
  }
  all.insert(all.end(), args.begin(), args.end());
  return all;
}

}  // namespace cachalot
