// Dense matmuls of many rows by cuBLASLt: 16-bit W and x, F32 sums and y. Its algorithm is chosen once for a shape (m up to
// the next multiple of 256) and kept.
#include <cublasLt.h>

#include <map>
#include <mutex>
#include <tuple>

#include "device/cuda/cuda_error.h"
#include "kernels/matmul/matmul_launch.h"

namespace cachalot {
namespace {

constexpr int64_t kBucketRows = 256;

CudaStatus BlasChecked(cublasStatus_t status, const char* call, const BlasMatmul& p) {
  if (status == CUBLAS_STATUS_SUCCESS) return nullptr;
  return CudaFail(status == CUBLAS_STATUS_ALLOC_FAILED ? CudaFault::kExhausted : CudaFault::kDevice,
                  "matmul of m %lld, n %lld, k %lld: %s: %s", static_cast<long long>(p.m), static_cast<long long>(p.n),
                  static_cast<long long>(p.k), call, cublasLtGetStatusString(status));
}

uint32_t AlignmentOf(const void* pointer, int64_t stride_bytes) {
  uint32_t alignment = 256;
  while ((reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride_bytes)) % alignment != 0) alignment /= 2;
  return alignment;
}

// Column-major, as the library sees it: y [n, m] = Wᵀ [k, n] x [k, m].
struct Descriptors {
  cublasLtMatmulDescOpaque_t matmul;
  cublasLtMatrixLayoutOpaque_t w, x, y;

  CudaStatus Init(const BlasMatmul& p, int64_t m) {
    const cudaDataType_t type = p.dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
    const auto unsign = [](int64_t value) { return static_cast<uint64_t>(value); };
    const cublasOperation_t transposed = CUBLAS_OP_T;
    for (const cublasStatus_t status :
         {cublasLtMatmulDescInit(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          cublasLtMatmulDescSetAttribute(&matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
          cublasLtMatrixLayoutInit(&w, type, unsign(p.k), unsign(p.n), p.w_stride),
          cublasLtMatrixLayoutInit(&x, type, unsign(p.k), unsign(m), p.x_stride),
          cublasLtMatrixLayoutInit(&y, CUDA_R_32F, unsign(p.n), unsign(m), p.y_stride)}) {
      if (CudaStatus failure = BlasChecked(status, "descriptors", p)) return failure;
    }
    return nullptr;
  }
};

// What is kept for one device.
struct Handle {
  cublasLtHandle_t handle = nullptr;
  using Key = std::tuple<DType, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint32_t>;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;
};

std::mutex mutex;

// By device; the caller holds the mutex. Never destroyed: the driver may be gone before the process ends.
std::map<int, Handle>& Handles() {
  static auto* handles = new std::map<int, Handle>;
  return *handles;
}

// Of the current device; the caller holds the mutex.
CudaStatus FindHandle(Handle** out) {
  int device = 0;
  if (CudaStatus failure = CudaChecked(cudaGetDevice(&device), "cudaGetDevice")) return failure;
  Handle& entry = Handles()[device];
  if (entry.handle == nullptr) {
    const cublasStatus_t status = cublasLtCreate(&entry.handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
      entry.handle = nullptr;
      return CudaFail(status == CUBLAS_STATUS_ALLOC_FAILED ? CudaFault::kExhausted : CudaFault::kDevice,
                      "cublasLtCreate: %s", cublasLtGetStatusString(status));
    }
  }
  *out = &entry;
  return nullptr;
}

CudaStatus ChooseAlgorithm(const Handle& handle, const BlasMatmul& p, int64_t m, uint32_t y_alignment,
                           cublasLtMatmulAlgo_t* algorithm) {
  Descriptors descriptors;
  if (CudaStatus failure = descriptors.Init(p, m)) return failure;
  cublasLtMatmulPreferenceOpaque_t preference;
  const auto workspace = static_cast<size_t>(kBlasWorkspaceBytes);
  const uint32_t w_alignment = AlignmentOf(p.w, p.w_stride * 2), x_alignment = AlignmentOf(p.x, p.x_stride * 2);
  for (const cublasStatus_t status :
       {cublasLtMatmulPreferenceInit(&preference),
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof(workspace)),
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w_alignment,
                                             sizeof(w_alignment)),
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x_alignment,
                                             sizeof(x_alignment)),
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y_alignment,
                                             sizeof(y_alignment)),
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y_alignment,
                                             sizeof(y_alignment))}) {
    if (CudaStatus failure = BlasChecked(status, "preferences", p)) return failure;
  }
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle.handle, &descriptors.matmul, &descriptors.w, &descriptors.x, &descriptors.y,
                                     &descriptors.y, &preference, 1, &result, &found);
  if (CudaStatus failure = BlasChecked(status, "cublasLtMatmulAlgoGetHeuristic", p)) return failure;
  if (found == 0) return BlasChecked(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", p);
  *algorithm = result.algo;
  return nullptr;
}

}  // namespace

CudaStatus InitBlas() {
  const std::lock_guard<std::mutex> lock(mutex);
  Handle* handle = nullptr;
  return FindHandle(&handle);
}

// Of every device, since a lost one can't even be asked which it is; for the same reason no failure counts.
void ReleaseBlas() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto& [device, entry] : Handles()) {
    if (entry.handle != nullptr) cublasLtDestroy(entry.handle);
  }
  Handles().clear();
}

CudaStatus RunBlasMatmul(const CudaExec& exec, const BlasMatmul& p) {
  const std::lock_guard<std::mutex> lock(mutex);
  Handle* handle = nullptr;
  if (CudaStatus failure = FindHandle(&handle)) return failure;
  const int64_t bucket = (p.m + kBucketRows - 1) / kBucketRows * kBucketRows;
  const uint32_t y_alignment = AlignmentOf(p.y, p.y_stride * 4);
  const Handle::Key key{p.dtype, p.n, p.k, bucket, p.w_stride, p.x_stride, p.y_stride, y_alignment};
  auto found = handle->algorithms.find(key);
  if (found == handle->algorithms.end()) {
    cublasLtMatmulAlgo_t algorithm;
    if (CudaStatus failure = ChooseAlgorithm(*handle, p, bucket, y_alignment, &algorithm)) return failure;
    found = handle->algorithms.emplace(key, algorithm).first;
  }
  Descriptors descriptors;
  if (CudaStatus failure = descriptors.Init(p, p.m)) return failure;
  const float one = 1, beta = p.accumulate ? 1 : 0;
  const auto run = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return cublasLtMatmul(handle->handle, &descriptors.matmul, &one, p.w, &descriptors.w, p.x, &descriptors.x, &beta, p.y,
                          &descriptors.y, p.y, &descriptors.y, &algorithm, p.workspace,
                          static_cast<size_t>(kBlasWorkspaceBytes), static_cast<cudaStream_t>(exec.stream));
  };
  cublasStatus_t status = run(found->second);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {  // the bucket's does not take this m
    cublasLtMatmulAlgo_t algorithm;
    if (CudaStatus failure = ChooseAlgorithm(*handle, p, p.m, y_alignment, &algorithm)) return failure;
    status = run(algorithm);
  }
  return BlasChecked(status, "cublasLtMatmul", p);
}

}  // namespace cachalot
