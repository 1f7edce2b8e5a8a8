// The files of web/ and the API's description, as they were when the program was built (cmake/embed_files.cmake).
#pragma once

#include <span>
#include <string_view>

namespace cachalot {

struct EmbeddedFile {
  std::string_view name;
  std::string_view content;
};
std::span<const EmbeddedFile> EmbeddedFiles();

}  // namespace cachalot
