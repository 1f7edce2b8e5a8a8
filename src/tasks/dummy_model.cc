#include "tasks/dummy_model.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "formats/gguf.h"
#include "tasks/dummy_folder.h"
#include "tasks/output_check.h"
#include "tasks/vocab_json.h"
#include "weights/dummy/vocab_families.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxVocab = 4'000'000;

// A vocabulary file's own metadata goes into the new file word for word, whatever kind of tokenizer it is.
Result<std::vector<GgufEntry>> CopyTokenizerEntries(const GgufFile& file, int32_t* vocab_size) {
  const auto* tokens = file.Strings("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->empty() || static_cast<int64_t>(tokens->size()) > kMaxVocab) {
    return Corrupt("{}: tokenizer.ggml.tokens is missing, empty or longer than {}", file.path(), kMaxVocab);
  }
  *vocab_size = static_cast<int32_t>(tokens->size());
  std::vector<GgufEntry> entries;
  for (const auto& entry : file.entries()) {
    if (entry.key.starts_with("tokenizer.")) entries.push_back(entry);
  }
  return entries;
}

Status ToGguf(DummyModel model, const std::string& from, const std::string& out,
              const WriteProgress& progress, DummyReport* report) {
  std::vector<GgufEntry> tokenizer;
  if (from.empty()) {
    tokenizer = VocabMetadata(MakeDummyVocab(model.spec));
  } else if (IsDirectory(from)) {
    ASSIGN_OR_RETURN(VocabTable vocab, ReadFolderVocab(from, LayoutOf(model.spec.vocab).pre));
    PadVocab(model.spec.vocab_size, &vocab);
    model.spec.vocab_size = static_cast<int32_t>(vocab.tokens.size());
    tokenizer = VocabMetadata(vocab);
  } else {
    ASSIGN_OR_RETURN(const auto file, GgufFile::Open(from));
    ASSIGN_OR_RETURN(tokenizer, CopyTokenizerEntries(*file, &model.spec.vocab_size));
  }
  report->vocab_size = model.spec.vocab_size;
  return WriteDummyGguf(model, tokenizer, out, progress);
}

Status ToFolder(DummyModel model, const std::string& from, const std::string& out,
                const WriteProgress& progress, DummyReport* report) {
  FolderTokenizer tokenizer;
  if (from.empty()) {
    tokenizer.vocab = MakeDummyVocab(model.spec);
  } else if (IsDirectory(from)) {
    ASSIGN_OR_RETURN(tokenizer.vocab, ReadFolderVocab(from, LayoutOf(model.spec.vocab).pre));
    tokenizer.copy_from = from;
  } else {
    ASSIGN_OR_RETURN(const auto file, GgufFile::Open(from));
    ASSIGN_OR_RETURN(tokenizer.vocab, ReadGgufVocab(*file));
    model.spec.vocab_size = 0;
  }
  model.spec.vocab_size =
      std::max(model.spec.vocab_size, static_cast<int32_t>(tokenizer.vocab.tokens.size()));
  report->vocab_size = model.spec.vocab_size;
  return WriteDummyFolder(model, tokenizer, out, progress);
}

}  // namespace

Result<DummyReport> WriteDummy(const DummyRequest& request, const WriteProgress& progress) {
  ASSIGN_OR_RETURN(const DummyModel model, ResolveDummy(request.spec, request.layers, request.type));
  if (!request.vocab.empty() && !IsDirectory(request.vocab) && !FileExists(request.vocab)) {
    return NotFound("{}: no such file or folder", request.vocab);
  }
  if (request.out.ends_with(".gguf")) {
    RETURN_IF_ERROR(CheckOutput("-o", request.out, std::span(&request.vocab, 1)));
  } else if (std::error_code ignored; std::filesystem::equivalent(request.vocab, request.out, ignored)) {
    return InvalidArgument("-o {}: is the folder that the vocabulary is read from", request.out);
  }
  DummyReport report;
  report.type = model.type;
  report.layers = model.spec.layers;
  const bool gguf = request.out.ends_with(".gguf");
  RETURN_IF_ERROR(gguf ? ToGguf(model, request.vocab, request.out, progress, &report)
                       : ToFolder(model, request.vocab, request.out, progress, &report));
  return report;
}

}  // namespace cachalot
