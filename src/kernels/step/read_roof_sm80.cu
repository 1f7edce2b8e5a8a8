// How fast the device reads its memory: every block streams its share in 16-byte loads, several in flight a thread, and a
// sum that nobody expects keeps the loads alive. The best of a few runs is the roof.
#include <algorithm>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"

namespace cachalot {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;

__global__ void __launch_bounds__(kThreads) ReadKernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kInFlight - 1) * stride < count; i += kInFlight * stride) {
    uint4 values[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) values[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) sum += values[j].x ^ values[j].y ^ values[j].z ^ values[j].w;
  }
  for (; i < count; i += stride) sum += data[i].x;
  if (sum == 0xdeadbeef) *sink = sum;
}

struct Timer {
  cudaEvent_t begin = nullptr, end = nullptr;
  ~Timer() {
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }
};

}  // namespace

CudaStatus CudaReadBandwidth(int64_t bytes, int repeats, double* bytes_per_second) {
  *bytes_per_second = 0;
  void* data = nullptr;
  int sms = 0;
  if (CudaStatus failure = CudaChecked(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute")) {
    return failure;
  }
  if (CudaStatus failure = CudaChecked(cudaMalloc(&data, static_cast<size_t>(bytes) + 16), "cudaMalloc")) return failure;
  Timer timer;
  CudaStatus failure = CudaChecked(cudaMemset(data, 0, static_cast<size_t>(bytes) + 16), "cudaMemset");
  if (failure == nullptr) failure = CudaChecked(cudaEventCreate(&timer.begin), "cudaEventCreate");
  if (failure == nullptr) failure = CudaChecked(cudaEventCreate(&timer.end), "cudaEventCreate");
  const int64_t count = bytes / 16;
  for (int i = 0; i <= repeats && failure == nullptr; ++i) {
    cudaEventRecord(timer.begin);
    ReadKernel<<<sms * 4, kThreads>>>(static_cast<const uint4*>(data), count, static_cast<uint32_t*>(data) + bytes / 4);
    cudaEventRecord(timer.end);
    failure = CudaChecked(cudaEventSynchronize(timer.end), "cudaEventSynchronize");
    float ms = 0;
    if (failure == nullptr) failure = CudaChecked(cudaEventElapsedTime(&ms, timer.begin, timer.end), "cudaEventElapsedTime");
    if (i > 0 && ms > 0) *bytes_per_second = std::max(*bytes_per_second, static_cast<double>(count) * 16.0 / (ms * 1e-3));
  }
  cudaFree(data);
  return failure;
}

}  // namespace cachalot
