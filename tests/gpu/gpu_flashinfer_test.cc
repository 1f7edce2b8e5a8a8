// FlashInfer's decode kernel over what libcachalot_flashinfer.so makes of our caches on the card, against our own attention: views of
// F16 and BF16 where they lie, pages made of every KV type in every layout. Built where -DCACHALOT_FLASHINFER names the headers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cachalot/flashinfer.h"
#include "gpu_flashinfer_pages.h"
#include "gpu_testing.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr int32_t kDim = 128, kKvHeads = 4, kQHeads = 16, kBlock = 16;
const std::vector<int32_t> kLengths = {1, 17, 500, 16, 1037, 33};

struct Type {
  uint32_t type;
  const char* name;
};
constexpr Type kTypes[] = {{CACHALOT_KV_TYPE_F16, "f16"},   {CACHALOT_KV_TYPE_BF16, "bf16"}, {CACHALOT_KV_TYPE_K8V8, "k8v8"}, {CACHALOT_KV_TYPE_FP8, "fp8"},
                           {CACHALOT_KV_TYPE_K6V8, "k6v8"}, {CACHALOT_KV_TYPE_K6V4, "k6v4"}, {CACHALOT_KV_TYPE_K4V4, "k4v4"}};

struct Table {
  explicit Table(const std::vector<int32_t>& host_indptr, const std::vector<int32_t>& host_indices, const std::vector<int32_t>& host_last)
      : indptr_host(host_indptr), indptr(host_indptr), indices(host_indices), last(host_last) {}
  cachalot_kv_table View() const {
    return {indptr.data(), indices.data(), last.data(), static_cast<uint32_t>(last.size()), static_cast<uint32_t>(indices.size())};
  }
  std::vector<int32_t> indptr_host;
  GpuArray<int32_t> indptr, indices, last;
};

Table Counted(uint32_t page_size, const std::function<std::vector<int32_t>(const std::vector<int32_t>&)>& indices) {
  std::vector<int32_t> indptr(kLengths.size() + 1), last(kLengths.size());
  EXPECT_EQ(cachalot_kv_page_counts(kLengths.data(), static_cast<uint32_t>(kLengths.size()), page_size, indptr.data(), last.data()), CACHALOT_KV_OK);
  return Table(indptr, indices(indptr), last);
}

// One token's queries for each sequence over a cache of a type, on the host and on the card.
struct Step {
  explicit Step(const Type& t)
      : type(t), shape(ShapeOf(t)), cache(shape, kLengths, 5), gpu_cache((cache.FillNormal(kLengths, {ids, kLengths.size()}), cache), static_cast<int64_t>(kLengths.size())),
        blocks(Counted(kBlock, [&](const std::vector<int32_t>& indptr) {
          std::vector<int32_t> indices;
          for (size_t b = 0; b < kLengths.size(); ++b) {
            for (int32_t i = 0; i < indptr[b + 1] - indptr[b]; ++i) {
              indices.push_back(cache.view().block_tables[static_cast<int64_t>(b) * cache.view().table_stride + i]);
            }
          }
          return indices;
        })) {
    q = TestRng(8).NormalVector(static_cast<int64_t>(kLengths.size()) * kQHeads * kDim);
    const bool bf16 = t.type == CACHALOT_KV_TYPE_BF16;
    for (float& x : q) x = bf16 ? BF16ToF32(F32ToBF16(x)) : F16ToF32(F32ToF16(x));
    for (size_t b = 0; b < kLengths.size(); ++b) spans.push_back({static_cast<int32_t>(b), static_cast<int32_t>(b), 1, kLengths[b]});
    source.struct_size = sizeof(source);
    source.abi_version = CACHALOT_KV_ABI_VERSION;
    source.device = CACHALOT_KV_CUDA;
    source.blocks = gpu_cache.view().data;
    source.type = t.type;
    source.block_tokens = kBlock;
    source.kv_heads = kKvHeads;
    source.head_dim = kDim;
    source.key_group = source.rotate = CACHALOT_KV_DEFAULT;
    source.block_stride = static_cast<uint64_t>(cache.view().block_bytes);
    source.num_blocks = static_cast<uint32_t>(blocks.indptr_host.back());
    source.blocks_bytes = source.block_stride * source.num_blocks;
    source.table = blocks.View();
  }

  static KvShape ShapeOf(const Type& t) {
    KvShape shape;
    shape.dtype = t.type == CACHALOT_KV_TYPE_BF16 ? DType::kBF16 : DType::kF16;
    shape.num_kv_heads = kKvHeads;
    shape.k_dim = shape.v_dim = kDim;
    shape.block_tokens = kBlock;
    if (const KvFormat* format = FindKvFormat(t.name); format != nullptr) shape.scheme = format->scheme;
    return shape;
  }

  AttentionParams Params() const {
    AttentionParams params;
    params.q_token_stride = params.out_token_stride = int64_t{kQHeads} * kDim;
    params.q_head_stride = params.out_head_stride = kDim;
    params.num_q_heads = kQHeads;
    params.scale = 0.08838835f;
    return params;
  }

