// The self-describing form through the library: every stored type, packing and scale against formulas; headers that lie are
// refused with a code, whatever field it is, and nothing outside of the memory is read (the sanitizers watch exact allocations).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <set>

#include "cachalot/flashinfer.h"
#include "kernels/common/testing.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

struct Packed {
  cachalot_kv_header header;
  std::vector<uint8_t> bytes;
};

struct Spec {
  int qtype = CACHALOT_KV_INT8;
  int packing = CACHALOT_KV_PACK_LINEAR;
  int scale = CACHALOT_KV_SCALE_F32;
  uint32_t group = 0, batch = 2, heads = 3, seq = 5, dim = 16;
};

Packed Random(TestRng* rng, const Spec& s) {
  Packed p;
  EXPECT_EQ(cachalot_kv_header_init(&p.header, s.qtype, s.packing, s.scale, s.group, s.batch, s.heads, s.seq, s.dim), CACHALOT_KV_OK)
      << cachalot_kv_last_error();
  p.bytes.resize(p.header.total_bytes);
  for (uint8_t& byte : p.bytes) byte = static_cast<uint8_t>(rng->Int(0, 255));
  if (s.scale != CACHALOT_KV_SCALE_ONE) {
    const bool word = s.scale == CACHALOT_KV_SCALE_F32 || s.scale == CACHALOT_KV_SCALE_F32_ZERO;
    for (uint64_t at = p.header.scales.offset; at + (word ? 4 : 2) <= p.bytes.size(); at += word ? 4 : 2) {
      const float value = rng->Uniform(0.01f, 1.0f);
      const uint16_t half = s.scale == CACHALOT_KV_SCALE_F16 ? F32ToF16(value) : F32ToBF16(value);
      std::memcpy(&p.bytes[at], word ? static_cast<const void*>(&value) : &half, word ? 4 : 2);
    }
  }
  std::memcpy(p.bytes.data(), &p.header, sizeof(p.header));
  return p;
}

uint32_t Bits(const uint8_t* row, uint64_t bit, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value |= (row[(bit + i) / 8] >> ((bit + i) % 8) & 1u) << i;
  return value;
}

// By the words of the public header alone.
float Value(const Packed& p, uint64_t b, uint64_t h, uint64_t t, uint64_t i) {
  const cachalot_kv_header& d = p.header;
  const auto row = [&](const cachalot_kv_plane& plane) {
    return p.bytes.data() + plane.offset + b * plane.batch_stride + h * plane.head_stride + t * plane.token_stride;
  };
  const uint64_t group = d.group == 0 ? 0 : i / d.group;
  float scale = d.scale, zero = d.zero_point;
  if (d.scale_type == CACHALOT_KV_SCALE_F32) std::memcpy(&scale, row(d.scales) + group * 4, 4);
  if (d.scale_type == CACHALOT_KV_SCALE_F32_ZERO) {
    uint32_t word;
    std::memcpy(&word, row(d.scales) + group * 4, 4);
    zero = static_cast<float>(word & 15);
    scale = std::bit_cast<float>(word & ~15u);
  }
  uint16_t half = 0;
  if (d.scale_type == CACHALOT_KV_SCALE_F16 || d.scale_type == CACHALOT_KV_SCALE_BF16) std::memcpy(&half, row(d.scales) + group * 2, 2);
  if (d.scale_type == CACHALOT_KV_SCALE_F16) scale = F16ToF32(half);
  if (d.scale_type == CACHALOT_KV_SCALE_BF16) scale = BF16ToF32(half);
  const uint8_t* codes = row(d.codes);
  const bool units = d.packing == CACHALOT_KV_PACK_UNITS;
  const uint64_t low_bit = units ? (i / 32 * 16 + i % 16) * 8 + i % 32 / 16 * 4 : i * 4;
  float value = 0;
  switch (d.qtype) {
    case CACHALOT_KV_INT4: value = (static_cast<float>(Bits(codes, low_bit, 4)) - zero) * scale; break;
    case CACHALOT_KV_INT6: {
      const uint32_t code = units ? Bits(codes, low_bit, 4) | Bits(row(d.high), i / 32 * 64 + i % 8 * 8 + i % 32 / 8 * 2, 2) << 4 : Bits(codes, i * 6, 6);
      value = (static_cast<float>(code) - zero) * scale;
      break;
    }
    case CACHALOT_KV_INT8: value = static_cast<float>(static_cast<int8_t>(codes[i])) * scale; break;
    case CACHALOT_KV_FP8: {  // sign, exponent less 7, mantissa
      const int code = codes[i], exponent = code >> 3 & 15, mantissa = code & 7;
      const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      value = (code & 127) == 127 ? 0.0f : (code < 128 ? magnitude : -magnitude) * scale;
      break;
    }
    case CACHALOT_KV_F16: value = F16ToF32(static_cast<uint16_t>(Bits(codes, i * 16, 16))) * scale; break;
    default: value = BF16ToF32(static_cast<uint16_t>(Bits(codes, i * 16, 16))) * scale;
  }
  return value == value ? value : 0.0f;
}

