// What the benches of the GPU's matmuls share: the card, memory full of weights, and how a time is told.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/cuda/cuda_library.h"
#include "gpu_bench_cuda.h"
#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {

inline constexpr int64_t kPoolBytes = int64_t{8} << 30;
inline constexpr int64_t kPatternBytes = int64_t{64} << 20;
inline constexpr int64_t kColdBytes = int64_t{300} << 20;  // what one graph reads at least
inline constexpr int kReplays = 7;

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
inline void Check(CudaStatus status) { Check(FromCuda(status)); }

struct Bench {
  const CudaBackend* backend = nullptr;
  CudaDeviceInfo info;
  CudaExec exec;
  CudaBuffer pool, y, workspace, counters;
  double roof = 0;
  uint64_t seed = 1;

  uint64_t Random() {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 24;
  }
  template <typename T>
  CudaBuffer Upload(const std::vector<T>& values) const {
    CudaBuffer buffer = CudaBuffer::Allocate(backend, static_cast<int64_t>(values.size() * sizeof(T))).value();
    Check(backend->copy(buffer.data(), values.data(), buffer.size(), exec.stream));
    Check(backend->stream_synchronize(exec.stream));
    return buffer;
  }
  // Weights: bits that are a number near one as BF16, F16 and F32, and some code or other in every format.
  void FillPool() {
    std::vector<uint16_t> pattern(kPatternBytes / 2);
    for (uint16_t& word : pattern) word = static_cast<uint16_t>((Random() & 0x83ff) | 0x3c00);
    Check(backend->copy(pool.data(), pattern.data(), kPatternBytes, exec.stream));
    for (int64_t done = kPatternBytes; done < pool.size(); done *= 2) {
      Check(backend->copy(pool.data() + done, pool.data(), std::min(done, pool.size() - done), exec.stream));
    }
    Check(backend->stream_synchronize(exec.stream));
  }
  const float* x() const { return pool.as<float>(); }  // F32 values of the same bits
  void Reserve(int64_t bytes) {
    if (bytes > workspace.size()) workspace = CudaBuffer::Allocate(backend, bytes).value();
    exec.workspace = workspace.data();
    exec.workspace_bytes = workspace.size();
  }
};

inline Bench Open() {
  Bench bench;
  Result<const CudaBackend*> backend = LoadCudaBackend();
  Check(backend.status());
  bench.backend = *backend;
  Check(bench.backend->set_device(0));
  Check(bench.backend->device_info(0, &bench.info));
  Check(bench.backend->matmul_init(&bench.exec.matmul_plans));
  Check(bench.backend->stream_create(false, &bench.exec.stream));
  bench.exec.num_sms = bench.info.num_sms;
  bench.pool = CudaBuffer::Allocate(bench.backend, kPoolBytes).value();
  bench.y = CudaBuffer::Allocate(bench.backend, int64_t{2048} * 128256 * 4).value();
  bench.counters = CudaBuffer::Allocate(bench.backend, kCudaCounters * 4).value();
  Check(bench.backend->fill(bench.counters.data(), 0, bench.counters.size(), bench.exec.stream));
  bench.exec.counters = bench.counters.as<uint32_t>();
  bench.FillPool();
  bench.roof = ReadRoof(bench.exec.stream, bench.pool.data(), int64_t{4} << 30, bench.info.num_sms);
  return bench;
}

inline void Cell(const Bench& bench, double us, double bytes, double flops, bool arithmetic) {
  const double percent = bytes / us * 1e6 / bench.roof * 100;
  if (arithmetic) {
    std::printf(" | %7.1f %3.0fT", us, flops / us * 1e-6);
  } else {
    std::printf(" | %6.1f %3.0f%%", us, percent);
  }
  std::fflush(stdout);
}

// A mixture's experts for one to four tokens (gpu_moe_few_bench.cc).
int FewTokensBench(int rounds);
// Matmuls of one row that follow each other, in one launch and in as many (gpu_chain_bench.cc).
int ChainBench(int rounds);

}  // namespace cachalot
