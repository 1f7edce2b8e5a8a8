#include "tasks/output_check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "formats/file_writer.h"
#include "formats/gguf.h"

namespace cachalot {
namespace {

// False where there is nothing: no file is the same as that.
bool Look(const std::string& path, struct stat* info) { return ::stat(path.c_str(), info) == 0; }
bool Same(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The output as it will be written: links followed, also one to a file that is not there yet.
struct Target {
  std::string path;
  bool exists = false;
  struct stat file {};
  bool has_folder = false;
  struct stat folder {};
};

// The endings of what a model's folder has.
bool IsModelPart(const std::string& name) {
  constexpr std::string_view kEndings[] = {".json", ".safetensors", ".model", ".jinja", ".txt", ".bin"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](auto ending) { return name.ends_with(ending); });
}

bool IsOfFolder(const Target& target, const std::string& folder, const struct stat& info) {
  if (target.has_folder && Same(target.folder, info) && IsModelPart(target.path)) return true;
  if (!target.exists) return false;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    struct stat found {};
    const std::string path = entry->path().string();
    if (IsModelPart(path) && Look(path, &found) && Same(target.file, found)) return true;
  }
  return false;
}

bool IsOfFile(const Target& target, const std::string& input, const struct stat& info) {
  if (!target.exists) return false;
  if (Same(target.file, info)) return true;
  const auto model = GgufFile::Open(input);
  if (!model.ok()) return false;
  return std::any_of((*model)->files().begin(), (*model)->files().end(), [&](const auto& file) {
    struct stat part {};
    return ::fstat(file->fd(), &part) == 0 && Same(target.file, part);
  });
}

}  // namespace

Status CheckNotInput(const std::string& what, const std::string& output, std::span<const std::string> inputs) {
  Target target{.path = ResolveOutput(output).path};
  target.exists = Look(target.path, &target.file);
  target.has_folder = Look(FolderOf(target.path), &target.folder);
  if (target.exists && !S_ISREG(target.file.st_mode)) return Status::Ok();  // written in place, or refused as a folder
  for (const std::string& input : inputs) {
    struct stat info {};
    if (input.empty() || !Look(input, &info)) continue;
    if (S_ISDIR(info.st_mode) && IsOfFolder(target, input, info)) {
      return InvalidArgument("{} {}: would be a part of the model's folder that is read ({})", what, output, input);
    }
    if (S_ISREG(info.st_mode) && IsOfFile(target, input, info)) {
      return InvalidArgument("{} {}: is a file that is read ({})", what, output, input);
    }
  }
  return Status::Ok();
}

Status CheckOutput(const std::string& what, const std::string& output, std::span<const std::string> inputs) {
  if (output.empty()) return InvalidArgument("{}: the output has no name", what);
  if (IsDirectory(output)) return InvalidArgument("{} {}: is a folder", what, output);
  if (output.ends_with('/')) return InvalidArgument("{} {}: names a folder, not a file", what, output);
  RETURN_IF_ERROR(CheckNotInput(what, output, inputs));
  const OutputPlace place = ResolveOutput(output);
  if (place.in_place) {
    if (::access(place.path.c_str(), W_OK) == 0) return Status::Ok();
    return InvalidArgument("{} {}: cannot be written: {}", what, output, std::strerror(errno));
  }
  if (const std::string folder = FolderOf(place.path); !IsDirectory(folder)) {
    return InvalidArgument("{} {}: there is no folder {}", what, output, folder);
  }
  // The temporary file itself tells most: rights, a read-only disk, a name that is too long. It goes at once.
  const auto writer = FileWriter::Create(output);
  return writer.ok() ? Status::Ok() : writer.status().WithContext(what);
}

}  // namespace cachalot
