#include "tasks/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/cpu_features.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "formats/gguf_writer.h"
#include "formats/text.h"
#include "quant/format.h"
#include "tasks/importance.h"
#include "tasks/output_check.h"
#include "tasks/quantize_source.h"

namespace cachalot {
namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;

int64_t ColsOf(const GgufTensor& tensor) {
  return tensor.dims[static_cast<size_t>(tensor.num_dims - 1)];
}
int64_t RowsOf(const GgufTensor& tensor) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < tensor.num_dims; ++i) rows *= tensor.dims[static_cast<size_t>(i)];
  return rows;
}
bool Plain(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

struct Plan {
  std::unique_ptr<QuantizeSource> source;
  std::vector<DType> types;
  std::optional<ImportanceMatrix> importance;
  QuantizeReport report;
};

// The weights of a tensor's columns: [columns], [matrices, columns], or null.
Result<const std::vector<float>*> ImportanceOf(const Plan& plan, const GgufTensor& tensor) {
  if (!plan.importance.has_value()) return static_cast<const std::vector<float>*>(nullptr);
  const auto found = plan.importance->values.find(tensor.name);
  if (found == plan.importance->values.end()) return static_cast<const std::vector<float>*>(nullptr);
  const int64_t cols = ColsOf(tensor), matrices = tensor.num_dims == 3 ? tensor.dims[0] : 1;
  const auto count = static_cast<int64_t>(found->second.size());
  if (count != cols && count != cols * matrices) {
    return Corrupt("{}: '{}' has {} values, the tensor {} columns and {} matrices: of another model?",
                   plan.importance->path, Printable(tensor.name), count, cols, matrices);
  }
  return &found->second;
}

Result<Plan> MakePlan(const QuantizeRequest& request) {
  CHECK(request.choices.recipe != nullptr);
  Plan plan;
  ASSIGN_OR_RETURN(plan.source, OpenQuantizeSource(request.in));
  QuantizeFacts facts = plan.source->facts();
  if (!request.importance.empty()) {
    ASSIGN_OR_RETURN(plan.importance, ReadImportanceMatrix(request.importance));
    facts.has_importance = true;
  }
  ASSIGN_OR_RETURN(plan.types, ChooseTypes(request.in, plan.source->tensors(), facts, request.choices));
  for (const std::string& pattern : RulesWithoutTensors(plan.source->tensors(), request.choices)) {
    plan.report.warnings.push_back(fmt::format("--tensor-type {}: no tensor has such a name", Printable(pattern)));
  }
  if (IsDirectory(request.in) && !FileExists(request.in + "/tokenizer.json") && !FileExists(request.in + "/tokenizer.model")) {
    plan.report.warnings.push_back(
        fmt::format("{}: there is neither tokenizer.json nor tokenizer.model: the file will have no tokenizer", request.in));
  }
  for (size_t i = 0; i < plan.types.size(); ++i) {
    const GgufTensor& tensor = plan.source->tensors()[i];
    QuantizedTensor row{.name = tensor.name, .from = plan.source->StoredType(i), .to = plan.types[i]};
    row.from_bytes = RowsOf(tensor) * DTypeBytes(row.from, ColsOf(tensor));
    row.to_bytes = RowsOf(tensor) * DTypeBytes(row.to, ColsOf(tensor));
    if (tensor.dtype != row.to) {
      if (FindQuantFormat(row.from) == nullptr) {
        return Unsupported("{}: tensor '{}' has type {}, which this version cannot read", request.in,
                           Printable(tensor.name), DTypeName(row.from));
      }
      if (!Plain(tensor.dtype) && !request.allow_requantize) {
        return InvalidArgument(
            "{}: tensor '{}' is {} already: what that lost stays lost, and more goes; "
            "--allow-requantize does it all the same",
            request.in, Printable(tensor.name), DTypeName(row.from));
      }
      ASSIGN_OR_RETURN(const auto* weights, ImportanceOf(plan, tensor));
      row.weighted = weights != nullptr && FindQuantFormat(row.to)->encode_weighted != nullptr;
    }
    plan.report.from_bytes += row.from_bytes;
    plan.report.to_bytes += row.to_bytes;
    plan.report.tensors.push_back(std::move(row));
  }
  return plan;
}

// Streams tensors one after the other, each in chunks whose rows the threads share.
class Writer {
 public:
  Writer(const Plan& plan, int num_threads, const QuantizeProgress& progress)
      : plan_(plan), progress_(progress), pool_(num_threads) {}

  Status Fill(size_t index, ByteSink& sink) {
    const GgufTensor& tensor = plan_.source->tensors()[index];
    const DType to = plan_.types[index];
    const int64_t cols = ColsOf(tensor), rows = RowsOf(tensor);
    const int64_t in_row = DTypeBytes(tensor.dtype, cols), out_row = DTypeBytes(to, cols);
    const int64_t rows_a_chunk = std::max<int64_t>(1, kChunkBytes / std::max(in_row, out_row));
    const std::span<const std::byte> raw = plan_.source->Raw(index);
    const bool copied = to == tensor.dtype && !raw.empty();
    ASSIGN_OR_RETURN(const std::vector<float>* importance, ImportanceOf(plan_, tensor));
    for (int64_t begin = 0; begin < rows; begin += rows_a_chunk) {
      const int64_t count = std::min(rows_a_chunk, rows - begin);
      if (copied) {
        RETURN_IF_ERROR(Put(sink, raw.subspan(static_cast<size_t>(begin * in_row), static_cast<size_t>(count * in_row))));
      } else {
        chunk_.resize(static_cast<size_t>(count * out_row));
        RETURN_IF_ERROR(Rows({.tensor = index,
                              .to = to,
                              .cols = cols,
                              .begin = begin,
                              .count = count,
                              .rows_a_matrix = tensor.num_dims == 3 ? rows / tensor.dims[0] : rows,
                              .importance = importance}));
        RETURN_IF_ERROR(Put(sink, chunk_));
      }
      plan_.source->ReleaseRows(index, begin, count);
    }
    return Status::Ok();
  }

 private:
  struct Piece {
    size_t tensor;
    DType to;
    int64_t cols, begin, count, rows_a_matrix;
    const std::vector<float>* importance;
  };

  Status Rows(const Piece& piece) {
    const QuantFormat& to = *FindQuantFormat(piece.to);
    const int64_t out_row = DTypeBytes(piece.to, piece.cols);
    std::vector<std::vector<float>> scratch(static_cast<size_t>(pool_.num_threads()));
    std::atomic<int64_t> bad_row{-1};
    pool_.ParallelFor(piece.count, [&](int64_t i, int thread_idx) {
      std::vector<float>& values = scratch[static_cast<size_t>(thread_idx)];
      values.resize(static_cast<size_t>(piece.cols));
      const int64_t row = piece.begin + i;
      plan_.source->DecodeRow(piece.tensor, row, values.data());
      const bool finite = std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
      if (!finite) bad_row = row;
      const float* weights = nullptr;
      if (piece.importance != nullptr) {
        const bool stacked = static_cast<int64_t>(piece.importance->size()) > piece.cols;
        weights = piece.importance->data() + (stacked ? row / piece.rows_a_matrix * piece.cols : 0);
      }
      std::byte* out = chunk_.data() + i * out_row;
      if (to.encode_weighted != nullptr)
        to.encode_weighted(values.data(), weights, out, piece.cols);
      else
        to.encode(values.data(), out, piece.cols);
    });
    if (bad_row >= 0) return Corrupt("row {} holds a value that is no finite number", bad_row.load());
    return Status::Ok();
  }

  Status Put(ByteSink& sink, std::span<const std::byte> bytes) {
    RETURN_IF_ERROR(sink.Append(bytes));
    done_bytes_ += static_cast<int64_t>(bytes.size());
    if (progress_ && !progress_(done_bytes_, plan_.report.to_bytes)) {
      return Cancelled("stopped after {} of {} bytes", done_bytes_, plan_.report.to_bytes);
    }
    return Status::Ok();
  }

  const Plan& plan_;
  const QuantizeProgress& progress_;
  ThreadPool pool_;
  int64_t done_bytes_ = 0;
  std::vector<std::byte> chunk_;
};

void SetMetadata(const Plan& plan, const QuantizeRequest& request, GgufWriter* writer) {
  for (const GgufEntry& entry : plan.source->entries()) writer->Set(entry.key, entry.value);
  writer->SetU32("general.file_type", request.choices.recipe->file_type);
  writer->SetU32("general.quantization_version", 2);
  if (!plan.importance.has_value()) return;
  writer->SetString("quantize.imatrix.file",
                    std::filesystem::path(plan.importance->path).filename().string());
  if (!plan.importance->dataset.empty())
    writer->SetString("quantize.imatrix.dataset", plan.importance->dataset);
  writer->SetI32("quantize.imatrix.entries_count", static_cast<int32_t>(plan.importance->values.size()));
  if (plan.importance->num_chunks > 0) {
    writer->SetI32("quantize.imatrix.chunks_count",
                   static_cast<int32_t>(std::min<int64_t>(plan.importance->num_chunks, INT32_MAX)));
  }
}

}  // namespace

