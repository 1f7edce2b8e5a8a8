// Paged caches through the library: every KV type against the decoders of quant/, in every layout and page size; views point where
// the values lie; tables, sizes and strides that lie are refused and nothing is written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "cachalot/flashinfer.h"
#include "kernels/common/testing.h"
#include "quant/kv_format.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr uint16_t kPoison = 0xffff;

const char* TypeName(uint32_t type) {
  const char* names[] = {"", "f16", "bf16", "k8v8", "fp8", "k6v8", "k6v4", "k4v4"};
  return names[type];
}

struct Shape {
  uint32_t type = CACHALOT_KV_TYPE_K6V8;
  uint32_t heads = 2, dim = 64, rope = 0, block_tokens = 16;
  bool mean = false;
  int32_t key_group = CACHALOT_KV_DEFAULT, rotate = CACHALOT_KV_DEFAULT;
  uint64_t gap = 0;
  std::vector<int32_t> lengths = {37, 0, 1, 16, 5};
};

std::vector<int32_t> Shuffled(TestRng* rng, int32_t pages, int32_t used) {
  std::vector<int32_t> indices = rng->Permutation(pages);
  indices.resize(static_cast<size_t>(used));
  return indices;
}

struct Table {
  std::vector<int32_t> indptr, indices, last;
  cachalot_kv_table View() const {
    return {indptr.data(), indices.data(), last.data(), static_cast<uint32_t>(last.size()), static_cast<uint32_t>(indices.size())};
  }
};

Table MakeTable(TestRng* rng, const std::vector<int32_t>& lengths, uint32_t page_size, uint32_t* num_pages) {
  Table t;
  t.indptr.resize(lengths.size() + 1);
  t.last.resize(lengths.size());
  EXPECT_EQ(cachalot_kv_page_counts(lengths.data(), static_cast<uint32_t>(lengths.size()), page_size, t.indptr.data(), t.last.data()), CACHALOT_KV_OK);
  *num_pages = static_cast<uint32_t>(t.indptr.back()) + 3;
  t.indices = Shuffled(rng, static_cast<int32_t>(*num_pages), t.indptr.back());
  return t;
}

