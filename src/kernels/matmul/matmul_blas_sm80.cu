// Dense matmuls of many rows by cuBLASLt: 16-bit W and x, F32 sums and y. Its algorithm is chosen once for a shape (m up to
// the next multiple of 256) and kept, in a table of fixed size that belongs to one stream: no lock, and no allocation of ours.
#include <cublasLt.h>

#include <array>
#include <new>

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

// What an algorithm is chosen for.
struct PlanKey {
  DType dtype = DType::kF32;
  uint32_t y_alignment = 0;
  int64_t n = 0, k = 0, m = 0;  // m: the bucket's
  int64_t w_stride = 0, x_stride = 0, y_stride = 0;

  bool operator==(const PlanKey&) const = default;
  uint64_t Hash() const {
    uint64_t hash = static_cast<uint64_t>(dtype) << 32 | y_alignment;
    for (const int64_t value : {n, k, m, w_stride, x_stride, y_stride}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

}  // namespace

struct BlasPlans {
  static constexpr size_t kEntries = 512;  // shapes times buckets of a model; beyond, one makes room for another
  static constexpr size_t kProbes = 8;
  struct Entry {
    PlanKey key;
    bool used = false;
    cublasLtMatmulAlgo_t algorithm;
  };
  cublasLtHandle_t handle = nullptr;
  std::array<Entry, kEntries> entries;

  // Where the key's algorithm is (used) or may be put.
  Entry& Find(const PlanKey& key) {
    const size_t first = key.Hash() % kEntries;
    for (size_t i = 0; i < kProbes; ++i) {
      Entry& entry = entries[(first + i) % kEntries];
      if (!entry.used || entry.key == key) return entry;
    }
    entries[first].used = false;
    return entries[first];
  }
};

namespace {

CudaStatus ChooseAlgorithm(const BlasPlans& plans, const BlasMatmul& p, int64_t m, uint32_t y_alignment,
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
      cublasLtMatmulAlgoGetHeuristic(plans.handle, &descriptors.matmul, &descriptors.w, &descriptors.x, &descriptors.y,
                                     &descriptors.y, &preference, 1, &result, &found);
  if (CudaStatus failure = BlasChecked(status, "cublasLtMatmulAlgoGetHeuristic", p)) return failure;
  if (found == 0) return BlasChecked(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", p);
  *algorithm = result.algo;
  return nullptr;
}

}  // namespace

CudaStatus MakeBlasPlans(BlasPlans** out) {
  *out = nullptr;
  auto* plans = new (std::nothrow) BlasPlans;
  if (plans == nullptr) return CudaFail(CudaFault::kExhausted, "matmul plans of %zu bytes", sizeof(BlasPlans));
  const cublasStatus_t status = cublasLtCreate(&plans->handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    delete plans;
    return CudaFail(status == CUBLAS_STATUS_ALLOC_FAILED ? CudaFault::kExhausted : CudaFault::kDevice, "cublasLtCreate: %s",
                    cublasLtGetStatusString(status));
  }
  *out = plans;
  return nullptr;
}

// No failure counts: the device may be lost.
void ReleaseBlasPlans(BlasPlans* plans) {
  if (plans == nullptr) return;
  cublasLtDestroy(plans->handle);
  delete plans;
}

CudaStatus RunBlasMatmul(const CudaExec& exec, const BlasMatmul& p) {
  BlasPlans& plans = *static_cast<BlasPlans*>(exec.matmul_plans);
  const int64_t bucket = (p.m + kBucketRows - 1) / kBucketRows * kBucketRows;
  const uint32_t y_alignment = AlignmentOf(p.y, p.y_stride * 4);
  const PlanKey key = {.dtype = p.dtype, .y_alignment = y_alignment, .n = p.n, .k = p.k, .m = bucket, .w_stride = p.w_stride,
                       .x_stride = p.x_stride, .y_stride = p.y_stride};
  BlasPlans::Entry& plan = plans.Find(key);
  if (!plan.used) {
    if (CudaStatus failure = ChooseAlgorithm(plans, p, bucket, y_alignment, &plan.algorithm)) return failure;
    plan.key = key;
    plan.used = true;
  }
  Descriptors descriptors;
  if (CudaStatus failure = descriptors.Init(p, p.m)) return failure;
  const float one = 1, beta = p.accumulate ? 1 : 0;
  const auto run = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return cublasLtMatmul(plans.handle, &descriptors.matmul, &one, p.w, &descriptors.w, p.x, &descriptors.x, &beta, p.y,
                          &descriptors.y, p.y, &descriptors.y, &algorithm, p.workspace,
                          static_cast<size_t>(kBlasWorkspaceBytes), static_cast<cudaStream_t>(exec.stream));
  };
  cublasStatus_t status = run(plan.algorithm);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {  // the bucket's does not take this m
    cublasLtMatmulAlgo_t algorithm;
    if (CudaStatus failure = ChooseAlgorithm(plans, p, p.m, y_alignment, &algorithm)) return failure;
    status = run(algorithm);
  }
  return BlasChecked(status, "cublasLtMatmul", p);
}

}  // namespace cachalot
