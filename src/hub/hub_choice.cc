#include "hub/hub_choice.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "formats/text.h"

namespace cachalot {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

std::string_view FileName(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool IsName(std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
  });
  return plain && !text.empty() && text.size() <= 96 && text.front() != '.' && text.front() != '-' &&
         text.find("..") == std::string_view::npos && text.find("--") == std::string_view::npos;
}

// "x-00002-of-00005.gguf"
struct Split {
  std::string prefix;
  int64_t index = 1, count = 1;
};
Split SplitOf(std::string_view path) {
  Split split{.prefix = std::string(path)};
  constexpr std::string_view kEnd = ".gguf";
  constexpr size_t kPart = 15;  // -00002-of-00005
  if (path.size() < kPart + kEnd.size()) return split;
  const std::string_view part = path.substr(path.size() - kEnd.size() - kPart, kPart);
  const auto number = [](std::string_view digits) {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() ? value : -1;
  };
  const int64_t index = number(part.substr(1, 5)), count = number(part.substr(10, 5));
  if (part[0] != '-' || part.substr(6, 4) != "-of-" || index < 1 || count < index) return split;
  split.prefix = path.substr(0, path.size() - kEnd.size() - kPart);
  split.index = index;
  split.count = count;
  return split;
}

bool IsGguf(const HubFile& file) { return Lower(file.path).ends_with(".gguf"); }

bool IsGgufModel(const HubFile& file) {
  if (!IsGguf(file)) return false;
  const std::string name = Lower(FileName(file.path));
  for (const char* other : {"mmproj", "imatrix", "mtp-", "eagle3-", "dflash-"}) {
    if (name.find(other) != std::string::npos) return false;
  }
  return SplitOf(file.path).index == 1;
}

// The quant's name ends at a dot or a dash: "…-Q4_K_M.gguf", "…-Q4_K_M-00001-of-00002.gguf".
bool HasQuant(const HubFile& file, std::string_view quant) {
  const std::string path = Lower(file.path), wanted = Lower(quant);
  for (size_t at = path.find(wanted); at != std::string::npos; at = path.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    const bool begins = at == 0 || !std::isalnum(static_cast<unsigned char>(path[at - 1]));
    if (begins && end < path.size() && (path[end] == '.' || path[end] == '-')) return true;
  }
  return false;
}

Result<HubChoice> WithAllParts(const std::vector<HubFile>& files, const HubFile& first, const std::string& repo) {
  HubChoice choice{.files = {}, .model = first.path};
  const Split split = SplitOf(first.path);
  for (int64_t i = 1; i <= split.count; ++i) {
    const std::string path =
        split.count == 1 ? first.path : fmt::format("{}-{:05}-of-{:05}.gguf", split.prefix, i, split.count);
    const auto found = std::find_if(files.begin(), files.end(), [&](const HubFile& file) { return file.path == path; });
    if (found == files.end()) return NotFound("{}: '{}' is missing, a part of the model", repo, Printable(path));
    choice.files.push_back(*found);
  }
  return choice;
}

// What a folder of safetensors needs to be opened. consolidated.*.safetensors hold the same weights in another form.
Result<HubChoice> Folder(const std::vector<HubFile>& files, const std::string& repo) {
  HubChoice choice;
  bool has_config = false, has_weights = false;
  for (const HubFile& file : files) {
    if (file.path.find('/') != std::string::npos) continue;
    const std::string_view path = file.path;
    const bool weights = path.ends_with(".safetensors") && !path.starts_with("consolidated");
    if (!weights && !path.ends_with(".json") && !path.ends_with(".jinja") && path != "tokenizer.model") continue;
    has_config |= path == "config.json";
    has_weights |= weights;
    choice.files.push_back(file);
  }
  if (!has_config || !has_weights) {
    return NotFound("{}: neither a GGUF file nor a folder of config.json and safetensors files ({} files)", repo,
                    files.size());
  }
  return choice;
}

}  // namespace

Result<HubModelName> ParseHubModelName(std::string_view text) {
  HubModelName name;
  std::string_view repo = text;
  const size_t colon = repo.find(':');
  if (colon != std::string_view::npos) {
    name.quant = repo.substr(colon + 1);
    repo = repo.substr(0, colon);
    if (!IsName(name.quant)) return InvalidArgument("'{}': no quant's name behind ':'", Printable(text));
    if (Lower(name.quant) == "latest") name.quant.clear();
  }
  const size_t at = repo.find('@');
  if (at != std::string_view::npos) {
    name.revision = repo.substr(at + 1);
    repo = repo.substr(0, at);
    RETURN_IF_ERROR(CheckHubPath(name.revision).WithContext(fmt::format("'{}': the revision", Printable(text))));
  }
  const size_t slash = repo.find('/');
  if (slash == std::string_view::npos || !IsName(repo.substr(0, slash)) || !IsName(repo.substr(slash + 1))) {
    return InvalidArgument("'{}' is not ORG/REPO[:QUANT]", Printable(text));
  }
  name.repo = repo;
  return name;
}

Status CheckHubPath(std::string_view path) {
  if (path.empty() || path.size() > 1024) return Corrupt("a file name of {} bytes, must be 1..1024", path.size());
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') {
      return Corrupt("'{}' has a character that no file name may have", Printable(path));
    }
  }
  std::string_view rest = path;
  for (;;) {
    const size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) {
      return Corrupt("'{}' would leave its folder, or has a part of more than 255 bytes", Printable(path));
    }
    if (slash == std::string_view::npos) return Status::Ok();
    rest.remove_prefix(slash + 1);
  }
}

Result<HubChoice> ChooseHubFiles(const std::vector<HubFile>& files, const HubModelName& name, const std::string& file) {
  if (!file.empty()) {
    for (const HubFile& candidate : files) {
      if (candidate.path == file) return WithAllParts(files, candidate, name.repo);
    }
    return NotFound("{}: there is no file '{}'", name.repo, Printable(file));
  }
  std::vector<const HubFile*> models;
  std::string there;
  for (const HubFile& candidate : files) {
    if (!IsGgufModel(candidate)) continue;
    models.push_back(&candidate);
    if (models.size() <= 40) there += (there.empty() ? "" : ", ") + Printable(candidate.path);
  }
  std::vector<std::string> quants = {name.quant};
  if (name.quant.empty()) quants = {"Q4_K_M", "Q8_0"};
  for (const std::string& quant : quants) {
    for (const HubFile* model : models) {
      if (HasQuant(*model, quant)) return WithAllParts(files, *model, name.repo);
    }
  }
  if (!name.quant.empty()) {
    return NotFound("{}: no GGUF file of {}; there are: {}", name.repo, name.quant, there.empty() ? "none" : there);
  }
  return models.empty() ? Folder(files, name.repo) : WithAllParts(files, *models.front(), name.repo);
}

}  // namespace cachalot