// A cache of random tokens, and what they stand for.
struct Cache {
  Cache(TestRng* rng, const Shape& s) : shape(s) {
    source = {};
    source.struct_size = sizeof(source);
    source.abi_version = CACHALOT_KV_ABI_VERSION;
    source.kind = CACHALOT_KV_BLOCKS;
    source.type = s.type;
    source.block_tokens = s.block_tokens;
    source.kv_heads = s.heads;
    source.head_dim = s.dim;
    source.rope_dim = s.rope;
    source.key_group = s.key_group;
    source.rotate = s.rotate;
    table = MakeTable(rng, s.lengths, s.block_tokens, &source.num_blocks);
    source.table = table.View();
    if (s.mean) mean = rng->NormalVector(int64_t{s.heads} * s.dim);
    if (s.mean) source.key_mean = mean.data();
    EXPECT_EQ(cachalot_kv_block_bytes(&source, &block_bytes), CACHALOT_KV_OK) << cachalot_kv_last_error();
    source.block_stride = s.gap == 0 ? 0 : block_bytes + s.gap;
    const uint64_t stride = block_bytes + s.gap;
    bytes.resize(stride * (source.num_blocks - 1) + block_bytes, std::byte{0xff});
    source.blocks = bytes.data();
    source.blocks_bytes = bytes.size();
    const int32_t k_dim = static_cast<int32_t>(s.dim + s.rope), dim = static_cast<int32_t>(s.dim);
    std::optional<KvPlanes> planes;
    if (s.type > CACHALOT_KV_TYPE_BF16) {
      KvScheme scheme = FindKvFormat(TypeName(s.type))->scheme;
      if (s.rotate >= 0) scheme.rotate = s.rotate == 1;
      if (s.key_group >= 0) scheme.key_group = scheme.latent_group = s.key_group;
      planes = PlanKvPlanes(scheme, {k_dim, dim, static_cast<int32_t>(s.rope), s.rope > 0}, static_cast<int32_t>(s.block_tokens));
      EXPECT_EQ(static_cast<uint64_t>(planes->head_bytes) * s.heads, block_bytes);
    }
    for (size_t b = 0; b < s.lengths.size(); ++b) {
      for (int64_t t = 0; t < s.lengths[b]; ++t) {
        std::byte* block = bytes.data() + table.indices[static_cast<size_t>(table.indptr[b] + t / s.block_tokens)] * stride;
        const int64_t token = t % s.block_tokens;
        for (uint32_t h = 0; h < s.heads; ++h) {
          std::vector<float> key = rng->NormalVector(k_dim, 3.0f), value = rng->NormalVector(dim);
          const float* head_mean = s.mean ? mean.data() + h * s.dim : nullptr;
          if (planes) {
            std::byte* head = block + h * planes->head_bytes;
            EncodeKvKey(*planes, head_mean, key.data(), head, token);
            if (s.rope == 0) EncodeKvValue(*planes, value.data(), head, token);
            DecodeKvKey(*planes, head_mean, head, token, key.data());
            if (s.rope == 0) DecodeKvValue(*planes, nullptr, head, token, value.data());
          } else {
            const bool f16 = s.type == CACHALOT_KV_TYPE_F16;
            auto* words = reinterpret_cast<uint16_t*>(block);
            const auto write = [&](std::vector<float>& x, int64_t at) {
              for (size_t i = 0; i < x.size(); ++i) {
                words[at + static_cast<int64_t>(i)] = f16 ? F32ToF16(x[i]) : F32ToBF16(x[i]);
                x[i] = f16 ? F16ToF32(F32ToF16(x[i])) : BF16ToF32(F32ToBF16(x[i]));
              }
            };
            write(key, (int64_t{h} * s.block_tokens + token) * k_dim);
            if (s.rope == 0) write(value, ((int64_t{s.heads} + h) * s.block_tokens + token) * dim);
          }
          if (s.rope > 0) value.assign(key.begin() + dim, key.end());
          key.resize(static_cast<size_t>(dim));
          keys.push_back(key);
          values.push_back(value);
        }
      }
    }
  }

  Shape shape;
  Table table;
  std::vector<float> mean;
  std::vector<std::byte> bytes;
  uint64_t block_bytes = 0;
  cachalot_kv_source source;
  std::vector<std::vector<float>> keys, values;  // sequence, token, head
};

// Pages in poisoned memory.
struct Pages {
  Pages(TestRng* rng, const Cache& cache, uint32_t layout, uint32_t dtype, uint32_t page_size, uint64_t row_gap = 0) {
    pages = {};
    pages.struct_size = sizeof(pages);
    pages.abi_version = CACHALOT_KV_ABI_VERSION;
    pages.layout = layout;
    pages.dtype = dtype;
    pages.page_size = page_size;
    pages.kv_heads = cache.shape.heads;
    pages.head_dim = cache.shape.dim;
    pages.value_dim = cache.shape.rope > 0 ? cache.shape.rope : cache.shape.dim;
    table = MakeTable(rng, cache.shape.lengths, page_size, &pages.num_pages);
    pages.table = table.View();
    const bool vllm = layout >= CACHALOT_KV_VLLM_NHD, nhd = layout % 2 == 0;
    const auto strides = [&](uint64_t row, uint64_t* page, uint64_t* token, uint64_t* head) {
      *token = nhd ? row * pages.kv_heads : row;
      *head = nhd ? row : row * page_size;
      *page = row * pages.kv_heads * page_size;
    };
    strides(vllm ? 2 * pages.head_dim : pages.head_dim + row_gap, &k[0], &k[1], &k[2]);
    strides(vllm ? 2 * pages.head_dim : pages.value_dim + row_gap, &v[0], &v[1], &v[2]);
    keys.assign(k[0] * pages.num_pages, kPoison);
    values.assign(vllm ? 0 : v[0] * pages.num_pages, kPoison);
    pages.keys = keys.data();
    pages.values = vllm ? nullptr : values.data();
    pages.keys_bytes = keys.size() * 2;
    pages.values_bytes = values.size() * 2;
    if (row_gap > 0) {
      pages.page_stride = k[0], pages.token_stride = k[1], pages.head_stride = k[2];
      pages.value_page_stride = v[0], pages.value_token_stride = v[1], pages.value_head_stride = v[2];
    }
  }

