#include "tasks/importance_collector.h"

#include <algorithm>
#include <cmath>

#include "formats/gguf_writer.h"
#include "formats/text.h"

namespace cachalot {

void ImportanceCollector::OnMatrix(const PackedMatrix& matrix, const std::string& name, int32_t idx, int32_t count) {
  if (!name.starts_with("blk.") || matrix.data == nullptr) return;
  Matrix& entry = matrices_[matrix.data];
  entry.squares.resize(static_cast<size_t>(matrix.k));
  entry.slices.push_back({name, idx, count});
}

void ImportanceCollector::OnRows(const MatmulGroup& group) {
  const auto found = matrices_.find(group.weight->data);
  if (found == matrices_.end()) return;
  Matrix& entry = found->second;
  for (int64_t i = 0; i < group.m; ++i) {
    const float* x = group.x + (group.x_rows == nullptr ? i : group.x_rows[i]) * group.x_stride;
    for (size_t c = 0; c < entry.squares.size(); ++c) entry.squares[c] += double{x[c]} * double{x[c]};
  }
  entry.rows += group.m;
  const bool finite = std::all_of(entry.squares.begin(), entry.squares.end(), [](double v) { return std::isfinite(v); });
  if (!finite && bad_tensor_.empty()) bad_tensor_ = entry.slices.front().name;
}

std::map<std::string, ImportanceCollector::Sums> ImportanceCollector::Take() const {
  std::map<std::string, Sums> all;
  for (const auto& [data, matrix] : matrices_) {
    for (const Slice& slice : matrix.slices) {
      Sums& sums = all[slice.name];
      const size_t columns = matrix.squares.size(), count = static_cast<size_t>(slice.count);
      sums.columns = static_cast<int64_t>(columns);
      sums.squares.resize(columns * count);
      sums.counts.resize(count);
      const auto idx = static_cast<size_t>(slice.idx);
      for (size_t c = 0; c < columns; ++c) sums.squares[idx * columns + c] = static_cast<float>(matrix.squares[c]);
      sums.counts[idx] = static_cast<float>(matrix.rows);
    }
  }
  std::erase_if(all, [](const auto& item) {
    return std::all_of(item.second.counts.begin(), item.second.counts.end(), [](float count) { return count == 0; });
  });
  return all;
}

Status WriteImportance(const std::string& path, const ImportanceCollector& collector, const std::string& dataset,
                       int64_t num_chunks, int64_t chunk_tokens) {
  if (!collector.bad_tensor().empty()) {
    return Corrupt("what '{}' is multiplied with is no finite number", Printable(collector.bad_tensor()));
  }
  const auto all = collector.Take();
  if (all.empty()) return InvalidArgument("{}: no matrix product was seen", path);
  GgufWriter writer;
  writer.SetString("general.type", "imatrix");
  writer.SetStrings("imatrix.datasets", {dataset});
  writer.SetU32("imatrix.chunk_count", static_cast<uint32_t>(num_chunks));
  writer.SetU32("imatrix.chunk_size", static_cast<uint32_t>(chunk_tokens));
  for (const auto& [name, sums] : all) {
    const auto matrices = static_cast<int64_t>(sums.counts.size());
    const int64_t square_dims[] = {matrices, sums.columns}, count_dims[] = {matrices, 1};
    RETURN_IF_ERROR(writer.AddTensor(name + ".in_sum2", DType::kF32, square_dims));
    RETURN_IF_ERROR(writer.AddTensor(name + ".counts", DType::kF32, count_dims));
  }
  return writer.Write(path, [&](const GgufTensor& tensor, ByteSink& sink) {
    const bool counts = tensor.name.ends_with(".counts");
    const auto& sums = all.at(tensor.name.substr(0, tensor.name.rfind('.')));
    return sink.Append(std::as_bytes(std::span(counts ? sums.counts : sums.squares)));
  });
}

}  // namespace cachalot
