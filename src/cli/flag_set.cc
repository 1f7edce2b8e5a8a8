#include "cli/flag_set.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <deque>

#include "cli/nearest.h"

namespace cachalot {
namespace {

std::vector<std::string> SplitNames(const std::string& names) {
  std::vector<std::string> list;
  size_t begin = 0;
  while (begin <= names.size()) {
    const size_t end = std::min(names.find(',', begin), names.size());
    list.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return list;
}

bool IsPlainName(std::string_view name) {
  return name.starts_with("--") || name.size() == 2;
}

Result<int64_t> ParseInt(const std::string& text, int64_t min, int64_t max) {
  int64_t value = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return InvalidArgument("'{}' is no whole number in {}..{}", text, min, max);
  }
  return value;
}

size_t Columns(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string RangeText(double min, double max) {
  constexpr double kUnbounded = 1e30;
  if (min <= -kUnbounded && max >= kUnbounded) return "no number";
  if (max >= kUnbounded) return fmt::format("no number from {} on", min);
  return fmt::format("no number in {}..{}", min, max);
}

}  // namespace

FlagSet::FlagSet(std::string usage, std::string summary)
    : usage_(std::move(usage)), summary_(std::move(summary)) {}
FlagSet::~FlagSet() = default;

void FlagSet::Section(std::string title) {
  section_ = std::move(title);
}

FlagSet::Entry& FlagSet::Add(std::string names, std::string value, std::string help,
                             std::function<Status(const std::string&)> set) {
  Entry entry;
  entry.names = SplitNames(names);
  for (const auto& name : entry.names) CHECK(Find(name) == nullptr) << name << " is declared twice";
  entry.section = section_;
  entry.value = std::move(value);
  entry.help = std::move(help);
  entry.set = std::move(set);
  entries_.push_back(std::move(entry));
  return entries_.back();
}

void FlagSet::Switch(std::string names, bool* target, std::string help) {
  Add(std::move(names), "", std::move(help), [target](const std::string&) {
    *target = true;
    return Status::Ok();
  });
}

void FlagSet::Int(std::string names, int32_t* target, int64_t min, int64_t max, std::string value,
                  std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [=](const std::string& text) -> Status {
    ASSIGN_OR_RETURN(const int64_t parsed, ParseInt(text, min, std::min<int64_t>(max, INT32_MAX)));
    *target = static_cast<int32_t>(parsed);
    return Status::Ok();
  });
}

void FlagSet::Int(std::string names, int64_t* target, int64_t min, int64_t max, std::string value,
                  std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [=](const std::string& text) -> Status {
    ASSIGN_OR_RETURN(*target, ParseInt(text, min, max));
    return Status::Ok();
  });
}

void FlagSet::Float(std::string names, float* target, double min, double max, std::string value,
                    std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [=](const std::string& text) -> Status {
    double parsed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(parsed) || parsed < min ||
        parsed > max) {
      return InvalidArgument("'{}' is {}", text, RangeText(min, max));
    }
    *target = static_cast<float>(parsed);
    return Status::Ok();
  });
}

void FlagSet::Bytes(std::string names, int64_t* target, std::string value, std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [=](const std::string& text) -> Status {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    std::string unit(end, text.data() + text.size());
    for (char& c : unit) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    if (unit.ends_with('B')) unit.pop_back();
    const bool binary = unit.ends_with('I');
    if (binary) unit.pop_back();
    // G alone is GiB, as llama.cpp and most memory flags have it; GB is 10^9 bytes.
    const bool decimal = !binary && text.size() >= 2 && (text.ends_with('B') || text.ends_with('b')) && !unit.empty();
    const size_t power = unit.empty() ? 0 : std::string_view("KMGT").find(unit) + 1;
    const double bytes = number * std::pow(decimal ? 1000.0 : 1024.0, static_cast<double>(power));
    if (error != std::errc() || unit.size() > 1 || (!unit.empty() && power == 0) || !(bytes >= 1) || bytes > 1e15) {
      return InvalidArgument("'{}' is no size: a number with K, M, G, T, GiB or GB", text);
    }
    *target = static_cast<int64_t>(bytes);
    return Status::Ok();
  });
}