uint16_t Rounded(float x, bool bf16) {
  const float largest = bf16 ? BF16ToF32(0x7f7f) : 65504.0f;
  x = std::min(std::max(x, -largest), largest);
  return bf16 ? F32ToBF16(x) : F32ToF16(x);
}

int Remap(const Packed& p, std::vector<uint16_t>* dst, int qtype) {
  const cachalot_kv_header& h = p.header;
  return deepseek_kv_remap(p.bytes.data(), dst->data(), static_cast<int32_t>(h.batch), static_cast<int32_t>(h.kv_heads),
                           static_cast<int32_t>(h.seq_len), static_cast<int32_t>(h.head_dim), qtype);
}

void ExpectRemaps(TestRng* rng, const Spec& spec) {
  SCOPED_TRACE(testing::Message() << "qtype " << spec.qtype << " packing " << spec.packing << " scale " << spec.scale << " group "
                                  << spec.group << " [" << spec.batch << ", " << spec.heads << ", " << spec.seq << ", " << spec.dim << "]");
  const Packed p = Random(rng, spec);
  const size_t count = size_t{spec.batch} * spec.heads * spec.seq * spec.dim;
  for (const int to : {0, CACHALOT_KV_TO_F16, CACHALOT_KV_TO_BF16}) {
    std::vector<uint16_t> dst(count + 1, 0xffff);
    ASSERT_EQ(Remap(p, &dst, spec.qtype | to), CACHALOT_KV_OK) << cachalot_kv_last_error();
    const bool bf16 = to == CACHALOT_KV_TO_BF16 || (to == 0 && (spec.qtype == CACHALOT_KV_INT8 || spec.qtype == CACHALOT_KV_BF16));
    size_t at = 0;
    for (uint32_t b = 0; b < spec.batch; ++b) {
      for (uint32_t h = 0; h < spec.heads; ++h) {
        for (uint32_t t = 0; t < spec.seq; ++t) {
          for (uint32_t i = 0; i < spec.dim; ++i, ++at) ASSERT_EQ(dst[at], Rounded(Value(p, b, h, t, i), bf16)) << b << " " << h << " " << t << " " << i;
        }
      }
    }
    ASSERT_EQ(dst[count], 0xffff);
  }
}

TEST(FlashInferHeader, EveryTypePackingScaleAndSize) {
  TestRng rng(3);
  for (const int qtype : {CACHALOT_KV_INT4, CACHALOT_KV_INT6, CACHALOT_KV_INT8, CACHALOT_KV_FP8, CACHALOT_KV_F16, CACHALOT_KV_BF16}) {
    for (const int packing : {CACHALOT_KV_PACK_LINEAR, CACHALOT_KV_PACK_UNITS}) {
      for (int scale = CACHALOT_KV_SCALE_ONE; scale <= CACHALOT_KV_SCALE_F32_ZERO; ++scale) {
        for (const uint32_t dim : {1u, 7u, 16u, 64u, 65u, 128u, 256u}) {
          ExpectRemaps(&rng, {.qtype = qtype, .packing = packing, .scale = scale, .group = scale % 2 == 0 ? 0u : 32u, .dim = dim});
        }
      }
    }
  }
  ExpectRemaps(&rng, {.batch = 1, .heads = 1, .seq = 1, .dim = 1024});
  for (const Spec& empty : {Spec{.batch = 0}, Spec{.seq = 0}}) ExpectRemaps(&rng, empty);
}

