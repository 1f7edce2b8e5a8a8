// Token ids from the command line or a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

// "1,2,3" · FILE.json holding [..] or {"tokens": [..]} · FILE.safetensors or FILE.safetensors:NAME holding an
// I32 or I64 tensor (NAME "tokens" when not given).
Result<std::vector<int32_t>> ReadTokenIds(const std::string& text);
// The file that it reads; "" for a list.
std::string TokenFile(const std::string& text);

}  // namespace cachalot
