// A byte-level BPE vocabulary from files (GGUF metadata, tokenizer.json) and to a tokenizer.json.
#pragma once

#include <string>

#include "base/status.h"
#include "formats/gguf.h"
#include "weights/dummy/dummy_vocab.h"

namespace cachalot {

// The pre-tokenizer becomes a sequence of splits by the expressions of vocab.pre; kUnsupported for one that
// we do not know.
Result<std::string> TokenizerJson(const VocabTable& vocab);
std::string TokenizerConfigJson(const VocabTable& vocab);

// kUnsupported for a tokenizer.ggml.model other than gpt2.
Result<VocabTable> ReadGgufVocab(const GgufFile& file);
// tokenizer.json and tokenizer_config.json. A tokenizer.json does not name its pre-tokenizer as GGUF does:
// `pre` says which it is. Ids without a token become unused ones.
Result<VocabTable> ReadFolderVocab(const std::string& folder, const std::string& pre);

}  // namespace cachalot