TEST(FlashInferHeader, RotationAndMeanAreUndone) {
  TestRng rng(4);
  Packed p = Random(&rng, {.qtype = CACHALOT_KV_INT8, .scale = CACHALOT_KV_SCALE_ONE, .batch = 1, .heads = 1, .seq = 1, .dim = 4});
  p.header.rotation = 4;
  p.header.mean_offset = (p.bytes.size() + 3) / 4 * 4;
  p.bytes.resize(p.header.mean_offset + 16);
  p.header.total_bytes = p.bytes.size();
  cachalot_kv_header_seal(&p.header);
  std::memcpy(p.bytes.data(), &p.header, sizeof(p.header));
  const int8_t codes[] = {4, 8, -12, 16};
  const float mean[] = {0.5f, 1, 2, 3};
  std::memcpy(&p.bytes[p.header.codes.offset], codes, 4);
  std::memcpy(&p.bytes[p.header.mean_offset], mean, 16);
  std::vector<uint16_t> dst(4);
  ASSERT_EQ(Remap(p, &dst, CACHALOT_KV_INT8), CACHALOT_KV_OK) << cachalot_kv_last_error();
  // Sums with the signs ++++, +-+-, ++--, +--+, a quarter each: 4, -8, 2, 6.
  const float want[] = {4.5f, -7, 4, 9};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(BF16ToF32(dst[static_cast<size_t>(i)]), want[i]);
}

// Spoils a sealed header in one field and seals it again, as one with bad intentions would.
template <typename Fn>
int Spoilt(Fn&& spoil, bool seal = true) {
  TestRng rng(5);
  Packed p = Random(&rng, {.qtype = CACHALOT_KV_INT6, .packing = CACHALOT_KV_PACK_UNITS, .scale = CACHALOT_KV_SCALE_F32, .group = 32, .dim = 64});
  spoil(&p.header);
  if (seal) cachalot_kv_header_seal(&p.header);
  std::memcpy(p.bytes.data(), &p.header, sizeof(p.header));
  std::vector<uint16_t> dst(2 * 3 * 5 * 64, 0xffff);
  // The exact size of what there is: what is read beyond it is an error of the sanitizer's.
  const int status = cachalot_kv_remap(p.bytes.data(), p.bytes.size(), nullptr, dst.data(), dst.size() * 2, 2, 3, 5, 64, CACHALOT_KV_INT6,
                                       CACHALOT_KV_CPU, nullptr);
  if (status != CACHALOT_KV_OK) {
    for (const uint16_t bits : dst) EXPECT_EQ(bits, 0xffff);
    EXPECT_STRNE(cachalot_kv_last_error(), "");
  }
  return status;
}

