// What a command will write, looked at before it reads or computes anything: an output never replaces an input, and one
// that cannot be written is refused now and not after hours.
#pragma once

#include <span>
#include <string>

#include "base/status.h"

namespace cachalot {

// Files are the same by device and inode, whatever their names. An input may be "" (not given), a file (of a split GGUF
// model: all its files count) or a model's folder. There no file may be written that has the ending of
// a part of a model (.json, .safetensors, …), be it new; one that lies elsewhere and has a link there counts too. `what`:
// the flag, for the error.
Status CheckNotInput(const std::string& what, const std::string& output, std::span<const std::string> inputs);
// The above, and that the output's place can be written to.
Status CheckOutput(const std::string& what, const std::string& output, std::span<const std::string> inputs);

}  // namespace cachalot