Result<QuantizeReport> PlanQuantize(const QuantizeRequest& request) {
  ASSIGN_OR_RETURN(Plan plan, MakePlan(request));
  return std::move(plan.report);
}

Result<QuantizeReport> Quantize(const QuantizeRequest& request, const QuantizeProgress& progress, const QuantizePlanned& planned) {
  const std::string inputs[] = {request.in, request.importance};
  RETURN_IF_ERROR(CheckOutput("OUT.gguf", request.out, inputs));
  ASSIGN_OR_RETURN(Plan plan, MakePlan(request));
  if (planned) planned(plan.report);
  GgufWriter gguf;
  SetMetadata(plan, request, &gguf);
  for (size_t i = 0; i < plan.types.size(); ++i) {
    const GgufTensor& tensor = plan.source->tensors()[i];
    RETURN_IF_ERROR(gguf.AddTensor(tensor.name, plan.types[i],
                                   {tensor.dims.data(), static_cast<size_t>(tensor.num_dims)}));
  }
  Writer writer(plan, request.num_threads > 0 ? request.num_threads : NumPhysicalCores(), progress);
  size_t next = 0;
  RETURN_IF_ERROR(
      gguf.Write(request.out, [&](const GgufTensor&, ByteSink& sink) { return writer.Fill(next++, sink); }));
  return std::move(plan.report);
}

}  // namespace cachalot
