#include "kernels/mla_expand/mla_expand.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/kv_region.h"
#include "kernels/matmul/matmul.h"
#include "quant/format.h"

namespace cachalot {
namespace {

constexpr int32_t kBlockTokens = 64;

int64_t NumBlocks(int32_t kv_len) { return (kv_len + kBlockTokens - 1) / kBlockTokens; }

// The scratch: latents [kv_len, lora + rope], products [kv_len, heads * (nope + v)], blocks, block table.
struct Layout {
  int64_t products = 0;
  int64_t blocks = 0;
  int64_t table = 0;
  int64_t end = 0;
};

Layout LayoutOf(int32_t kv_len, int32_t lora, int32_t num_heads, int32_t nope, int32_t rope, int32_t v) {
  Layout layout;
  const auto floats = [](int64_t count) { return Workspace::Padded(count * static_cast<int64_t>(sizeof(float))); };
  layout.products = floats(int64_t{kv_len} * (lora + rope));
  layout.blocks = layout.products + floats(int64_t{kv_len} * num_heads * (nope + v));
  layout.table = layout.blocks + floats(NumBlocks(kv_len) * kBlockTokens * num_heads * (nope + rope + v));
  layout.end = layout.table + floats(NumBlocks(kv_len));
  return layout;
}

}  // namespace

int64_t MlaExpandBytes(int32_t kv_len, int32_t lora, int32_t num_heads, int32_t nope_dim, int32_t rope_dim, int32_t v_dim) {
  return LayoutOf(kv_len, lora, num_heads, nope_dim, rope_dim, v_dim).end;
}

PagedKv MlaExpand(const ExecContext& ctx, const MlaExpandParams& params) {
  const int32_t heads = params.num_heads;
  const int32_t nope = params.nope_dim;
  const int32_t rope = params.rope_dim;
  const int32_t v = params.v_dim;
  const int32_t width = params.latent.k_dim;
  const int32_t lora = width - rope;
  CHECK(params.kv_b->k == lora && params.kv_b->n == int64_t{heads} * (nope + v));
  const Layout layout = LayoutOf(params.kv_len, lora, heads, nope, rope, v);
  float* latents = reinterpret_cast<float*>(params.scratch);
  float* products = reinterpret_cast<float*>(params.scratch + layout.products);
  float* blocks = reinterpret_cast<float*>(params.scratch + layout.blocks);
  int32_t* table = reinterpret_cast<int32_t*>(params.scratch + layout.table);
  const int64_t num_blocks = NumBlocks(params.kv_len);
  for (int64_t b = 0; b < num_blocks; ++b) table[b] = static_cast<int32_t>(b);

  const QuantFormat* format = FindQuantFormat(params.latent.dtype);
  const int32_t page = params.latent.block_tokens;
  ctx.pool->ParallelFor((params.kv_len + page - 1) / page, [&](int64_t i, int) {
    const int64_t begin = i * page;
    const int64_t count = std::min<int64_t>(page, params.kv_len - begin);
    if (params.latent.planes != nullptr) {
      const PagedKv& latent = params.latent.At(begin);
      for (int64_t t = 0; t < count; ++t) {
        DecodeKvKey(*latent.planes, latent.key_mean, latent.Block(params.slot, begin), t,
                    latents + (begin + t) * width);
      }
      return;
    }
    format->decode(params.latent.Block(params.slot, begin), latents + begin * width, count * width);
  });

  Matmul(ctx, {.x = latents,
               .x_stride = width,
               .m = params.kv_len,
               .weight = params.kv_b,
               .y = products,
               .y_stride = params.kv_b->n});

  PagedKv out;
  out.dtype = DType::kF32;
  out.block_tokens = kBlockTokens;
  out.num_kv_heads = heads;
  out.k_dim = nope + rope;
  out.v_dim = v;
  const int64_t block_values = int64_t{kBlockTokens} * heads * (nope + rope + v);
  out.block_bytes = block_values * static_cast<int64_t>(sizeof(float));
  out.k_head_stride = int64_t{kBlockTokens} * (nope + rope);
  out.v_offset = out.k_head_stride * heads;
  out.v_head_stride = int64_t{kBlockTokens} * v;
  out.v_token_stride = v;
  out.data = reinterpret_cast<std::byte*>(blocks);
  out.block_tables = table;
  out.table_stride = num_blocks;

  ctx.pool->ParallelFor(num_blocks, [&](int64_t b, int) {
    float* block = blocks + b * block_values;
    const int64_t begin = b * kBlockTokens;
    const int64_t count = std::min<int64_t>(kBlockTokens, params.kv_len - begin);
    for (int64_t t = 0; t < count; ++t) {
      const float* latent = latents + (begin + t) * width;
      const float* product = products + (begin + t) * params.kv_b->n;
      for (int32_t h = 0; h < heads; ++h) {
        float* key = block + h * out.k_head_stride + t * (nope + rope);
        std::memcpy(key, product + int64_t{h} * (nope + v), sizeof(float) * nope);
        std::memcpy(key + nope, latent + lora, sizeof(float) * rope);
        std::memcpy(block + out.v_offset + h * out.v_head_stride + t * v, product + int64_t{h} * (nope + v) + nope,
                    sizeof(float) * v);
      }
    }
  });
  return out;
}

}  // namespace cachalot