  // Our attention that reads the blocks as they are: the CPU's.
  std::vector<float> Ours() const {
    const TestContext context(BestIsa(), 2, AttentionWorkspaceBytes(2, kQHeads, kKvHeads, kDim, kDim));
    std::vector<float> out(q.size());
    AttentionParams params = Params();
    params.spans = spans;
    params.q = q.data();
    params.kv = cache.view();
    params.out = out.data();
    Attention(context, params);
    return out;
  }

  // The GPU's, for plain caches.
  std::vector<float> OursOnGpu() const {
    const Gpu& gpu = Gpu::Get();
    GpuBatch batch(spans, static_cast<int32_t>(spans.size()));
    CudaAttentionPlan plan;
    plan.shape = {kQHeads, kKvHeads, kDim, kDim, 0};
    const CudaExec exec = gpu.Exec();
    GpuArray<std::byte> memory(gpu.backend->attention_plan_bytes(plan.shape, batch.get(), exec.num_sms));
    plan.memory = memory.data();
    plan.memory_bytes = memory.size();
    const GpuArray<float> gpu_q(q), out(static_cast<int64_t>(q.size()));
    AttentionParams params = Params();
    params.q = gpu_q.data();
    params.kv = gpu_cache.view();
    params.out = out.data();
    batch.Fill();
    GPU_EXPECT_OK(gpu.backend->attention_plan(exec, batch.get(), plan));
    GPU_EXPECT_OK(gpu.backend->attention(exec, batch.get(), plan, params));
    gpu.Synchronize();
    return out.Read();
  }

  // In doubles, over what the codes stand for.
  std::vector<float> Exact() const {
    std::vector<float> out(q.size());
    for (size_t b = 0; b < kLengths.size(); ++b) {
      for (int32_t kv_head = 0; kv_head < kKvHeads; ++kv_head) {
        std::vector<std::vector<float>> keys, values;
        for (int32_t t = 0; t < kLengths[b]; ++t) {
          keys.push_back(cache.Key(static_cast<int64_t>(b), kv_head, t));
          values.push_back(cache.Value(static_cast<int64_t>(b), kv_head, t));
        }
        for (int32_t head = kv_head * kQHeads / kKvHeads; head < (kv_head + 1) * kQHeads / kKvHeads; ++head) {
          const size_t at = (b * kQHeads + static_cast<size_t>(head)) * kDim;
          std::vector<double> sum(kDim);
          double total = 0;
          for (size_t t = 0; t < keys.size(); ++t) {
            double score = 0;
            for (size_t i = 0; i < kDim; ++i) score += static_cast<double>(q[at + i]) * keys[t][i];
            const double weight = std::exp(score * 0.08838835);
            total += weight;
            for (size_t i = 0; i < kDim; ++i) sum[i] += weight * values[t][i];
          }
          for (size_t i = 0; i < kDim; ++i) out[at + i] = static_cast<float>(sum[i] / total);
        }
      }
    }
    return out;
  }

  // FlashInfer's.
  std::vector<float> Theirs(const cachalot_kv_pages& pages, const std::vector<int32_t>& indptr_host) const {
    const bool bf16 = pages.dtype == CACHALOT_KV_DTYPE_BF16;
    std::vector<uint16_t> bits(q.size());
    for (size_t i = 0; i < q.size(); ++i) bits[i] = bf16 ? F32ToBF16(q[i]) : F32ToF16(q[i]);
    const GpuArray<uint16_t> gpu_q(bits), out(static_cast<int64_t>(q.size()));
    const char* failed = FlashInferDecodePages(pages, indptr_host.data(), kQHeads, gpu_q.data(), out.data(), Gpu::Get().stream);
    EXPECT_EQ(failed, nullptr) << failed;
    EXPECT_TRUE(out.Intact());
    std::vector<float> result;
    for (const uint16_t x : out.Read()) result.push_back(bf16 ? BF16ToF32(x) : F16ToF32(x));
    return result;
  }

  static constexpr int64_t ids[] = {1, 2, 3, 4, 5, 6};
  Type type;
  KvShape shape;
  TestKv cache;
  GpuKv gpu_cache;
  Table blocks;
  std::vector<float> q;
  std::vector<SeqSpan> spans;
  cachalot_kv_source source = {};
};

// The largest difference, in the root mean square of the wanted.
double Apart(const std::vector<float>& got, const std::vector<float>& want) {
  double squares = 0, most = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += static_cast<double>(want[i]) * want[i];
    most = std::max(most, std::isfinite(got[i]) ? std::fabs(static_cast<double>(got[i]) - want[i]) : HUGE_VAL);
  }
  return most / std::sqrt(squares / static_cast<double>(want.size()));
}

