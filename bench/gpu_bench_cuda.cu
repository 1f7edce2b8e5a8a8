#include "gpu_bench_cuda.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace cachalot {
namespace {

void Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

__global__ void ReadKernel(const uint4* data, int64_t count, uint32_t* out) {
  uint32_t sum = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) sum += __ldcs(data + i).x;
  if (sum == 0x12345678u) *out = sum;  // so that nothing is optimised away
}

}  // namespace

std::vector<double> CapturedInTurn(void* stream_handle, const std::vector<std::function<void()>>& enqueues, int rounds) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  std::vector<cudaGraph_t> graphs(enqueues.size());
  std::vector<cudaGraphExec_t> executables(enqueues.size());
  for (size_t i = 0; i < enqueues.size(); ++i) {
    enqueues[i]();  // outside of a graph first: modules load
    Check(cudaStreamSynchronize(stream), "warm-up");
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    enqueues[i]();
    Check(cudaStreamEndCapture(stream, &graphs[i]), "cudaStreamEndCapture");
    Check(cudaGraphInstantiate(&executables[i], graphs[i], 0), "cudaGraphInstantiate");
  }
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<std::vector<float>> times(enqueues.size());
  for (int round = 0; round < rounds + 1; ++round) {
    for (size_t i = 0; i < enqueues.size(); ++i) {
      Check(cudaEventRecord(begin, stream), "cudaEventRecord");
      Check(cudaGraphLaunch(executables[i], stream), "cudaGraphLaunch");
      Check(cudaEventRecord(end, stream), "cudaEventRecord");
      Check(cudaStreamSynchronize(stream), "replay");
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
      if (round > 0) times[i].push_back(ms);
    }
  }
  std::vector<double> medians;
  for (size_t i = 0; i < enqueues.size(); ++i) {
    std::nth_element(times[i].begin(), times[i].begin() + static_cast<long>(times[i].size() / 2), times[i].end());
    medians.push_back(times[i][times[i].size() / 2] * 1e3);
    cudaGraphExecDestroy(executables[i]);
    cudaGraphDestroy(graphs[i]);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return medians;
}

double CapturedMicroseconds(void* stream, const std::function<void()>& enqueue, int replays) {
  return CapturedInTurn(stream, {enqueue}, replays).front();
}

double ReadRoof(void* stream_handle, const void* data, int64_t bytes, int num_sms) {
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  uint32_t* out = nullptr;
  Check(cudaMalloc(&out, sizeof(uint32_t)), "cudaMalloc");
  double best = 0;
  for (int blocks_per_sm : {2, 4, 8}) {
    const double us = CapturedMicroseconds(stream_handle, [&] {
      ReadKernel<<<static_cast<unsigned>(blocks_per_sm * num_sms), 512, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, out);
    }, 5);
    best = std::max(best, static_cast<double>(bytes) / us * 1e6);
  }
  cudaFree(out);
  return best;
}

}  // namespace cachalot