  int Materialize(const Cache& cache) { return cachalot_kv_page_materialize(&cache.source, &pages, nullptr); }
  bool Untouched() const {
    const auto poison = [](uint16_t bits) { return bits == kPoison; };
    return std::all_of(keys.begin(), keys.end(), poison) && std::all_of(values.begin(), values.end(), poison);
  }

  // Every value where FlashInfer would read it, and poison everywhere else.
  void Expect(const Cache& cache) {
    const bool vllm = pages.layout >= CACHALOT_KV_VLLM_NHD;
    std::vector<uint16_t> want_k(keys.size(), kPoison), want_v(values.size(), kPoison);
    size_t row = 0;
    for (size_t b = 0; b < cache.shape.lengths.size(); ++b) {
      for (int64_t t = 0; t < cache.shape.lengths[b]; ++t) {
        const auto page = static_cast<uint64_t>(table.indices[static_cast<size_t>(table.indptr[b] + t / pages.page_size)]);
        for (uint64_t h = 0; h < pages.kv_heads; ++h, ++row) {
          const auto place = [&](const std::vector<float>& x, const uint64_t (&s)[3], uint64_t at, std::vector<uint16_t>* to) {
            for (const float value : x) {
              const uint16_t bits = pages.dtype == CACHALOT_KV_DTYPE_F16 ? F32ToF16(value) : F32ToBF16(value);
              (*to)[page * s[0] + static_cast<uint64_t>(t % pages.page_size) * s[1] + h * s[2] + at++] = bits;
            }
          };
          place(cache.keys[row], k, 0, &want_k);
          place(cache.values[row], v, vllm ? pages.head_dim : 0, vllm ? &want_k : &want_v);
        }
      }
    }
    const auto same = [](uint16_t a, uint16_t b) { return a == b || ((a | b) == 0x8000 && (a & b) == 0); };  // 0 and -0
    for (size_t i = 0; i < keys.size(); ++i) ASSERT_TRUE(same(keys[i], want_k[i])) << "key " << i << ": " << keys[i] << ", not " << want_k[i];
    for (size_t i = 0; i < values.size(); ++i) ASSERT_TRUE(same(values[i], want_v[i])) << "value " << i << ": " << values[i] << ", not " << want_v[i];
  }

  cachalot_kv_pages pages;
  Table table;
  std::vector<uint16_t> keys, values;
  uint64_t k[3], v[3];  // strides: page, token, head
};

constexpr uint32_t kTypes[] = {CACHALOT_KV_TYPE_F16,  CACHALOT_KV_TYPE_BF16, CACHALOT_KV_TYPE_K8V8, CACHALOT_KV_TYPE_FP8,
                               CACHALOT_KV_TYPE_K6V8, CACHALOT_KV_TYPE_K6V4, CACHALOT_KV_TYPE_K4V4};

