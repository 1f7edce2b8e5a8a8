// An importance matrix: for each weight tensor the mean square of what its columns are multiplied with,
// measured over some text. Read from both forms that exist: GGUF (general.type "imatrix") and the older
// binary file (.dat).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct ImportanceMatrix {
  // By tensor name: [columns], or [experts, columns] for stacked experts.
  std::map<std::string, std::vector<float>, std::less<>> values;
  std::string path;
  std::string dataset;  // "" if the file does not say
  int64_t num_chunks = 0;
};

// What is not a finite number that is not negative is kCorrupt; so is a file whose sizes do not fit.
Result<ImportanceMatrix> ReadImportanceMatrix(const std::string& path);

}  // namespace cachalot
