#include "capi/flashinfer/kv_header.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "quant/kv_code.h"
#include "quant/kv_rotate.h"

namespace cachalot {
namespace {

static_assert(std::endian::native == std::endian::little);
using Wide = unsigned __int128;

uint64_t Checksum(const cachalot_kv_header& header) {
  uint8_t bytes[sizeof(header)];
  std::memcpy(bytes, &header, sizeof(header));
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < offsetof(cachalot_kv_header, checksum); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

std::optional<KvRemapCode> CodeOf(uint32_t qtype, uint32_t packing) {
  const bool units = packing == CACHALOT_KV_PACK_UNITS;
  switch (qtype) {
    case CACHALOT_KV_INT4:
      return units ? KvRemapCode::kInt4Unit : KvRemapCode::kInt4;
    case CACHALOT_KV_INT6:
      return units ? KvRemapCode::kInt6Unit : KvRemapCode::kInt6;
    case CACHALOT_KV_INT8:
      return KvRemapCode::kInt8;
    case CACHALOT_KV_FP8:
      return KvRemapCode::kE4M3;
    case CACHALOT_KV_F16:
      return KvRemapCode::kF16;
    case CACHALOT_KV_BF16:
      return KvRemapCode::kBF16;
    default:
      return std::nullopt;
  }
}

std::optional<KvRemapScale> ScaleOf(uint32_t scale_type) {
  switch (scale_type) {
    case CACHALOT_KV_SCALE_ONE:
      return KvRemapScale::kOne;
    case CACHALOT_KV_SCALE_F32:
      return KvRemapScale::kF32;
    case CACHALOT_KV_SCALE_F16:
      return KvRemapScale::kF16;
    case CACHALOT_KV_SCALE_BF16:
      return KvRemapScale::kBF16;
    case CACHALOT_KV_SCALE_F32_ZERO:
      return KvRemapScale::kF32Zero;
    default:
      return std::nullopt;
  }
}

bool HasZero(const cachalot_kv_header& h) {
  return (h.qtype == CACHALOT_KV_INT4 || h.qtype == CACHALOT_KV_INT6) && h.scale_type != CACHALOT_KV_SCALE_F32_ZERO;
}

int64_t NumGroups(uint32_t group, uint32_t dim) { return group == 0 ? 1 : (int64_t{dim} + group - 1) / group; }

// Of each plane of a header: its name, and the bytes of a row (0: there is none).
struct PlaneRow {
  const char* name;
  const cachalot_kv_plane& plane;
  int64_t row;
  int64_t alignment;
};

KvOutcome CheckPlane(const cachalot_kv_header& h, const PlaneRow& p, uint64_t least_offset) {
  if (p.row == 0 || h.batch == 0 || h.seq_len == 0) return {};
  const Wide end = Wide{p.plane.offset} + Wide{h.batch - 1} * p.plane.batch_stride + Wide{h.kv_heads - 1} * p.plane.head_stride +
                   Wide{h.seq_len - 1} * p.plane.token_stride + static_cast<uint64_t>(p.row);
  if (p.plane.offset < least_offset || end > h.total_bytes) {
    return KvFail(CACHALOT_KV_OUT_OF_BOUNDS,
                  "header, {}: offset {}, strides {}, {}, {} and rows of {} bytes lead out of [{}, {}) for {} x {} x {} rows", p.name,
                  p.plane.offset, p.plane.batch_stride, p.plane.head_stride, p.plane.token_stride, p.row, least_offset, h.total_bytes,
                  h.batch, h.kv_heads, h.seq_len);
  }
  const uint64_t all = p.plane.offset | p.plane.batch_stride | p.plane.head_stride | p.plane.token_stride;
  if (all % static_cast<uint64_t>(p.alignment) != 0) {
    return KvFail(CACHALOT_KV_MISALIGNED, "header, {}: offset and strides must be multiples of {}", p.name, p.alignment);
  }
  return {};
}

KvOutcome CheckFields(const cachalot_kv_header& h) {
  const auto code = CodeOf(h.qtype, h.packing);
  if (!code) return KvFail(CACHALOT_KV_BAD_TYPE, "header: qtype {}", h.qtype);
  if (h.packing != CACHALOT_KV_PACK_LINEAR && h.packing != CACHALOT_KV_PACK_UNITS) {
    return KvFail(CACHALOT_KV_BAD_TYPE, "header: packing {}", h.packing);
  }
  if (!ScaleOf(h.scale_type)) return KvFail(CACHALOT_KV_BAD_TYPE, "header: scale_type {}", h.scale_type);
  if (h.head_dim < 1 || h.head_dim > kMaxRemapDim || h.kv_heads < 1 || h.kv_heads > kMaxKvHeads || h.batch > INT32_MAX ||
      h.seq_len > INT32_MAX) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "header: [{}, {}, {}, {}]: at most 2^31 - 1 sequences and tokens, 1 to {} heads, 1 to {} values",
                  h.batch, h.kv_heads, h.seq_len, h.head_dim, kMaxKvHeads, kMaxRemapDim);
  }
  const uint32_t step = h.packing == CACHALOT_KV_PACK_UNITS ? kKvUnit : kRemapChunk;
  if (h.group % step != 0 || h.group > INT32_MAX) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "header: groups of {}: multiples of {} they must be, or 0", h.group, step);
  }
  if (h.rotation < 1 || h.rotation > static_cast<uint32_t>(kMaxKvRotation) || !std::has_single_bit(h.rotation) || h.head_dim % h.rotation != 0) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "header: a rotation of {} values of {}", h.rotation, h.head_dim);
  }
  if (!std::isfinite(h.scale) || !std::isfinite(h.zero_point) || (!HasZero(h) && h.zero_point != 0)) {
    return KvFail(CACHALOT_KV_BAD_HEADER, "header: scale {}, zero point {} with qtype {}, scale_type {}", h.scale, h.zero_point, h.qtype,
                  h.scale_type);
  }
  return {};
}

}  // namespace

