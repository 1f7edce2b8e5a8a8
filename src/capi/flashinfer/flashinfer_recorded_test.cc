// What others say: FlashInfer's own page arithmetic, CUDA's E4M3, and caches by vLLM's rules for int4_per_token_head, as recorded by
// tools/make_flashinfer_goldens.py.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cachalot/flashinfer.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

using Json = nlohmann::json;

const Json& Recorded() {
  static const Json json = Json::parse(std::ifstream(CACHALOT_SOURCE_DIR "/tests/data/kv/flashinfer_recorded.json"));
  return json;
}

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

// An integer that F16 holds, of each value of a cache.
float Mark(int64_t b, int64_t t, int64_t h, int64_t i, bool value) {
  return static_cast<float>((b * 977 + t * 131 + h * 57 + i * 7 + (value ? 1021 : 0)) % 2048);
}

// A cache of blocks of 8 tokens that holds the sequences of a recorded table.
struct Source {
  Source(const std::vector<int32_t>& lengths, uint32_t heads, uint32_t dim, uint32_t block_tokens, uint64_t gap) {
    source.struct_size = sizeof(source);
    source.abi_version = CACHALOT_KV_ABI_VERSION;
    source.type = CACHALOT_KV_TYPE_F16;
    source.block_tokens = block_tokens;
    source.kv_heads = heads;
    source.head_dim = dim;
    indptr.resize(lengths.size() + 1);
    last.resize(lengths.size());
    EXPECT_EQ(cachalot_kv_page_counts(lengths.data(), static_cast<uint32_t>(lengths.size()), block_tokens, indptr.data(), last.data()), CACHALOT_KV_OK);
    for (int32_t i = indptr.back(); i > 0; --i) indices.push_back(i);
    source.num_blocks = static_cast<uint32_t>(indptr.back()) + 1;
    source.table = {indptr.data(), indices.data(), last.data(), static_cast<uint32_t>(lengths.size()), static_cast<uint32_t>(indices.size())};
    const uint64_t per_block = 2 * uint64_t{heads} * block_tokens * dim + gap;
    source.block_stride = per_block * 2;
    memory.resize(per_block * source.num_blocks, 0xffff);
    source.blocks = memory.data();
    source.blocks_bytes = memory.size() * 2;
    for (size_t b = 0; b < lengths.size(); ++b) {
      for (int64_t t = 0; t < lengths[b]; ++t) {
        const uint64_t block = static_cast<uint64_t>(indices[static_cast<size_t>(indptr[b] + t / block_tokens)]) * per_block;
        for (uint64_t h = 0; h < heads; ++h) {
          for (uint64_t i = 0; i < dim; ++i) {
            const uint64_t at = block + (h * block_tokens + static_cast<uint64_t>(t % block_tokens)) * dim + i;
            const auto mark = [&](bool value) { return F32ToF16(Mark(static_cast<int64_t>(b), t, static_cast<int64_t>(h), static_cast<int64_t>(i), value)); };
            memory[at] = mark(false);
            memory[at + uint64_t{heads} * block_tokens * dim] = mark(true);
          }
        }
      }
    }
  }
  std::vector<int32_t> indptr, indices, last;
  std::vector<uint16_t> memory;
  cachalot_kv_source source = {};
};

TEST(FlashInferRecorded, ValuesLieWhereFlashInferReads) {
  for (const Json& page : Recorded()["pages"]) {
    SCOPED_TRACE(page["name"].get<std::string>());
    const auto lengths = page["lengths"].get<std::vector<int32_t>>(), indptr = page["indptr"].get<std::vector<int32_t>>();
    const auto indices = page["indices"].get<std::vector<int32_t>>(), last = page["last_page_len"].get<std::vector<int32_t>>();
    const auto strides = page["strides"].get<std::vector<uint64_t>>();
    const auto heads = page["kv_heads"].get<uint32_t>(), dim = page["head_dim"].get<uint32_t>(), size = page["page_size"].get<uint32_t>();
    const auto num_pages = page["num_pages"].get<uint32_t>();
    const auto values_at = page["values_at"].get<uint64_t>();
    const std::string name = page["name"];
    std::vector<int32_t> counted(indptr.size()), counted_last(last.size());
    ASSERT_EQ(cachalot_kv_page_counts(lengths.data(), static_cast<uint32_t>(lengths.size()), size, counted.data(), counted_last.data()), CACHALOT_KV_OK);
    EXPECT_EQ(counted, indptr);
    EXPECT_EQ(counted_last, last);
    const Source source(lengths, heads, dim, 8, 0);
    cachalot_kv_pages pages = {};
    pages.struct_size = sizeof(pages);
    pages.abi_version = CACHALOT_KV_ABI_VERSION;
    pages.layout = page["layout"].get<uint32_t>();
    pages.dtype = CACHALOT_KV_DTYPE_F16;
    pages.num_pages = num_pages;
    pages.page_size = size;
    pages.kv_heads = heads;
    pages.head_dim = pages.value_dim = dim;
    pages.table = {indptr.data(), indices.data(), last.data(), static_cast<uint32_t>(last.size()), static_cast<uint32_t>(indices.size())};
    std::vector<uint16_t> memory(strides[0] * num_pages * (values_at == 0 ? 2 : 1), 0xffff);
    pages.keys = memory.data();
    pages.keys_bytes = memory.size() * 2;
    const uint64_t values = values_at == 0 ? memory.size() / 2 : values_at;
    if (name.starts_with("vLLM")) {
      pages.layout += CACHALOT_KV_VLLM_NHD;
    } else {
      pages.values = memory.data() + values;
      pages.values_bytes = (memory.size() - values) * 2;
    }
    if (name == "block") {
      pages.page_stride = pages.value_page_stride = strides[0];
      pages.token_stride = pages.value_token_stride = strides[1];
      pages.head_stride = pages.value_head_stride = strides[2];
    }
    ASSERT_EQ(cachalot_kv_page_materialize(&source.source, &pages, nullptr), CACHALOT_KV_OK) << cachalot_kv_last_error();
    for (const Json& sample : page["samples"]) {
      const int64_t b = sample[0], t = sample[1], h = sample[2], i = sample[3];
      const uint64_t at = sample[4];
      ASSERT_EQ(F16ToF32(memory[at]), Mark(b, t, h, i, false)) << sample;
      ASSERT_EQ(F16ToF32(memory[at + values]), Mark(b, t, h, i, true)) << sample;
    }
    // What is viewed has the strides with which FlashInfer finds the same values in the cache itself.
    if (name == "block") {
      const Source own(lengths, heads, dim, size, 24);
      cachalot_kv_pages view = {};
      view.struct_size = sizeof(view);
      view.abi_version = CACHALOT_KV_ABI_VERSION;
      ASSERT_EQ(cachalot_kv_page_view(&own.source, &view), CACHALOT_KV_OK);
      EXPECT_EQ((std::vector<uint64_t>{view.page_stride, view.token_stride, view.head_stride}), strides);
      EXPECT_EQ(static_cast<uint64_t>(static_cast<uint16_t*>(view.values) - static_cast<uint16_t*>(view.keys)), values_at);
    }
  }
}