TEST(FlashInferPages, EveryTypeLayoutAndPage) {
  TestRng rng(31);
  for (const uint32_t type : kTypes) {
    for (const uint32_t dim : {1u, 16u, 64u, 80u, 127u, 128u, 256u}) {
      const Cache cache(&rng, {.type = type, .dim = dim, .mean = type > CACHALOT_KV_TYPE_BF16 && dim % 2 == 0, .gap = dim % 3 == 0 ? 64u : 0u});
      for (uint32_t layout = CACHALOT_KV_NHD; layout <= CACHALOT_KV_VLLM_HND; ++layout) {
        const uint32_t dtype = layout % 2 == 0 ? CACHALOT_KV_DTYPE_F16 : CACHALOT_KV_DTYPE_BF16;
        for (const uint32_t page_size : {1u, 7u, 16u, 64u}) {
          SCOPED_TRACE(testing::Message() << TypeName(type) << " dim " << dim << " layout " << layout << " pages of " << page_size);
          Pages pages(&rng, cache, layout, dtype, page_size, layout <= CACHALOT_KV_HND && page_size == 7 ? 3 : 0);
          ASSERT_EQ(pages.Materialize(cache), CACHALOT_KV_OK) << cachalot_kv_last_error();
          pages.Expect(cache);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(FlashInferPages, MlaGivesLatentsAndRotaryParts) {
  TestRng rng(32);
  for (const uint32_t type : kTypes) {
    const Cache cache(&rng, {.type = type, .heads = 1, .dim = 512, .rope = 64, .mean = type > CACHALOT_KV_TYPE_BF16});
    for (const uint32_t page_size : {16u, 64u}) {
      SCOPED_TRACE(testing::Message() << TypeName(type) << " pages of " << page_size);
      Pages pages(&rng, cache, CACHALOT_KV_NHD, CACHALOT_KV_DTYPE_BF16, page_size);
      ASSERT_EQ(pages.Materialize(cache), CACHALOT_KV_OK) << cachalot_kv_last_error();
      pages.Expect(cache);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(FlashInferPages, GroupsAndRotationAsTheFlagsSay) {
  TestRng rng(33);
  for (const int32_t group : {0, 32, 64, 128}) {
    for (const int32_t rotate : {0, 1}) {
      const Cache cache(&rng, {.type = CACHALOT_KV_TYPE_K6V8, .dim = 128, .key_group = group, .rotate = rotate});
      Pages pages(&rng, cache, CACHALOT_KV_NHD, CACHALOT_KV_DTYPE_F16, 16);
      ASSERT_EQ(pages.Materialize(cache), CACHALOT_KV_OK) << cachalot_kv_last_error();
      pages.Expect(cache);
    }
  }
}

TEST(FlashInferPages, WithoutATableOfTheirOwnPagesAreTheBlocks) {
  TestRng rng(34);
  const Cache cache(&rng, {});
  Pages pages(&rng, cache, CACHALOT_KV_HND, CACHALOT_KV_DTYPE_F16, cache.shape.block_tokens);
  pages.table = cache.table;
  pages.pages.table = {};
  ASSERT_EQ(pages.Materialize(cache), CACHALOT_KV_OK) << cachalot_kv_last_error();
  pages.Expect(cache);
  pages.pages.page_size = 8;
  EXPECT_EQ(pages.Materialize(cache), CACHALOT_KV_BAD_TABLE);
}

TEST(FlashInferPages, ViewsPointAtTheValues) {
  TestRng rng(35);
  for (const uint32_t type : {CACHALOT_KV_TYPE_F16, CACHALOT_KV_TYPE_BF16}) {
    for (const uint32_t rope : {0u, 64u}) {
      const Cache cache(&rng, {.type = type, .heads = rope > 0 ? 1u : 3u, .dim = 128, .rope = rope, .gap = 32});
      cachalot_kv_pages view = {};
      view.struct_size = sizeof(view);
      view.abi_version = CACHALOT_KV_ABI_VERSION;
      ASSERT_EQ(cachalot_kv_page_view(&cache.source, &view), CACHALOT_KV_OK) << cachalot_kv_last_error();
      EXPECT_EQ(view.layout, CACHALOT_KV_HND);
      EXPECT_EQ(view.dtype, type);
      EXPECT_EQ(view.equal_strides, 1u);
      EXPECT_EQ(view.page_size, 16u);
      EXPECT_EQ(view.page_stride, (cache.block_bytes + 32) / 2);
      EXPECT_EQ(view.k_scale, 1);
      size_t row = 0;
      for (size_t b = 0; b < cache.shape.lengths.size(); ++b) {
        for (int64_t t = 0; t < cache.shape.lengths[b]; ++t) {
          const auto page = static_cast<uint64_t>(view.table.indices[view.table.indptr[b] + t / view.page_size]);
          for (uint64_t h = 0; h < view.kv_heads; ++h, ++row) {
            const auto* k = static_cast<uint16_t*>(view.keys) + page * view.page_stride + static_cast<uint64_t>(t % view.page_size) * view.token_stride + h * view.head_stride;
            const auto* v = static_cast<uint16_t*>(view.values) + page * view.value_page_stride + static_cast<uint64_t>(t % view.page_size) * view.value_token_stride + h * view.value_head_stride;
            const auto f32 = [&](uint16_t bits) { return type == CACHALOT_KV_TYPE_F16 ? F16ToF32(bits) : BF16ToF32(bits); };
            for (uint32_t i = 0; i < view.head_dim; ++i) ASSERT_EQ(f32(k[i]), cache.keys[row][i]);
            for (uint32_t i = 0; i < view.value_dim; ++i) ASSERT_EQ(f32(v[i]), cache.values[row][i]);
          }
        }
      }
    }
  }
}

TEST(FlashInferPages, QuantisedCachesAreNoViews) {
  TestRng rng(36);
  cachalot_kv_pages view = {};
  view.struct_size = sizeof(view);
  view.abi_version = CACHALOT_KV_ABI_VERSION;
  for (const uint32_t type : {CACHALOT_KV_TYPE_K8V8, CACHALOT_KV_TYPE_FP8, CACHALOT_KV_TYPE_K4V4}) {
    const Cache cache(&rng, {.type = type});
    EXPECT_EQ(cachalot_kv_page_view(&cache.source, &view), CACHALOT_KV_NOT_VIEWABLE);
    EXPECT_EQ(view.keys, nullptr);
  }
}

// Tensors that start with headers.
TEST(FlashInferPages, TensorsAreViewedOrMaterialized) {
  for (const int qtype : {CACHALOT_KV_F16, CACHALOT_KV_BF16, CACHALOT_KV_FP8}) {
    cachalot_kv_header header;
    ASSERT_EQ(cachalot_kv_header_init(&header, qtype, 0, CACHALOT_KV_SCALE_ONE, 0, 2, 3, 4, 8), CACHALOT_KV_OK);
    if (qtype == CACHALOT_KV_FP8) header.scale = 0.25f;
    cachalot_kv_header_seal(&header);
    std::vector<uint8_t> bytes(header.total_bytes, 0x38);  // 1 as E4M3
    std::memcpy(bytes.data(), &header, sizeof(header));
    cachalot_kv_source source = {};
    source.struct_size = sizeof(source);
    source.abi_version = CACHALOT_KV_ABI_VERSION;
    source.kind = CACHALOT_KV_TENSORS;
    source.keys = source.values = bytes.data();
    source.keys_bytes = source.values_bytes = bytes.size();
    cachalot_kv_pages view = {};
    view.struct_size = sizeof(view);
    view.abi_version = CACHALOT_KV_ABI_VERSION;
    ASSERT_EQ(cachalot_kv_page_view(&source, &view), CACHALOT_KV_OK) << cachalot_kv_last_error();
    EXPECT_EQ(view.num_pages, 2u);
    EXPECT_EQ(view.page_size, 4u);
    EXPECT_EQ(view.page_stride, 3u * 4 * 8);
    EXPECT_EQ(view.head_stride, 4u * 8);
    EXPECT_EQ(view.token_stride, 8u);
    EXPECT_EQ(view.keys, bytes.data() + header.codes.offset);
    EXPECT_EQ(view.table.indptr, nullptr);
    EXPECT_EQ(view.k_scale, qtype == CACHALOT_KV_FP8 ? 0.25f : 1.0f);
    if (qtype != CACHALOT_KV_FP8) continue;
    // Two of the sequences' tokens and none of the other's, in pages of 3.
    const int32_t lengths[] = {4, 0};
    int32_t indptr[3], last[2];
    ASSERT_EQ(cachalot_kv_page_counts(lengths, 2, 3, indptr, last), CACHALOT_KV_OK);
    const int32_t indices[] = {2, 0};
    std::vector<uint16_t> memory(2 * 3 * 3 * 3 * 8, kPoison);
    cachalot_kv_pages pages = {};
    pages.struct_size = sizeof(pages);
    pages.abi_version = CACHALOT_KV_ABI_VERSION;
    pages.layout = CACHALOT_KV_NHD;
    pages.dtype = CACHALOT_KV_DTYPE_F16;
    pages.num_pages = pages.page_size = pages.kv_heads = 3;
    pages.head_dim = pages.value_dim = 8;
    pages.keys = memory.data();
    pages.values = memory.data() + memory.size() / 2;
    pages.keys_bytes = pages.values_bytes = memory.size();
    pages.table = {indptr, indices, last, 2, 2};
    ASSERT_EQ(cachalot_kv_page_materialize(&source, &pages, nullptr), CACHALOT_KV_OK) << cachalot_kv_last_error();
    for (size_t i = 0; i < memory.size() / 2; ++i) {
      const bool written = i / (3 * 8) < 1 || i / (3 * 8) >= 6;  // the fourth token in page 0, three in page 2
      ASSERT_EQ(memory[i], written ? 0x3400 : kPoison) << i;
      ASSERT_EQ(memory[i + memory.size() / 2], memory[i]);
    }
    source.device = CACHALOT_KV_CUDA;  // headers in device memory cannot be read
    EXPECT_EQ(cachalot_kv_page_materialize(&source, &pages, nullptr), CACHALOT_KV_NULL_POINTER);
  }
}

TEST(FlashInferPages, LiesAreRefusedAndNothingIsWritten) {
  TestRng rng(37);
  const auto expect = [&](int want, auto&& spoil) {
    Cache cache(&rng, {});
    Pages pages(&rng, cache, CACHALOT_KV_NHD, CACHALOT_KV_DTYPE_F16, 8);
    spoil(cache, pages);
    EXPECT_EQ(pages.Materialize(cache), want) << cachalot_kv_last_error();
    EXPECT_TRUE(pages.Untouched());
  };
  expect(CACHALOT_KV_BAD_TABLE, [](Cache& c, Pages&) { c.table.indices[1] = -1; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache& c, Pages&) { c.table.indices[0] = 1 << 30; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache& c, Pages&) { c.table.indptr[1] = INT32_MAX; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache& c, Pages&) { c.table.last[0] = 17; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache&, Pages& p) { p.table.last[3] = 0; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache&, Pages& p) { p.table.last[0] -= 1; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache&, Pages& p) { p.table.indptr[0] = -1; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache& c, Pages&) { c.source.table.batch = 4; });
  expect(CACHALOT_KV_BAD_TABLE, [](Cache& c, Pages&) { c.source.table.num_indices -= 1; });
  expect(CACHALOT_KV_NULL_POINTER, [](Cache& c, Pages&) { c.source.blocks = nullptr; });
  expect(CACHALOT_KV_NULL_POINTER, [](Cache& c, Pages&) { c.source.table.indptr = nullptr; });
  expect(CACHALOT_KV_NULL_POINTER, [](Cache&, Pages& p) { p.pages.values = nullptr; });
  expect(CACHALOT_KV_OUT_OF_BOUNDS, [](Cache& c, Pages&) { c.source.blocks_bytes -= 1; });
  expect(CACHALOT_KV_OUT_OF_BOUNDS, [](Cache& c, Pages&) { c.source.num_blocks = INT32_MAX; });
  expect(CACHALOT_KV_OUT_OF_BOUNDS, [](Cache& c, Pages&) { c.source.block_stride = UINT64_MAX & ~uint64_t{15}; });
  expect(CACHALOT_KV_OUT_OF_BOUNDS, [](Cache& c, Pages&) { c.source.block_stride = 16; });
  expect(CACHALOT_KV_MISALIGNED, [](Cache& c, Pages&) { c.source.blocks = c.bytes.data() + 8; c.source.num_blocks -= 1; c.source.table.num_indices = 0; });
  expect(CACHALOT_KV_OUT_OF_BOUNDS, [](Cache&, Pages& p) { p.pages.keys_bytes -= 1; });
  expect(CACHALOT_KV_OUT_OF_BOUNDS, [](Cache&, Pages& p) { p.pages.num_pages += 1; });
  expect(CACHALOT_KV_OUT_OF_BOUNDS, [](Cache&, Pages& p) { p.pages.page_stride = p.pages.value_page_stride = UINT32_MAX; });
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache&, Pages& p) { p.pages.page_stride = uint64_t{1} << 32; });
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache&, Pages& p) { p.pages.head_dim = 63; });
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache&, Pages& p) { p.pages.kv_heads = 1; });
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache&, Pages& p) { p.pages.page_size = 0; });
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache& c, Pages&) { c.source.kv_heads = 0; });
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache& c, Pages&) { c.source.head_dim = 0xffffffffu; });
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache& c, Pages&) { c.source.rope_dim = 64; });  // with two heads
  expect(CACHALOT_KV_BAD_SHAPE, [](Cache& c, Pages&) { c.source.block_tokens = 0x80000000u; });
  expect(CACHALOT_KV_BAD_TYPE, [](Cache& c, Pages&) { c.source.type = 8; });
  expect(CACHALOT_KV_BAD_TYPE, [](Cache& c, Pages&) { c.source.key_group = 48; });
  expect(CACHALOT_KV_BAD_TYPE, [](Cache& c, Pages&) { c.source.rotate = 2; });
  expect(CACHALOT_KV_BAD_TYPE, [](Cache& c, Pages&) { c.source.device = 7; });
  expect(CACHALOT_KV_BAD_TYPE, [](Cache&, Pages& p) { p.pages.dtype = CACHALOT_KV_DTYPE_E4M3; });
  expect(CACHALOT_KV_BAD_TYPE, [](Cache&, Pages& p) { p.pages.layout = 4; });
  expect(CACHALOT_KV_BAD_VERSION, [](Cache& c, Pages&) { c.source.struct_size -= 8; });
  expect(CACHALOT_KV_BAD_VERSION, [](Cache&, Pages& p) { p.pages.abi_version = 2; });
  expect(CACHALOT_KV_BAD_VERSION, [](Cache&, Pages& p) { p.pages.reserved[0] = 1; });
}

