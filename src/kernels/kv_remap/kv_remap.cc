#include "kernels/kv_remap/kv_remap.h"

#include "base/check.h"
#include "base/status.h"
#include "kernels/common/dispatch.h"
#include "kernels/kv_remap/kv_remap_variants.h"
#include "quant/kv_code.h"

namespace cachalot {
namespace {

constexpr KernelVariant<KvRemapParams> kVariants[] = {
    {Isa::kAvx2, nullptr, &KvRemapAvx2},
    {Isa::kRef, nullptr, &KvRemapRef},
};

Status CheckTable(const KvRemapTable& table, int32_t batch, const char* name) {
  if (table.indptr == nullptr) {
    if (batch > table.num_pages) return InvalidArgument("{} table: {} sequences, but {} pages", name, batch, table.num_pages);
    return Status::Ok();
  }
  if (table.indptr[0] < 0) return InvalidArgument("{} table: indptr[0] is {}", name, table.indptr[0]);
  for (int32_t b = 0; b < batch; ++b) {
    const int32_t begin = table.indptr[b], end = table.indptr[b + 1];
    if (end < begin || end > table.num_indices) {
      return InvalidArgument("{} table: indptr[{}] is {}, between {} and the number of indices, {}, it must be", name, b + 1, end,
                             begin, table.num_indices);
    }
    if (end == begin) continue;
    if (table.last_page[b] < 1 || table.last_page[b] > table.page_tokens) {
      return InvalidArgument("{} table: last_page_len[{}] is {}, from 1 to {} it must be", name, b, table.last_page[b],
                             table.page_tokens);
    }
    for (int32_t i = begin; i < end; ++i) {
      if (table.indices[i] < 0 || table.indices[i] >= table.num_pages) {
        return InvalidArgument("{} table: indices[{}] is {}, of {} pages", name, i, table.indices[i], table.num_pages);
      }
    }
  }
  return Status::Ok();
}

Status CheckTables(const KvRemapParams& p) {
  RETURN_IF_ERROR(CheckTable(p.from, p.batch, "source"));
  RETURN_IF_ERROR(CheckTable(p.to, p.batch, "page"));
  for (int32_t b = 0; b < p.batch; ++b) {
    const int64_t from = RemapLength(p.from, b), to = RemapLength(p.to, b);
    if (p.from.indptr == nullptr ? to > from : to != from) {
      return InvalidArgument("sequence {}: {} tokens in the source, {} in the page table", b, from, to);
    }
  }
  return Status::Ok();
}

}  // namespace

Status KvRemap(const ExecContext& ctx, const KvRemapParams& params) {
  CHECK(params.num_tensors >= 0 && params.num_tensors <= kMaxRemapTensors && (params.from.indptr == nullptr || params.to.indptr != nullptr));
  RETURN_IF_ERROR(CheckTables(params));
  RunVariant(kVariants, ctx, params);
  return Status::Ok();
}

int64_t KvRemapMainBytes(KvRemapCode code, int32_t dim) {
  const int64_t n = dim, units = (n + kKvUnit - 1) / kKvUnit;
  switch (code) {
    case KvRemapCode::kInt4:
      return (n + 1) / 2;
    case KvRemapCode::kInt6:
      return (n * 6 + 7) / 8;
    case KvRemapCode::kInt4Unit:
    case KvRemapCode::kInt6Unit:
      return units * 16;
    case KvRemapCode::kInt8:
    case KvRemapCode::kE4M3:
      return n;
    case KvRemapCode::kF16:
    case KvRemapCode::kBF16:
      return n * 2;
  }
  return 0;
}

int64_t KvRemapHighBytes(KvRemapCode code, int32_t dim) {
  return code == KvRemapCode::kInt6Unit ? (int64_t{dim} + kKvUnit - 1) / kKvUnit * 8 : 0;
}

int64_t KvRemapScaleSize(KvRemapScale type) {
  switch (type) {
    case KvRemapScale::kOne:
      return 0;
    case KvRemapScale::kF16:
    case KvRemapScale::kBF16:
      return 2;
    default:
      return 4;
  }
}

}  // namespace cachalot
