// The two ends of MlaExpand on the GPU: with a matmul on the host between them the result is the CPU's.
#include <cmath>

#include "gpu_testing.h"
#include "kernels/mla_expand/mla_expand_cuda.h"

namespace cachalot {
namespace {

class GpuMla : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

TEST_F(GpuMla, GatherAndAssemble) {
  constexpr int32_t kLora = 48, kRope = 16, kNope = 24, kV = 20, kHeads = 3, kLen = 150;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    TestKv cache({dtype, 1, kLora + kRope, kLora, 16, true}, {40, kLen});
    cache.FillNormal(std::vector<int32_t>{40, kLen}, std::vector<int64_t>{1, 2});
    const GpuKv kv(cache, 2);
    const GpuArray<float> latents(int64_t{kLen} * (kLora + kRope));
    GPU_OK(Backend().mla_gather(Gpu::Get().Exec(), {.latent = kv.view(), .slot = 1, .kv_len = kLen, .dst = latents.data()}));
    std::vector<float> want;
    for (int t = 0; t < kLen; ++t) {
      const std::vector<float> key = cache.Key(1, 0, t);
      want.insert(want.end(), key.begin(), key.end());
    }
    ASSERT_EQ(FirstBitDifference(latents.Read(), want), "") << DTypeName(dtype);
    EXPECT_TRUE(latents.Intact());

    TestRng rng(3);
    const std::vector<float> products = rng.NormalVector(int64_t{kLen} * kHeads * (kNope + kV));
    TestKv expanded({dtype, kHeads, kNope + kRope, kV, 64}, {kLen});
    const GpuKv out(expanded, 1);
    const GpuArray<int32_t> table(3);
    const GpuArray<float> gpu_products(products);
    CudaMlaAssembleParams params = {.latents = latents.data(),
                                    .products = gpu_products.data(),
                                    .kv_len = kLen,
                                    .lora = kLora,
                                    .num_heads = kHeads,
                                    .nope_dim = kNope,
                                    .rope_dim = kRope,
                                    .v_dim = kV,
                                    .out = out.view(),
                                    .out_block_table = table.data()};
    GPU_OK(Backend().mla_assemble(Gpu::Get().Exec(), params));
    EXPECT_EQ(table.Read(), (std::vector<int32_t>{0, 1, 2}));
    // Blocks in their order: what the host's view of the bytes holds at block b is tokens 64 b ...
    const std::vector<float> words = out.AllBytes();
    const PagedKv& view = expanded.view();
    const auto value_at = [&](int64_t index) {
      const auto* bytes = reinterpret_cast<const std::byte*>(words.data()) + DTypeBytes(dtype, index);
      float value = 0;
      WithKvType(dtype, [&](auto type) { value = ToF32(*reinterpret_cast<const decltype(type)*>(bytes)); });
      return value;
    };
    const auto rounded = [&](float value) {
      float result = 0;
      WithKvType(dtype, [&](auto type) {
        FromF32(value, &type);
        result = ToF32(type);
      });
      return result;
    };
    const int64_t block_values = view.block_bytes / DTypeBytes(dtype, 1);
    for (int t = 0; t < kLen; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        const int64_t block = t / 64 * block_values;
        const float* product = products.data() + (int64_t{t} * kHeads + h) * (kNope + kV);
        for (int d = 0; d < kNope + kRope; ++d) {
          const float expected = d < kNope ? product[d] : want[t * (kLora + kRope) + kLora + d - kNope];
          ASSERT_EQ(value_at(block + h * view.k_head_stride + t % 64 * (kNope + kRope) + d), rounded(expected))
              << DTypeName(dtype) << " key of token " << t << " head " << h << " at " << d;
        }
        for (int d = 0; d < kV; ++d) {
          ASSERT_EQ(value_at(block + view.v_offset + h * view.v_head_stride + t % 64 * kV + d), rounded(product[kNope + d]))
              << DTypeName(dtype) << " value of token " << t << " head " << h << " at " << d;
        }
      }
    }
    EXPECT_TRUE(out.Intact() && table.Intact());
  }
}

}  // namespace
}  // namespace cachalot