void SealKvHeader(cachalot_kv_header* header) { header->checksum = Checksum(*header); }

KvOutcome InitKvHeader(cachalot_kv_header* header, int qtype, int packing, int scale_type, uint32_t group, uint32_t batch,
                       uint32_t kv_heads, uint32_t seq_len, uint32_t head_dim) {
  cachalot_kv_header h = {};
  std::memcpy(h.magic, CACHALOT_KV_MAGIC, sizeof(h.magic));
  h.version = CACHALOT_KV_ABI_VERSION;
  h.header_bytes = sizeof(h);
  h.qtype = static_cast<uint32_t>(qtype);
  h.packing = static_cast<uint32_t>(packing);
  h.scale_type = static_cast<uint32_t>(scale_type);
  h.group = group;
  h.batch = batch;
  h.kv_heads = kv_heads;
  h.seq_len = seq_len;
  h.head_dim = head_dim;
  h.rotation = 1;
  h.scale = 1;
  if (HasZero(h)) h.zero_point = qtype == CACHALOT_KV_INT4 ? 8.0f : 32.0f;
  RETURN_IF_KV_FAILED(CheckFields(h));
  const KvRemapCode code = *CodeOf(h.qtype, h.packing);
  const auto dim = static_cast<int32_t>(head_dim);
  Wide at = sizeof(h);
  const auto lay = [&](cachalot_kv_plane* plane, int64_t row) {
    if (row == 0) return;
    plane->offset = static_cast<uint64_t>(at);
    plane->token_stride = static_cast<uint64_t>(row);
    plane->head_stride = plane->token_stride * seq_len;  // below 2^31 · 2^12
    plane->batch_stride = plane->head_stride * kv_heads;  // below 2^59
    at = (at + Wide{plane->batch_stride} * batch + 15) / 16 * 16;
  };
  lay(&h.codes, KvRemapMainBytes(code, dim));
  if (at < Wide{1} << 62) lay(&h.high, KvRemapHighBytes(code, dim));
  if (at < Wide{1} << 62) lay(&h.scales, KvRemapScaleSize(*ScaleOf(h.scale_type)) * NumGroups(group, head_dim));
  if (at >= Wide{1} << 62) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "[{}, {}, {}, {}] are more than 2^62 bytes", batch, kv_heads, seq_len, head_dim);
  }
  h.total_bytes = static_cast<uint64_t>(at);
  SealKvHeader(&h);
  *header = h;
  return {};
}

