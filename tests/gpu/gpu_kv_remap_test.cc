// KvRemap on the GPU: the CPU's bits for every code, scale, dim and table, and nothing but them written; tables that lie are
// told and never followed.
#include <gtest/gtest.h>

#include "gpu_testing.h"
#include "kernels/kv_remap/kv_remap_cuda.h"
#include "kernels/kv_remap/kv_remap_testing.h"

namespace cachalot {
namespace {

class GpuKvRemap : public GpuTest {};

CudaKvRemapFn Remap() {
  static const Result<CudaKvRemapFn> remap = FindCudaKvRemap(*Gpu::Get().backend);
  return remap.value();
}

// A case's bytes in device memory.
struct OnGpu {
  explicit OnGpu(RemapCase& c)
      : main(c.main), high(AtLeastOne(c.high)), scales(AtLeastOne(c.scales)), mean(AtLeastOne(c.mean)),
        out(static_cast<int64_t>(c.out.size())), from(c.from), to(c.to), fault(std::vector<int32_t>{0}), params(c.Params()) {
    KvRemapTensor& t = params.tensors[0];
    t.main.data = main.data();
    if (t.high.data != nullptr) t.high.data = high.data();
    if (t.scales.data != nullptr) t.scales.data = scales.data();
    if (t.mean != nullptr) t.mean = mean.data();
    t.out = out.data() + (t.out - c.out.data());
    params.from = from.Place(params.from);
    params.to = to.Place(params.to);
    params.fault = fault.data();
  }

  template <typename T>
  static std::vector<T> AtLeastOne(std::vector<T> values) {
    if (values.empty()) values.resize(1);
    return values;
  }

  struct Table {
    explicit Table(const RemapTestTable& t) : indptr(AtLeastOne(t.indptr)), indices(AtLeastOne(t.indices)), last(AtLeastOne(t.last_page)) {}
    KvRemapTable Place(KvRemapTable table) const {
      if (table.indptr != nullptr) table.indptr = indptr.data(), table.indices = indices.data(), table.last_page = last.data();
      return table;
    }
    GpuArray<int32_t> indptr, indices, last;
  };

  std::vector<uint16_t> Run() {
    const Status status = FromCuda(Remap()(Gpu::Get().Exec(), params));
    EXPECT_TRUE(status.ok()) << status.ToString();
    Gpu::Get().Synchronize();
    return out.Read();
  }
  bool Intact() const { return main.Intact() && out.Intact() && fault.Intact(); }

  GpuArray<std::byte> main, high, scales;
  GpuArray<float> mean;
  GpuArray<uint16_t> out;
  Table from, to;
  GpuArray<int32_t> fault;
  KvRemapParams params;
};

void ExpectTheCpusBits(TestRng* rng, const RemapShape& shape) {
  RemapCase c = RemapCase::Random(rng, shape);
  int64_t tokens = 0;
  for (const int32_t length : c.shape.lengths) tokens += length;
  if (!Chosen(tokens * shape.heads * shape.dim)) return;
  SCOPED_TRACE(c.Name());
  c.Run(Isa::kRef);
  OnGpu gpu(c);
  ASSERT_EQ(gpu.Run(), c.out);
  EXPECT_TRUE(gpu.Intact());
  EXPECT_EQ(gpu.fault.Read()[0], 0);
}

TEST_F(GpuKvRemap, EveryCodeScaleAndTail) {
  TestRng rng(21);
  for (const KvRemapCode code : kRemapCodes) {
    for (const int32_t dim : {1, 7, 8, 20, 31, 64, 80, 128, 200, 256, 576, 1024}) {
      for (const KvRemapScale scale : kRemapScales) {
        const bool bf16 = rng.Int(0, 1) == 1, rotated = rng.Int(0, 1) == 1;
        ExpectTheCpusBits(&rng, {.code = code, .scale = scale, .dim = dim, .to_bf16 = bf16, .rotated = rotated});
      }
    }
  }
}

TEST_F(GpuKvRemap, TablesOfAnyPage) {
  TestRng rng(22);
  for (const int32_t from_page : {0, 1, 16, 48}) {
    for (const int32_t to_page : {0, 1, 16, 7}) {
      if (to_page == 0 && from_page != 0) continue;
      for (const bool nhd : {false, true}) {
        for (const KvRemapCode code : {KvRemapCode::kInt6Unit, KvRemapCode::kInt6, KvRemapCode::kE4M3}) {
          ExpectTheCpusBits(&rng, {.code = code, .scale = KvRemapScale::kBF16, .dim = 128, .heads = 3,
                                   .lengths = {0, 1, 16, 37, 48, 300}, .from_page = from_page, .to_page = to_page, .nhd = nhd, .rotated = true});
        }
      }
    }
  }
}

TEST_F(GpuKvRemap, TablesThatLieAreToldAndNotFollowed) {
  TestRng rng(23);
  const auto fails = [&](const char* what, auto&& spoil) {
    SCOPED_TRACE(what);
    RemapCase c = RemapCase::Random(&rng, {.code = KvRemapCode::kInt8, .scale = KvRemapScale::kBF16, .dim = 32, .heads = 2,
                                           .lengths = {20, 5, 33}, .from_page = 16, .to_page = 8});
    spoil(c);
    OnGpu gpu(c);
    gpu.Run();
    EXPECT_TRUE(gpu.Intact());
    EXPECT_EQ(gpu.fault.Read()[0], 1);
  };
  fails("indptr falls", [](RemapCase& c) { c.to.indptr[1] = -1; });
  fails("indptr ends behind the indices", [](RemapCase& c) { c.to.indptr[3] += 1; });
  fails("the source's indptr ends behind its indices", [](RemapCase& c) { c.from.indptr[2] = 0x7fffffff; });
  fails("a negative block", [](RemapCase& c) { c.from.indices[0] = -1; });
  fails("a block there is none of", [](RemapCase& c) { c.from.indices[3] = 1 << 20; });
  fails("a page there is none of", [](RemapCase& c) { c.to.indices[2] = 0x7fffffff; });
  fails("an empty last page", [](RemapCase& c) { c.to.last_page[0] = 0; });
  fails("a last page beyond its size", [](RemapCase& c) { c.to.last_page[1] = 9; });
  fails("lengths that differ", [](RemapCase& c) { c.from.last_page[1] = 6; });
}

}  // namespace
}  // namespace cachalot
