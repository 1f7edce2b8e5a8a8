#include "device/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <atomic>

#include "device/cuda/cuda_error.h"

namespace cachalot {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function: the library is not linked with the driver.
CudaStatus FindEncode(Encode* out) {
  static std::atomic<void*> known = nullptr;
  void* found = known.load(std::memory_order_relaxed);
  if (found == nullptr) {
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    if (CudaStatus failure = CudaChecked(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result), "cuTensorMapEncodeTiled")) {
      return failure;
    }
    if (result != cudaDriverEntryPointSuccess || found == nullptr) {
      return CudaFail(CudaFault::kUnsupported, "the driver has no cuTensorMapEncodeTiled");
    }
    known.store(found, std::memory_order_relaxed);
  }
  *out = reinterpret_cast<Encode>(found);
  return nullptr;
}

}  // namespace

CudaStatus MakeTensorMap(const BoxesOf& boxes, CUtensorMap* map) {
  Encode encode = nullptr;
  if (CudaStatus failure = FindEncode(&encode)) return failure;
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4];
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  for (int i = 0; i < boxes.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(boxes.sizes[i]);
    box[i] = static_cast<cuuint32_t>(boxes.box[i]);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(boxes.strides[i]);
  }
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, static_cast<cuuint32_t>(boxes.rank), const_cast<void*>(boxes.data), sizes,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return nullptr;
  return CudaFail(CudaFault::kInvalid, "no tensor map of %lld x %lld values, rows of %lld bytes, boxes of %d rows at %p: driver error %d",
                  static_cast<long long>(boxes.sizes[1]), static_cast<long long>(boxes.sizes[0]), static_cast<long long>(boxes.strides[1]),
                  boxes.box[1], boxes.data, static_cast<int>(result));
}

}  // namespace cachalot
