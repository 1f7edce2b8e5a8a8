// FlagSet: the flags of one command: typed values with limits, llama.cpp's spellings (-fa, -ctk), one-line
// errors that name the value and the limit, the nearest known flag for an unknown one, and a short help text.
// Invariant: Parse leaves every value that was not given as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

class FlagSet {
 public:
  // usage: what follows "cachalot ", e.g. "run -m FILE|FOLDER -p TEXT".
  FlagSet(std::string usage, std::string summary);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // The flags that follow stand under this title in the help text.
  void Section(std::string title);

  // names: "-n,--n-predict"; short ones may have several letters. `value` is what the help calls the
  // argument. An empty help text hides the flag.
  void Switch(std::string names, bool* target, std::string help);
  void Int(std::string names, int32_t* target, int64_t min, int64_t max, std::string value, std::string help);
  void Int(std::string names, int64_t* target, int64_t min, int64_t max, std::string value, std::string help);
  void Float(std::string names, float* target, double min, double max, std::string value, std::string help);
  // "512MiB", "12G", "1.5GB", or a plain number of bytes.
  void Bytes(std::string names, int64_t* target, std::string value, std::string help);
  void String(std::string names, std::string* target, std::string value, std::string help);
  // A file or folder, which "" is not: an empty variable of a script must not mean that nothing was asked for.
  void Path(std::string names, std::string* target, std::string value, std::string help);
  // With `bare`, the flag may stand without a value and then means that choice: llama.cpp's "-fa".
  void Choice(std::string names, std::string* target, std::vector<std::string> choices, std::string help,
              std::string bare = "");
  // May be given several times.
  void Strings(std::string names, std::vector<std::string>* target, std::string value, std::string help);
  // "1,2,8"
  void Ints(std::string names, std::vector<int32_t>* target, int64_t min, int64_t max, std::string value,
            std::string help);
  // What stands without a flag.
  void Positional(std::string name, std::string* target, std::string help);

  Status Parse(std::span<const std::string> args);
  bool help_wanted() const { return help_wanted_; }
  // By any of its names.
  bool Given(std::string_view name) const;
  // The first name of the flag that has this one; "" where there is none.
  std::string FirstName(std::string_view name) const;
  bool IsSwitch(std::string_view name) const;
  std::string Help() const;
  // Every name of every flag.
  std::vector<std::string> Names() const;

 private:
  struct Entry {
    std::vector<std::string> names;
    std::string section;
    std::string value;  // "" for a switch
    std::string help;
    std::function<Status(const std::string& text)> set;
    std::string bare;                  // what it means without a value; "": it needs one
    std::vector<std::string> choices;  // where it may be bare
    bool repeats = false;
    bool given = false;
    std::string typed;  // the name by which it was given
  };
  struct PositionalEntry {
    std::string name, help;
    std::string* target;
  };

  Entry& Add(std::string names, std::string value, std::string help,
             std::function<Status(const std::string&)> set);
  const Entry* Find(std::string_view name) const;
  // Flags in the spelling by which CLI11 knows them (one letter, or two dashes); unknown ones are an error.
  Result<std::vector<std::string>> Normalise(std::span<const std::string> args);

  std::string usage_, summary_, section_;
  std::vector<Entry> entries_;
  std::vector<PositionalEntry> positionals_;
  bool help_wanted_ = false;
};

}  // namespace cachalot