void FlagSet::String(std::string names, std::string* target, std::string value, std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [target](const std::string& text) {
    *target = text;
    return Status::Ok();
  });
}

void FlagSet::Path(std::string names, std::string* target, std::string value, std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [target](const std::string& text) -> Status {
    if (text.empty()) return InvalidArgument("'' is no name of a file or folder");
    *target = text;
    return Status::Ok();
  });
}

void FlagSet::Choice(std::string names, std::string* target, std::vector<std::string> choices,
                     std::string help, std::string bare) {
  std::string value;
  for (const auto& choice : choices) value += (value.empty() ? "" : "|") + choice;
  Entry& entry = Add(std::move(names), value, std::move(help), [=](const std::string& text) -> Status {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      return InvalidArgument("'{}' is none of {}{}", text, value, NearestHint(text, choices));
    }
    *target = text;
    return Status::Ok();
  });
  entry.bare = std::move(bare);
  entry.choices = std::move(choices);
}

void FlagSet::Strings(std::string names, std::vector<std::string>* target, std::string value,
                      std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [target](const std::string& text) {
    target->push_back(text);
    return Status::Ok();
  }).repeats = true;
}

void FlagSet::Ints(std::string names, std::vector<int32_t>* target, int64_t min, int64_t max,
                   std::string value, std::string help) {
  Add(std::move(names), std::move(value), std::move(help), [=](const std::string& text) -> Status {
    std::vector<int32_t> list;
    for (const auto& item : SplitNames(text)) {
      ASSIGN_OR_RETURN(const int64_t parsed, ParseInt(item, min, std::min<int64_t>(max, INT32_MAX)));
      list.push_back(static_cast<int32_t>(parsed));
    }
    *target = std::move(list);
    return Status::Ok();
  });
}

void FlagSet::Positional(std::string name, std::string* target, std::string help) {
  positionals_.push_back({std::move(name), std::move(help), target});
}

const FlagSet::Entry* FlagSet::Find(std::string_view name) const {
  for (const auto& entry : entries_) {
    if (std::find(entry.names.begin(), entry.names.end(), name) != entry.names.end()) return &entry;
  }
  return nullptr;
}

bool FlagSet::Given(std::string_view name) const {
  const Entry* entry = Find(name);
  CHECK(entry != nullptr) << name << " is no flag";
  return entry->given;
}

std::string FlagSet::FirstName(std::string_view name) const {
  const Entry* entry = Find(name);
  return entry == nullptr ? "" : entry->names[0];
}

bool FlagSet::IsSwitch(std::string_view name) const {
  const Entry* entry = Find(name);
  return entry != nullptr && entry->value.empty();
}

std::vector<std::string> FlagSet::Names() const {
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.insert(names.end(), entry.names.begin(), entry.names.end());
  names.push_back("--help");
  return names;
}