TEST(FlashInferHeader, HostileHeadersAreRefused) {
  using H = cachalot_kv_header;
  EXPECT_EQ(Spoilt([](H*) {}), CACHALOT_KV_OK);
  EXPECT_EQ(Spoilt([](H* h) { h->scale = 2; }, false), CACHALOT_KV_BAD_HEADER);  // the checksum
  EXPECT_EQ(Spoilt([](H* h) { h->magic[7] = '2'; }), CACHALOT_KV_BAD_HEADER);
  EXPECT_EQ(Spoilt([](H* h) { h->version = 2; }), CACHALOT_KV_BAD_VERSION);
  EXPECT_EQ(Spoilt([](H* h) { h->header_bytes = 255; }), CACHALOT_KV_BAD_VERSION);
  EXPECT_EQ(Spoilt([](H* h) { h->qtype = 0; }), CACHALOT_KV_BAD_TYPE);
  EXPECT_EQ(Spoilt([](H* h) { h->qtype = 7; }), CACHALOT_KV_BAD_TYPE);
  EXPECT_EQ(Spoilt([](H* h) { h->qtype = CACHALOT_KV_INT4; }), CACHALOT_KV_BAD_TYPE);  // not the one asked for
  EXPECT_EQ(Spoilt([](H* h) { h->packing = 2; }), CACHALOT_KV_BAD_TYPE);
  EXPECT_EQ(Spoilt([](H* h) { h->scale_type = 5; }), CACHALOT_KV_BAD_TYPE);
  EXPECT_EQ(Spoilt([](H* h) { h->group = 8; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->group = 0xffffffe0u; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->head_dim = 0; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->head_dim = 1025; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->head_dim = 32; }), CACHALOT_KV_BAD_SHAPE);  // not that of the call
  EXPECT_EQ(Spoilt([](H* h) { h->kv_heads = 0; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->batch = 0x80000000u; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->seq_len = 6; }), CACHALOT_KV_OUT_OF_BOUNDS);
  EXPECT_EQ(Spoilt([](H* h) { h->rotation = 0; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->rotation = 48; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->rotation = 128; }), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(Spoilt([](H* h) { h->scale = std::numeric_limits<float>::infinity(); }), CACHALOT_KV_BAD_HEADER);
  EXPECT_EQ(Spoilt([](H* h) { h->zero_point = std::numeric_limits<float>::quiet_NaN(); }), CACHALOT_KV_BAD_HEADER);
  EXPECT_EQ(Spoilt([](H* h) { h->reserved[3] = 1; }), CACHALOT_KV_BAD_HEADER);
  EXPECT_EQ(Spoilt([](H* h) { h->total_bytes += 1; }), CACHALOT_KV_OUT_OF_BOUNDS);
  EXPECT_EQ(Spoilt([](H* h) { h->total_bytes = 0; }), CACHALOT_KV_OUT_OF_BOUNDS);
  EXPECT_EQ(Spoilt([](H* h) { h->total_bytes = UINT64_MAX; }), CACHALOT_KV_OUT_OF_BOUNDS);
  for (cachalot_kv_plane H::*plane : {&H::codes, &H::high, &H::scales}) {
    EXPECT_EQ(Spoilt([&](H* h) { (h->*plane).offset = 0; }), CACHALOT_KV_OUT_OF_BOUNDS);
    EXPECT_EQ(Spoilt([&](H* h) { (h->*plane).offset = UINT64_MAX - 7; }), CACHALOT_KV_OUT_OF_BOUNDS);
    EXPECT_EQ(Spoilt([&](H* h) { (h->*plane).offset = h->total_bytes; }), CACHALOT_KV_OUT_OF_BOUNDS);
    EXPECT_EQ(Spoilt([&](H* h) { (h->*plane).token_stride = uint64_t{1} << 62; }), CACHALOT_KV_OUT_OF_BOUNDS);  // times 4: 0 in 64 bits
    EXPECT_EQ(Spoilt([&](H* h) { (h->*plane).head_stride = uint64_t{1} << 63; }), CACHALOT_KV_OUT_OF_BOUNDS);
    EXPECT_EQ(Spoilt([&](H* h) { (h->*plane).batch_stride = UINT64_MAX; }), CACHALOT_KV_OUT_OF_BOUNDS);
  }
  EXPECT_EQ(Spoilt([](H* h) { h->scales.offset += 2; h->scales.token_stride = 8; h->scales.batch_stride = 0; }), CACHALOT_KV_MISALIGNED);
  EXPECT_EQ(Spoilt([](H* h) { h->mean_offset = h->total_bytes - 8; }), CACHALOT_KV_OUT_OF_BOUNDS);
  EXPECT_EQ(Spoilt([](H* h) { h->mean_offset = 258; h->total_bytes -= 0; }), CACHALOT_KV_MISALIGNED);
}

TEST(FlashInferHeader, AnyBitFlippedIsNoticed) {
  TestRng rng(6);
  Packed p = Random(&rng, {});
  std::vector<uint16_t> dst(2 * 3 * 5 * 16);
  for (size_t bit = 0; bit < sizeof(p.header) * 8; ++bit) {
    p.bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_NE(Remap(p, &dst, CACHALOT_KV_INT8), CACHALOT_KV_OK) << bit;
    p.bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  EXPECT_EQ(Remap(p, &dst, CACHALOT_KV_INT8), CACHALOT_KV_OK);
}

TEST(FlashInferHeader, RandomSealedHeadersStayWithinTheMemory) {
  TestRng rng(7);
  const Packed p = Random(&rng, {.qtype = CACHALOT_KV_INT6, .packing = CACHALOT_KV_PACK_UNITS, .scale = CACHALOT_KV_SCALE_BF16, .group = 32, .batch = 2, .heads = 2, .seq = 4, .dim = 64});
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    Packed spoilt = p;
    auto* words = reinterpret_cast<uint32_t*>(&spoilt.header);
    for (int64_t n = rng.Int(1, 3); n > 0; --n) {
      const uint32_t values[] = {0, 1, 2, 3, 8, 32, 64, 256, 0x7fffffff, 0xffffffff, static_cast<uint32_t>(rng.Int(0, 4096))};
      words[rng.Int(4, 61)] = values[rng.Int(0, 10)];
    }
    cachalot_kv_header_seal(&spoilt.header);
    const cachalot_kv_header& h = spoilt.header;
    std::memcpy(spoilt.bytes.data(), &h, sizeof(h));
    std::vector<uint16_t> dst(2 * 2 * 4 * 64);
    const int status = cachalot_kv_remap(spoilt.bytes.data(), spoilt.bytes.size(), nullptr, dst.data(), dst.size() * 2, static_cast<int32_t>(h.batch),
                                         static_cast<int32_t>(h.kv_heads), static_cast<int32_t>(h.seq_len), static_cast<int32_t>(h.head_dim),
                                         static_cast<int32_t>(h.qtype), CACHALOT_KV_CPU, nullptr);
    accepted += status == CACHALOT_KV_OK;
  }
  EXPECT_GT(accepted, 20);
}

TEST(FlashInferHeader, ArgumentsAreChecked) {
  TestRng rng(8);
  const Packed p = Random(&rng, {});
  std::vector<uint16_t> dst(2 * 3 * 5 * 16);
  const auto remap = [&](const void* src, uint64_t src_bytes, void* to, uint64_t to_bytes, int32_t batch, int32_t qtype, uint32_t device) {
    return cachalot_kv_remap(src, src_bytes, nullptr, to, to_bytes, batch, 3, 5, 16, qtype, device, nullptr);
  };
  const uint64_t bytes = p.bytes.size(), to_bytes = dst.size() * 2;
  EXPECT_EQ(remap(p.bytes.data(), bytes, dst.data(), to_bytes, 2, CACHALOT_KV_INT8, CACHALOT_KV_CPU), CACHALOT_KV_OK);
  EXPECT_EQ(remap(nullptr, bytes, dst.data(), to_bytes, 2, CACHALOT_KV_INT8, CACHALOT_KV_CPU), CACHALOT_KV_NULL_POINTER);
  EXPECT_EQ(remap(p.bytes.data(), bytes, nullptr, to_bytes, 2, CACHALOT_KV_INT8, CACHALOT_KV_CPU), CACHALOT_KV_NULL_POINTER);
  EXPECT_EQ(remap(p.bytes.data(), 100, dst.data(), to_bytes, 2, CACHALOT_KV_INT8, CACHALOT_KV_CPU), CACHALOT_KV_OUT_OF_BOUNDS);
  EXPECT_EQ(remap(p.bytes.data(), bytes - 1, dst.data(), to_bytes, 2, CACHALOT_KV_INT8, CACHALOT_KV_CPU), CACHALOT_KV_OUT_OF_BOUNDS);
  EXPECT_EQ(remap(p.bytes.data(), bytes, dst.data(), to_bytes - 1, 2, CACHALOT_KV_INT8, CACHALOT_KV_CPU), CACHALOT_KV_OUT_OF_BOUNDS);
  EXPECT_EQ(remap(p.bytes.data(), bytes, dst.data(), to_bytes, -2, CACHALOT_KV_INT8, CACHALOT_KV_CPU), CACHALOT_KV_BAD_SHAPE);
  EXPECT_EQ(remap(p.bytes.data(), bytes, dst.data(), to_bytes, 2, CACHALOT_KV_INT8 | 0x300, CACHALOT_KV_CPU), CACHALOT_KV_BAD_TYPE);
  EXPECT_EQ(remap(p.bytes.data(), bytes, dst.data(), to_bytes, 2, -1, CACHALOT_KV_CPU), CACHALOT_KV_BAD_TYPE);
  EXPECT_EQ(remap(p.bytes.data(), bytes, dst.data(), to_bytes, 2, CACHALOT_KV_INT8, 2), CACHALOT_KV_BAD_TYPE);
  EXPECT_EQ(remap(p.bytes.data(), bytes, dst.data(), to_bytes, 2, CACHALOT_KV_INT8, CACHALOT_KV_CUDA), CACHALOT_KV_NULL_POINTER);
  EXPECT_EQ(cachalot_kv_header_init(nullptr, 1, 0, 0, 0, 1, 1, 1, 1), CACHALOT_KV_NULL_POINTER);
  cachalot_kv_header huge;
  EXPECT_EQ(cachalot_kv_header_init(&huge, CACHALOT_KV_BF16, 0, 0, 0, 0x7fffffff, 65536, 0x7fffffff, 1024), CACHALOT_KV_BAD_SHAPE);
}

TEST(FlashInferLibrary, ExportsTheHeadersFunctionsAndNothingElse) {
  const std::string command = std::string("nm -D --defined-only ") + CACHALOT_FLASHINFER_LIBRARY;
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::set<std::string> names;
  char line[512];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    std::string name = line;
    name = name.substr(name.rfind(' ') + 1);
    names.insert(name.substr(0, name.find_last_not_of('\n') + 1));
  }
  ASSERT_EQ(pclose(pipe), 0);
  const std::set<std::string> want = {"deepseek_kv_remap",       "cachalot_kv_abi_version",     "cachalot_kv_check_version", "cachalot_kv_error_text",
                                      "cachalot_kv_last_error",  "cachalot_kv_header_init",     "cachalot_kv_header_seal",   "cachalot_kv_header_check",
                                      "cachalot_kv_remap",       "cachalot_kv_page_view",       "cachalot_kv_page_materialize",
                                      "cachalot_kv_block_bytes", "cachalot_kv_page_counts"};
  EXPECT_EQ(names, want);
}

}  // namespace
}  // namespace cachalot
