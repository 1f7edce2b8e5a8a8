// A dense layer's matmuls of one row, from attention's output to the next layer's queries: one by one and in one launch, in turn.
#include <functional>

#include "gpu_matmul_bench.h"
#include "kernels/matmul/chain_cuda.h"

namespace cachalot {
namespace {

struct ChainShape {
  const char* name;
  DType dtype;
  int64_t dim, width, gates, next;  // gates 0: a matmul [next, dim] alone
};

void ChainOf(Bench& bench, const ChainShape& s, int rounds) {
  const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto bytes_of = [&](int64_t n, int64_t k) { return n * CudaRowsOf(s.dtype, k).row_bytes; };
  const bool layer = s.gates > 0;
  const std::pair<int64_t, int64_t> matrices[] = {{layer ? s.dim : 0, s.width}, {2 * s.gates, s.dim}, {layer ? s.dim : 0, s.gates}, {s.next, s.dim}};
  int64_t bytes = 0, held = 0;
  for (const auto& [n, k] : matrices) bytes += bytes_of(n, k), held += padded(bytes_of(n, k));
  const int64_t calls = std::clamp<int64_t>(kColdBytes / held, 4, 32);
  const CudaBuffer norm = bench.Upload(std::vector<float>(s.dim, 0.5f)), residual = bench.Upload(std::vector<float>(s.dim, 0.1f));
  float *attended = bench.y.as<float>(), *h = attended + s.width, *out = h + s.gates;
  const auto ops_of = [&](int64_t call) {
    CudaMatmulChain chain;
    const std::byte* at = bench.pool.data() + call * held;
    const auto add = [&](int which, const float* x, float* y, bool accumulate, const CudaFusion& fusion) {
      const auto& [n, k] = matrices[which];
      const CudaMatrix weight = {.dtype = s.dtype, .n = n, .k = k, .data = at};
      at += padded(bytes_of(n, k));
      if (n == 0) return;
      chain.ops[chain.count++] = {.x = x, .x_stride = k, .m = 1, .weight = weight, .y = y, .y_stride = fusion.glu ? n / 2 : n,
                                  .accumulate = accumulate, .fusion = fusion};
    };
    const auto norm_with = [&](bool glu) { return CudaFusion{.norm_weight = norm.as<float>(), .norm_eps = 1e-5f, .glu = glu}; };
    add(0, attended, residual.as<float>(), true, {});
    add(1, residual.as<float>(), h, false, norm_with(true));
    add(2, h, residual.as<float>(), true, {});
    add(3, residual.as<float>(), out, false, norm_with(false));
    return chain;
  };
  const char* const kWays[] = {"chain=none", "", ""};
  std::vector<double> times[3];
  for (int round = 0; round < rounds; ++round) {
    for (int way = 0; way < 3; ++way) {  // one by one as before, one by one, all in one
      Check(bench.backend->set_tune(kWays[way]));
      times[way].push_back(CapturedMicroseconds(bench.exec.stream, [&] {
        for (int64_t call = 0; call < calls; ++call) {
          const CudaMatmulChain chain = ops_of(call);
          if (way == 2) {
            Check(bench.backend->matmul_chain(bench.exec, chain));
            continue;
          }
          for (int i = 0; i < chain.count; ++i) {
            CudaMatmulChain one;
            one.count = 1;
            one.ops[0] = chain.ops[i];
            Check(way == 0 ? bench.backend->matmul(bench.exec, one.ops[0]) : bench.backend->matmul_chain(bench.exec, one));
          }
        }
      }, 3) / static_cast<double>(calls));
    }
  }
  Check(bench.backend->set_tune(""));
  std::printf("%-8s %-5s %6.1f MB", s.name, DTypeName(s.dtype), static_cast<double>(bytes) * 1e-6);
  for (auto& of_way : times) {
    std::nth_element(of_way.begin(), of_way.begin() + static_cast<int64_t>(of_way.size()) / 2, of_way.end());
    Cell(bench, of_way[of_way.size() / 2], static_cast<double>(bytes), 0, false);
  }
  std::printf("\n");
}

}  // namespace

int ChainBench(int rounds) {
  Bench bench = Open();
  bench.Reserve(int64_t{64} << 20);
  std::printf("%s, read roof %.0f GB/s. Cells: us of a layer's matmuls of one row, %% of the roof for W's bytes.\n", bench.info.name, bench.roof * 1e-9);
  std::printf("decode kernel | chain kernel, one by one | in one launch\n");
  const ChainShape shapes[] = {{"8B", DType::kQ4_K, 4096, 4096, 14336, 6144}, {"head", DType::kQ4_K, 4096, 4096, 0, 128256}};
  for (const ChainShape& shape : shapes) ChainOf(bench, shape, rounds);
  return 0;
}

}  // namespace cachalot