KvOutcome CheckKvHeader(const cachalot_kv_header& h, uint64_t bytes, bool detached) {
  const uint64_t least = detached ? 0 : sizeof(h);
  if (bytes < least) return KvFail(CACHALOT_KV_OUT_OF_BOUNDS, "{} bytes: a header has {}", bytes, sizeof(h));
  if (std::memcmp(h.magic, CACHALOT_KV_MAGIC, sizeof(h.magic)) != 0) return KvFail(CACHALOT_KV_BAD_HEADER, "header: not the magic bytes");
  if (h.version != CACHALOT_KV_ABI_VERSION || h.header_bytes != sizeof(h)) {
    return KvFail(CACHALOT_KV_BAD_VERSION, "header: version {} of {} bytes, not {} of {}", h.version, h.header_bytes,
                  CACHALOT_KV_ABI_VERSION, sizeof(h));
  }
  if (h.checksum != Checksum(h)) return KvFail(CACHALOT_KV_BAD_HEADER, "header: checksum {:#x}, not {:#x}", h.checksum, Checksum(h));
  uint64_t rest = h.reserved0;
  for (const uint64_t word : h.reserved) rest |= word;
  if (rest != 0) return KvFail(CACHALOT_KV_BAD_HEADER, "header: a reserved field is not 0");
  RETURN_IF_KV_FAILED(CheckFields(h));
  if (h.total_bytes < least || h.total_bytes > bytes) {
    return KvFail(CACHALOT_KV_OUT_OF_BOUNDS, "header: total_bytes {}, of {} that there are", h.total_bytes, bytes);
  }
  const KvRemapCode code = *CodeOf(h.qtype, h.packing);
  const auto dim = static_cast<int32_t>(h.head_dim);
  const int64_t scale_size = KvRemapScaleSize(*ScaleOf(h.scale_type));
  const int64_t code_alignment = code == KvRemapCode::kF16 || code == KvRemapCode::kBF16 ? 2 : 1;
  RETURN_IF_KV_FAILED(CheckPlane(h, {"codes", h.codes, KvRemapMainBytes(code, dim), code_alignment}, least));
  RETURN_IF_KV_FAILED(CheckPlane(h, {"high", h.high, KvRemapHighBytes(code, dim), 1}, least));
  RETURN_IF_KV_FAILED(CheckPlane(h, {"scales", h.scales, scale_size * NumGroups(h.group, h.head_dim), scale_size == 0 ? 1 : scale_size}, least));
  if (h.mean_offset != 0) {
    const cachalot_kv_plane mean = {h.mean_offset, 0, h.mean_head_stride, 0};
    RETURN_IF_KV_FAILED(CheckPlane(h, {"mean", mean, int64_t{dim} * 4, 4}, least));
  }
  return {};
}

KvOutcome TensorOf(const cachalot_kv_header& h, const void* data, KvRemapTensor* tensor) {
  const auto* base = static_cast<const std::byte*>(data);
  const int64_t scale_size = KvRemapScaleSize(*ScaleOf(h.scale_type));
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t alignment = h.mean_offset != 0 || scale_size == 4 ? 4 : scale_size == 2 || h.qtype >= CACHALOT_KV_F16 ? 2 : 1;
  if (address % alignment != 0) return KvFail(CACHALOT_KV_MISALIGNED, "the memory begins at {:#x}, no multiple of {}", address, alignment);
  const auto plane = [&](const cachalot_kv_plane& p) {
    return KvRemapPlane{base + p.offset, static_cast<int64_t>(p.batch_stride), static_cast<int64_t>(p.head_stride),
                        static_cast<int64_t>(p.token_stride)};
  };
  *tensor = {};
  tensor->code = *CodeOf(h.qtype, h.packing);
  tensor->scale_type = *ScaleOf(h.scale_type);
  tensor->dim = static_cast<int32_t>(h.head_dim);
  tensor->group = static_cast<int32_t>(h.group);
  tensor->rotation = static_cast<int32_t>(h.rotation);
  tensor->scale = h.scale;
  tensor->zero = h.zero_point;
  tensor->main = plane(h.codes);
  if (tensor->code == KvRemapCode::kInt6Unit) tensor->high = plane(h.high);
  if (scale_size > 0) tensor->scales = plane(h.scales);
  if (h.mean_offset != 0) {
    tensor->mean = reinterpret_cast<const float*>(base + h.mean_offset);
    tensor->mean_head = static_cast<int64_t>(h.mean_head_stride / sizeof(float));
  }
  return {};
}

KvOutcome ParseQtype(int qtype, uint32_t* stored, bool* to_bf16) {
  const int target = qtype & (CACHALOT_KV_TO_F16 | CACHALOT_KV_TO_BF16);
  const int code = qtype & ~target;
  if (code < CACHALOT_KV_INT4 || code > CACHALOT_KV_BF16 || target == (CACHALOT_KV_TO_F16 | CACHALOT_KV_TO_BF16)) {
    return KvFail(CACHALOT_KV_BAD_TYPE, "qtype {:#x}", static_cast<unsigned>(qtype));
  }
  *stored = static_cast<uint32_t>(code);
  *to_bf16 = target == 0 ? code == CACHALOT_KV_INT8 || code == CACHALOT_KV_BF16 : target == CACHALOT_KV_TO_BF16;
  return {};
}

}  // namespace cachalot
