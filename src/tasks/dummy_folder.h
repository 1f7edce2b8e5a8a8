// A dummy model as a Hugging Face folder: config.json, safetensors shards, tokenizer.json,
// tokenizer_config.json and generation_config.json.
#pragma once

#include <string>

#include "base/status.h"
#include "tasks/dummy_gguf.h"
#include "weights/dummy/dummy_source.h"
#include "weights/dummy/dummy_vocab.h"

namespace cachalot {

// Where the folder's tokenizer files come from.
struct FolderTokenizer {
  VocabTable vocab;       // they are written from this,
  std::string copy_from;  // or copied from this folder
};

// Makes the folder when it is not there. Types: F32, F16, BF16, F8_E4M3. config.json is written last, so that
// a folder that was left half finished is none.
Status WriteDummyFolder(const DummyModel& model, const FolderTokenizer& tokenizer, const std::string& folder,
                        const WriteProgress& progress);

}  // namespace cachalot
