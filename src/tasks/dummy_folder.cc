#include "tasks/dummy_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "formats/safetensors_writer.h"
#include "tasks/vocab_json.h"
#include "weights/dummy/dummy_values.h"

namespace cachalot {
namespace {

constexpr int64_t kShardBytes = int64_t{5} << 30;  // as the hub's own files
constexpr int64_t kPieceBytes = int64_t{32} << 20;

Status WriteWeights(const DummyModel& model, const std::string& folder, const WriteProgress& progress) {
  const std::vector<DummyTensor> tensors = ListDummyTensors(model.spec, model.type);
  SafetensorsWriter writer;
  std::unordered_map<std::string_view, const DummyTensor*> by_name;
  int64_t total_bytes = 0, done_bytes = 0;
  for (const auto& tensor : tensors) {
    by_name.emplace(tensor.info.name, &tensor);
    total_bytes += tensor.info.num_bytes();
    RETURN_IF_ERROR(writer.AddTensor(tensor.info.name, tensor.info.dtype,
                                     {tensor.info.dims, static_cast<size_t>(tensor.info.num_dims)}));
  }
  std::vector<std::byte> piece;
  return writer.WriteFolder(folder, kShardBytes,
                            [&](const SafetensorsTensor& target, ByteSink& sink) -> Status {
                              const DummyTensor& tensor = *by_name.at(target.name);
                              const int64_t row_bytes = DTypeBytes(tensor.info.dtype, tensor.num_cols());
                              const int64_t rows_at_once = std::max<int64_t>(1, kPieceBytes / row_bytes);
                              for (int64_t row = 0; row < tensor.num_rows(); row += rows_at_once) {
                                const int64_t count = std::min(rows_at_once, tensor.num_rows() - row);
                                piece.resize(static_cast<size_t>(count * row_bytes));
                                FillDummyRows(tensor, row, count, piece);
                                RETURN_IF_ERROR(sink.Append(piece));
                                done_bytes += static_cast<int64_t>(piece.size());
                                if (progress && !progress(done_bytes, total_bytes)) {
                                  return Cancelled("stopped after {} of {} bytes", done_bytes, total_bytes);
                                }
                              }
                              return Status::Ok();
                            });
}

Status WriteTokenizer(const VocabTable& vocab, const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string tokenizer, TokenizerJson(vocab));
  RETURN_IF_ERROR(WriteFileAtomically(folder + "/tokenizer.json", tokenizer));
  RETURN_IF_ERROR(WriteFileAtomically(folder + "/tokenizer_config.json", TokenizerConfigJson(vocab)));
  nlohmann::ordered_json generation = nlohmann::ordered_json::object();
  if (vocab.bos_id >= 0) generation["bos_token_id"] = vocab.bos_id;
  if (vocab.eos_id >= 0) generation["eos_token_id"] = vocab.eos_id;
  return WriteFileAtomically(folder + "/generation_config.json", generation.dump(2) + "\n");
}

Status CopyTokenizer(const std::string& from, const std::string& to) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"}) {
    if (!FileExists(from + "/" + name)) continue;
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(from + "/" + name, int64_t{128} << 20));
    RETURN_IF_ERROR(WriteFileAtomically(to + "/" + name, text));
  }
  return Status::Ok();
}

}  // namespace

Status WriteDummyFolder(const DummyModel& model, const FolderTokenizer& tokenizer, const std::string& folder,
                        const WriteProgress& progress) {
  if (IsQuantized(model.type)) {
    return Unsupported("{}: a folder cannot hold type {}; give FILE.gguf as the output instead", folder,
                       DTypeName(model.type));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return InvalidArgument("{}: the folder cannot be made: {}", folder, error.message());
  RETURN_IF_ERROR(WriteWeights(model, folder, progress));
  RETURN_IF_ERROR(tokenizer.copy_from.empty() ? WriteTokenizer(tokenizer.vocab, folder)
                                              : CopyTokenizer(tokenizer.copy_from, folder));
  return WriteFileAtomically(
      folder + "/config.json",
      DummyConfigJson(model.spec, model.type, tokenizer.vocab.bos_id, tokenizer.vocab.eos_id));
}

}  // namespace cachalot