TEST(FlashInferRecorded, E4M3IsCudas) {
  cachalot_kv_header header;
  ASSERT_EQ(cachalot_kv_header_init(&header, CACHALOT_KV_FP8, 0, CACHALOT_KV_SCALE_ONE, 0, 1, 1, 1, 256), CACHALOT_KV_OK);
  std::vector<uint8_t> bytes(header.total_bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  for (size_t i = 0; i < 256; ++i) bytes[header.codes.offset + i] = static_cast<uint8_t>(i);
  std::vector<uint16_t> f16(256), bf16(256);
  ASSERT_EQ(deepseek_kv_remap(bytes.data(), f16.data(), 1, 1, 1, 256, CACHALOT_KV_FP8 | CACHALOT_KV_TO_F16), CACHALOT_KV_OK);
  ASSERT_EQ(deepseek_kv_remap(bytes.data(), bf16.data(), 1, 1, 1, 256, CACHALOT_KV_FP8 | CACHALOT_KV_TO_BF16), CACHALOT_KV_OK);
  for (size_t i = 0; i < 256; ++i) {
    const Json& want = Recorded()["e4m3"][i];
    const float value = want.is_null() ? 0.0f : want.get<float>();  // NaN comes out as 0
    EXPECT_EQ(F16ToF32(f16[i]), value) << i;
    EXPECT_EQ(BF16ToF32(bf16[i]), value) << i;
  }
}

// vLLM's cache is described where it lies: blocks are the batch, their tokens the sequence, so what comes out are HND pages.
TEST(FlashInferRecorded, VllmsInt4) {
  for (const Json& cache : Recorded()["vllm_int4"]) {
    const auto blocks = cache["blocks"].get<uint32_t>(), heads = cache["kv_heads"].get<uint32_t>(), tokens = cache["block_size"].get<uint32_t>();
    const auto dim = cache["head_dim"].get<uint32_t>();
    const std::vector<uint8_t> bytes = FromHex(cache["bytes"]);
    cachalot_kv_header header;
    ASSERT_EQ(cachalot_kv_header_init(&header, CACHALOT_KV_INT4, CACHALOT_KV_PACK_LINEAR, CACHALOT_KV_SCALE_F32_ZERO, 0, blocks, heads, tokens, dim), CACHALOT_KV_OK);
    for (const bool values : {false, true}) {
      SCOPED_TRACE(testing::Message() << cache["order"] << (values ? " values" : " keys"));
      const auto strides = cache["strides"].get<std::vector<uint64_t>>();
      header.codes = {values ? dim / 2 + 4 : 0, strides[0], strides[1], strides[2]};
      header.scales = header.codes;
      header.scales.offset += dim / 2;
      header.total_bytes = bytes.size();
      ASSERT_EQ(cachalot_kv_header_seal(&header), CACHALOT_KV_OK);
      const std::vector<uint8_t> want = FromHex(cache[values ? "values" : "keys"]);
      std::vector<uint16_t> got(want.size() / 2, 0xffff);
      ASSERT_EQ(cachalot_kv_remap(bytes.data(), bytes.size(), &header, got.data(), want.size(), static_cast<int32_t>(blocks), static_cast<int32_t>(heads),
                                  static_cast<int32_t>(tokens), static_cast<int32_t>(dim), CACHALOT_KV_INT4, CACHALOT_KV_CPU, nullptr),
                CACHALOT_KV_OK)
          << cachalot_kv_last_error();
      for (size_t i = 0; i < got.size(); ++i) {
        uint16_t bits;
        std::memcpy(&bits, &want[2 * i], 2);
        ASSERT_EQ(F16ToF32(got[i]), F16ToF32(bits)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
