// What a GGUF file says of a Hugging Face folder's tokenizer: the keys tokenizer.ggml.* and the chat templates.
// Invariant: what is written is read again before it counts, and cuts a text full of corners as the folder's
// own tokenizer does; what GGUF has no way to say is kUnsupported.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "formats/gguf_writer.h"

namespace cachalot {

// num_tokens: the rows of the model's embedding; ids without a token become unused ones. kNotFound where the
// folder has neither tokenizer.json nor tokenizer.model.
Status ExportVocab(const std::string& folder, int64_t num_tokens, GgufWriter* writer);

}  // namespace cachalot