TEST(FlashInferPages, CountsAreThoseOfTheLengths) {
  const int32_t lengths[] = {0, 1, 16, 17, 33};
  int32_t indptr[6], last[5];
  ASSERT_EQ(cachalot_kv_page_counts(lengths, 5, 16, indptr, last), CACHALOT_KV_OK);
  EXPECT_EQ(std::vector<int32_t>(indptr, indptr + 6), (std::vector<int32_t>{0, 0, 1, 2, 4, 7}));
  EXPECT_EQ(std::vector<int32_t>(last, last + 5), (std::vector<int32_t>{0, 1, 16, 1, 1}));
  const int32_t negative[] = {3, -1}, many[] = {INT32_MAX, INT32_MAX};
  EXPECT_EQ(cachalot_kv_page_counts(negative, 2, 16, indptr, last), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(cachalot_kv_page_counts(many, 2, 1, indptr, last), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(cachalot_kv_page_counts(lengths, 5, 0, indptr, last), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(cachalot_kv_page_counts(nullptr, 1, 16, indptr, last), CACHALOT_KV_NULL_POINTER);
  EXPECT_EQ(cachalot_kv_page_counts(nullptr, 0, 16, indptr, nullptr), CACHALOT_KV_OK);
}

}  // namespace
}  // namespace cachalot
