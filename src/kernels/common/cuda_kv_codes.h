// KvPlanes (quant/kv_format.h) as device code sees them: the same numbers, passed by value, without host functions.
#pragma once

#include "kernels/common/paged_kv.h"
#include "quant/kv_format.h"

namespace cachalot {

struct CodeRows {
  KvCode code = KvCode::kNone;
  int32_t dim = 0;
  int32_t units = 0;
  int32_t group = 0;  // values that share a scale
  int32_t groups = 0;
  int32_t main = 0;   // offsets from the start of a region
  int32_t high = 0;
  int32_t scales = 0;
  int32_t main_row = 0;
  int32_t high_row = 0;
  int32_t scale_row = 0;
};

struct CodePlanes {
  CodeRows key;
  CodeRows value;
  int32_t exact = 0;
  int32_t exact_dim = 0;
  int32_t rotation = 1;
  bool value_in_key = false;
  int64_t head_bytes = 0;
};

inline CodeRows CodeRowsOf(const KvRows& rows) {
  return {.code = rows.coding.code,
          .dim = rows.coding.dim,
          .units = rows.coding.num_units(),
          .group = rows.coding.group,
          .groups = rows.coding.num_groups(),
          .main = static_cast<int32_t>(rows.main),
          .high = static_cast<int32_t>(rows.high),
          .scales = static_cast<int32_t>(rows.scales),
          .main_row = rows.main_row,
          .high_row = rows.high_row,
          .scale_row = rows.scale_row};
}

inline CodePlanes CodePlanesOf(const KvPlanes& planes) {
  return {.key = CodeRowsOf(planes.key),
          .value = CodeRowsOf(planes.value),
          .exact = static_cast<int32_t>(planes.exact),
          .exact_dim = planes.exact_dim,
          .rotation = planes.rotation,
          .value_in_key = planes.value_in_key,
          .head_bytes = planes.head_bytes};
}

// Where the tokens at positions [0, PagedKv::sink_tokens) of a quantised cache lie; nothing where there are none.
struct CodeSinks {
  PagedKv kv;
  CodePlanes planes;
};
inline CodeSinks CodeSinksOf(const PagedKv& kv) {
  if (kv.sinks == nullptr) return {};
  return {.kv = *kv.sinks, .planes = CodePlanesOf(*kv.sinks->planes)};
}

}  // namespace cachalot