// FlashInfer's output is rounded to the pages' type, keys and values are too: units in its last place, of values some root mean
// squares large. Our kernels round the query of integer codes to 8 bits, which FlashInfer does not.
double Limit(const cachalot_kv_pages& pages) { return pages.dtype == CACHALOT_KV_DTYPE_BF16 ? 0.05 : 0.008; }
double QueryLimit(uint32_t type) { return type <= CACHALOT_KV_TYPE_BF16 || type == CACHALOT_KV_TYPE_FP8 ? 0.0 : 0.06; }

class GpuFlashInfer : public GpuTest {};

TEST_F(GpuFlashInfer, ReadsOurPlainCachesWhereTheyLie) {
  for (const Type& type : {kTypes[0], kTypes[1]}) {
    const Step step(type);
    cachalot_kv_pages view = {};
    view.struct_size = sizeof(view);
    view.abi_version = CACHALOT_KV_ABI_VERSION;
    ASSERT_EQ(cachalot_kv_page_view(&step.source, &view), CACHALOT_KV_OK) << cachalot_kv_last_error();
    ASSERT_EQ(view.equal_strides, 1u);
    const std::vector<float> theirs = step.Theirs(view, step.blocks.indptr_host);
    const double exact = Apart(theirs, step.Exact()), cpu = Apart(theirs, step.Ours()), gpu = Apart(theirs, step.OursOnGpu());
    std::printf("view %-5s FlashInfer against doubles %.5f, our CPU %.5f, our GPU %.5f of the root mean square\n", type.name, exact, cpu, gpu);
    EXPECT_LT(exact, Limit(view));
    EXPECT_LT(cpu, Limit(view));
    EXPECT_LT(gpu, Limit(view));
  }
}

TEST_F(GpuFlashInfer, ReadsPagesMadeOfEveryType) {
  for (const Type& type : kTypes) {
    const Step step(type);
    const std::vector<float> exact = step.Exact(), ours = step.Ours();
    for (uint32_t layout = CACHALOT_KV_NHD; layout <= CACHALOT_KV_VLLM_HND; ++layout) {
      const uint32_t page_size = layout % 2 == 0 ? 16 : 32;
      int32_t num_pages = 0;
      const Table table = Counted(page_size, [&](const std::vector<int32_t>& indptr) {
        num_pages = indptr.back() + 2;
        std::vector<int32_t> indices = TestRng(layout + 3).Permutation(num_pages);
        indices.resize(static_cast<size_t>(indptr.back()));
        return indices;
      });
      cachalot_kv_pages pages = {};
      pages.struct_size = sizeof(pages);
      pages.abi_version = CACHALOT_KV_ABI_VERSION;
      pages.layout = layout;
      pages.dtype = type.type == CACHALOT_KV_TYPE_BF16 ? CACHALOT_KV_DTYPE_BF16 : CACHALOT_KV_DTYPE_F16;
      pages.num_pages = static_cast<uint32_t>(num_pages);
      pages.page_size = page_size;
      pages.kv_heads = kKvHeads;
      pages.head_dim = pages.value_dim = kDim;
      const bool vllm = layout >= CACHALOT_KV_VLLM_NHD, nhd = layout % 2 == 0;
      const uint64_t count = uint64_t{pages.num_pages} * page_size * kKvHeads * kDim;
      const GpuArray<uint16_t> keys(static_cast<int64_t>(vllm ? 2 * count : count)), values(static_cast<int64_t>(vllm ? 1 : count));
      const GpuArray<int32_t> fault(std::vector<int32_t>{0});
      pages.keys = keys.data();
      pages.keys_bytes = static_cast<uint64_t>(keys.size()) * 2;
      pages.values = vllm ? nullptr : values.data();
      pages.values_bytes = static_cast<uint64_t>(values.size()) * 2;
      pages.table = table.View();
      pages.fault = fault.data();
      ASSERT_EQ(cachalot_kv_page_materialize(&step.source, &pages, Gpu::Get().stream), CACHALOT_KV_OK) << cachalot_kv_last_error();
      Gpu::Get().Synchronize();
      EXPECT_EQ(fault.Read()[0], 0);
      EXPECT_TRUE(keys.Intact() && values.Intact());
      if (vllm) {  // FlashInfer is told the strides; dense pages it knows itself
        const uint64_t row = 2 * kDim;
        pages.values = static_cast<uint16_t*>(pages.keys) + kDim;
        pages.token_stride = nhd ? row * kKvHeads : row;
        pages.head_stride = nhd ? row : row * page_size;
        pages.page_stride = row * kKvHeads * page_size;
      }
      const std::vector<float> theirs = step.Theirs(pages, table.indptr_host);
      const double to_exact = Apart(theirs, exact), to_ours = Apart(theirs, ours);
      std::printf("pages %-5s layout %u of %u tokens: FlashInfer against doubles %.5f, our CPU's kernel on the codes %.5f\n", type.name, layout, page_size,
                  to_exact, to_ours);
      EXPECT_LT(to_exact, Limit(pages)) << type.name << " layout " << layout;
      EXPECT_LT(to_ours, Limit(pages) + QueryLimit(type.type)) << type.name << " layout " << layout;
    }
  }
}

}  // namespace
}  // namespace cachalot
