// The tensor map of a layer's cache, encoded by the driver.
#include "kernels/attention/attention_tma.cuh"

#include <cuda_runtime.h>

namespace cachalot {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(function) : nullptr;
}

}  // namespace

bool MakeCacheTensorMap(const PagedKv& kv, int panels, CUtensorMap* map) {
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) return false;
  constexpr cuuint64_t kPanelValues = 64, kAllRows = (cuuint64_t{1} << 31) - 1;
  const auto row_bytes = static_cast<cuuint64_t>(kv.k_dim) * 2;
  const cuuint64_t dims[] = {kPanelValues, kAllRows, static_cast<cuuint64_t>(kv.k_dim) / kPanelValues};
  const cuuint64_t strides[] = {row_bytes, kPanelValues * 2};  // of rows, of panels
  const cuuint32_t box[] = {kPanelValues, kTmaRun, static_cast<cuuint32_t>(panels)}, steps[] = {1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, kv.data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace cachalot