Result<std::vector<std::string>> FlagSet::Normalise(std::span<const std::string> args) {
  std::vector<std::string> normal;
  bool is_value = false;  // the argument of the flag before
  bool only_values = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (is_value || only_values || arg.size() < 2 || arg[0] != '-') {
      is_value = false;
      normal.push_back(arg);
      continue;
    }
    only_values = arg == "--";
    if (only_values || arg == "-h" || arg == "--help") {
      normal.push_back(arg);
      continue;
    }
    size_t end = std::min(arg.find('='), arg.size());
    auto* entry = const_cast<Entry*>(Find(arg.substr(0, end)));
    if (entry == nullptr && arg.size() > 2 &&
        (std::isdigit(static_cast<unsigned char>(arg[2])) || arg[2] == '-')) {
      end = 2;  // -n5
      entry = const_cast<Entry*>(Find(arg.substr(0, end)));
      if (entry != nullptr && entry->value.empty()) entry = nullptr;
    }
    if (entry == nullptr) {
      const std::string name = arg.substr(0, end);
      return InvalidArgument("unknown flag {}{}", name, NearestHint(name, Names()));
    }
    entry->typed = arg.substr(0, end);
    const auto plain = std::find_if(entry->names.begin(), entry->names.end(), IsPlainName);
    CHECK(plain != entry->names.end()) << entry->typed << " needs a name with two dashes";
    normal.push_back(*plain);
    is_value = !entry->value.empty() && end == arg.size();
    if (is_value && !entry->bare.empty()) {
      // Bare unless one of the choices follows, or a word that can only be meant as one.
      const bool last = i + 1 == args.size();
      const auto& choices = entry->choices;
      if (last || args[i + 1].starts_with('-') ||
          (std::find(choices.begin(), choices.end(), args[i + 1]) == choices.end() && !positionals_.empty())) {
        normal.push_back(entry->bare);
        is_value = false;
      }
    }
    if (end == arg.size()) continue;
    if (entry->value.empty()) return InvalidArgument("{} takes no value", entry->typed);
    normal.push_back(arg.substr(arg[end] == '=' ? end + 1 : end));
  }
  if (is_value) {
    const auto last = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.typed == args.back(); });
    return InvalidArgument("{} needs a value: {}", args.back(), last == entries_.end() ? "" : last->value);
  }
  return normal;
}

Status FlagSet::Parse(std::span<const std::string> args) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", help_wanted_);
  std::deque<std::vector<std::string>> texts;
  std::deque<int> counts;
  std::vector<CLI::Option*> options;
  for (const auto& entry : entries_) {
    std::string names;
    for (const auto& name : entry.names) {
      if (IsPlainName(name)) names += (names.empty() ? "" : ",") + name;
    }
    if (entry.value.empty()) {
      options.push_back(app.add_flag(names, counts.emplace_back(0)));
    } else {
      options.push_back(app.add_option(names, texts.emplace_back())->type_size(1)->expected(1));
      options.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
    }
  }
  ASSIGN_OR_RETURN(std::vector<std::string> reversed, Normalise(args));
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return InvalidArgument("{}", error.what());
  }
  if (help_wanted_) return Status::Ok();

  size_t next_positional = 0;
  for (const auto& extra : app.remaining()) {
    if (next_positional == positionals_.size()) {
      return InvalidArgument("'{}' is not expected here (see cachalot {} --help)", extra,
                             usage_.substr(0, usage_.find_first_of(" -")));
    }
    *positionals_[next_positional++].target = extra;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.given = options[i]->count() > 0;
    if (!entry.given) continue;
    const std::vector<std::string> values =
        entry.value.empty() ? std::vector<std::string>{""} : options[i]->results();
    // Of a flag that is given twice the last one counts.
    for (size_t v = entry.repeats ? 0 : values.size() - 1; v < values.size(); ++v) {
      RETURN_IF_ERROR(entry.set(values[v]).WithContext(entry.typed));
    }
  }
  return Status::Ok();
}

std::string FlagSet::Help() const {
  std::string text = fmt::format("usage: cachalot {}\n{}\n", usage_, summary_);
  constexpr size_t kColumn = 34;
  const auto line = [&](const std::string& left, const std::string& right) {
    text += "  " + left;
    if (Columns(left) + 2 >= kColumn)
      text += "\n" + std::string(kColumn, ' ');
    else
      text += std::string(kColumn - 2 - Columns(left), ' ');
    for (const char c : right) {
      text += c;
      if (c == '\n') text += std::string(kColumn, ' ');
    }
    text += "\n";
  };
  if (!positionals_.empty()) text += "\n";
  for (const auto& positional : positionals_) line(positional.name, positional.help);
  std::string section;
  bool first = true;
  for (const auto& entry : entries_) {
    if (entry.help.empty()) continue;
    if (first || entry.section != section)
      text += "\n" + entry.section + (entry.section.empty() ? "" : ":\n");
    first = false;
    section = entry.section;
    std::string left;
    for (const auto& name : entry.names) left += (left.empty() ? "" : ", ") + name;
    if (!entry.value.empty()) left += " " + entry.value;
    line(left, entry.help);
  }
  return text;
}

}  // namespace cachalot
