#include "capi/flashinfer/kv_pages.h"

#include <cstring>
#include <optional>

#include "capi/flashinfer/kv_header.h"
#include "quant/kv_format.h"

namespace cachalot {
namespace {

using Wide = unsigned __int128;
constexpr uint32_t kMostTokens = 1 << 20;  // of a block or page
constexpr uint64_t kValueBytes = 2;

bool Zeros(const uint64_t (&words)[4]) { return (words[0] | words[1] | words[2] | words[3]) == 0; }

KvOutcome CheckStruct(const char* name, uint32_t struct_size, size_t size, uint32_t version, const uint64_t (&reserved)[4]) {
  if (struct_size != size || version != CACHALOT_KV_ABI_VERSION) {
    return KvFail(CACHALOT_KV_BAD_VERSION, "{}: struct_size {}, abi_version {}, not {} and {}", name, struct_size, version, size,
                  CACHALOT_KV_ABI_VERSION);
  }
  if (!Zeros(reserved)) return KvFail(CACHALOT_KV_BAD_VERSION, "{}: a reserved field is not 0", name);
  return {};
}

KvOutcome CheckSource(const cachalot_kv_source& s) {
  RETURN_IF_KV_FAILED(CheckStruct("cachalot_kv_source", s.struct_size, sizeof(s), s.abi_version, s.reserved));
  if (s.kind > CACHALOT_KV_TENSORS) return KvFail(CACHALOT_KV_BAD_TYPE, "source: kind {}", s.kind);
  if (s.device > CACHALOT_KV_CUDA) return KvFail(CACHALOT_KV_BAD_TYPE, "source: device {}", s.device);
  return {};
}

// --- blocks ---

const char* TypeName(uint32_t type) {
  switch (type) {
    case CACHALOT_KV_TYPE_K8V8:
      return "k8v8";
    case CACHALOT_KV_TYPE_FP8:
      return "fp8";
    case CACHALOT_KV_TYPE_K6V8:
      return "k6v8";
    case CACHALOT_KV_TYPE_K6V4:
      return "k6v4";
    case CACHALOT_KV_TYPE_K4V4:
      return "k4v4";
    default:
      return nullptr;
  }
}

bool IsPlain(uint32_t type) { return type == CACHALOT_KV_TYPE_F16 || type == CACHALOT_KV_TYPE_BF16; }

struct Blocks {
  std::optional<KvPlanes> planes;  // of a quantised cache
  uint64_t block_bytes = 0;
  uint64_t stride = 0;
  bool mla = false;
};

KvOutcome DescribeBlocks(const cachalot_kv_source& s, Blocks* blocks) {
  if (!IsPlain(s.type) && TypeName(s.type) == nullptr) return KvFail(CACHALOT_KV_BAD_TYPE, "source: type {}", s.type);
  blocks->mla = s.rope_dim > 0;
  if (s.block_tokens < 1 || s.block_tokens > kMostTokens || s.kv_heads < 1 || s.kv_heads > kMaxKvHeads || s.head_dim < 1 ||
      s.rope_dim > kMaxRemapDim || s.head_dim > kMaxRemapDim - s.rope_dim || s.num_blocks > INT32_MAX || (blocks->mla && s.kv_heads != 1)) {
    return KvFail(CACHALOT_KV_BAD_SHAPE,
                  "source: {} blocks of {} tokens, {} heads, {} + {} values: 1 to {} tokens, 1 to {} heads (one with a rotary part), 1 to {} values",
                  s.num_blocks, s.block_tokens, s.kv_heads, s.head_dim, s.rope_dim, kMostTokens, kMaxKvHeads, kMaxRemapDim);
  }
  const Wide values = Wide{s.kv_heads} * s.block_tokens * (blocks->mla ? s.head_dim + s.rope_dim : 2 * s.head_dim);
  Wide bytes = values * kValueBytes;
  if (!IsPlain(s.type)) {
    KvScheme scheme = FindKvFormat(TypeName(s.type))->scheme;
    if (s.rotate != CACHALOT_KV_DEFAULT) {
      if (s.rotate != 0 && s.rotate != 1) return KvFail(CACHALOT_KV_BAD_TYPE, "source: rotate {}", s.rotate);
      scheme.rotate = s.rotate == 1;
    }
    if (s.key_group != CACHALOT_KV_DEFAULT) {
      if (s.key_group != 0 && s.key_group != 32 && s.key_group != 64 && s.key_group != 128) {
        return KvFail(CACHALOT_KV_BAD_TYPE, "source: key_group {}", s.key_group);
      }
      scheme.key_group = scheme.latent_group = s.key_group;
    }
    blocks->planes = PlanKvPlanes(scheme,
                                  {.k_dim = static_cast<int32_t>(s.head_dim + s.rope_dim), .v_dim = static_cast<int32_t>(s.head_dim),
                                   .exact_dim = static_cast<int32_t>(s.rope_dim), .value_in_key = blocks->mla},
                                  static_cast<int32_t>(s.block_tokens));
    bytes = Wide{static_cast<uint64_t>(blocks->planes->head_bytes)} * s.kv_heads;
  }
  blocks->block_bytes = static_cast<uint64_t>(bytes);  // below 2^16 · 2^20 · 2^13
  blocks->stride = s.block_stride == 0 ? blocks->block_bytes : s.block_stride;
  return {};
}

KvOutcome CheckBlockMemory(const cachalot_kv_source& s, const Blocks& blocks) {
  if (s.num_blocks > 0 && s.blocks == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "source: blocks is null");
  const Wide end = s.num_blocks == 0 ? 0 : Wide{s.num_blocks - 1} * blocks.stride + blocks.block_bytes;
  if (blocks.stride < blocks.block_bytes || end > s.blocks_bytes) {
    return KvFail(CACHALOT_KV_OUT_OF_BOUNDS, "source: {} blocks of {} bytes, {} apart, in {} bytes", s.num_blocks, blocks.block_bytes,
                  blocks.stride, s.blocks_bytes);
  }
  const uint64_t alignment = blocks.planes ? 16 : 2;
  if ((reinterpret_cast<uintptr_t>(s.blocks) | blocks.stride) % alignment != 0) {
    return KvFail(CACHALOT_KV_MISALIGNED, "source: blocks at {}, {} bytes apart: multiples of {} they must be", s.blocks, blocks.stride,
                  alignment);
  }
  if (reinterpret_cast<uintptr_t>(s.key_mean) % 4 != 0) return KvFail(CACHALOT_KV_MISALIGNED, "source: key_mean at {}", static_cast<const void*>(s.key_mean));
  return {};
}

KvRemapTensor RowsOf(const KvRows& rows, const std::byte* data, int64_t block_stride, int64_t head_stride) {
  KvRemapTensor t;
  const auto plane = [&](int64_t at, int32_t row) { return KvRemapPlane{data + at, block_stride, head_stride, row}; };
  t.dim = rows.coding.dim;
  t.group = rows.coding.group;
  t.scale_type = KvRemapScale::kBF16;
  t.main = plane(rows.main, rows.main_row);
  t.scales = plane(rows.scales, rows.scale_row);
  switch (rows.coding.code) {
    case KvCode::kInt4:
      t.code = KvRemapCode::kInt4Unit;
      t.zero = 7.5f;
      break;
    case KvCode::kInt6:
      t.code = KvRemapCode::kInt6Unit;
      t.zero = 32.0f;
      t.high = plane(rows.high, rows.high_row);
      break;
    case KvCode::kInt8:
      t.code = KvRemapCode::kInt8;
      break;
    default:
      t.code = KvRemapCode::kE4M3;
  }
  return t;
}

KvRemapTensor PlainRows(uint32_t type, const std::byte* data, int64_t dim, int64_t block_stride, int64_t head_stride, int64_t token_stride) {
  KvRemapTensor t;
  t.code = type == CACHALOT_KV_TYPE_F16 ? KvRemapCode::kF16 : KvRemapCode::kBF16;
  t.dim = static_cast<int32_t>(dim);
  t.main = {data, block_stride, head_stride, token_stride};
  return t;
}

void BlockTensors(const cachalot_kv_source& s, const Blocks& blocks, KvRemapTensor (&out)[kMaxRemapTensors]) {
  const auto* data = static_cast<const std::byte*>(s.blocks);
  const auto stride = static_cast<int64_t>(blocks.stride);
  const int64_t tokens = s.block_tokens, dim = s.head_dim, rope = s.rope_dim, size = kValueBytes;
  if (blocks.planes) {
    const KvPlanes& planes = *blocks.planes;
    out[0] = RowsOf(planes.key, data, stride, planes.head_bytes);
    out[0].rotation = planes.rotation;
    out[0].mean = s.key_mean;
    out[0].mean_head = dim;
    out[1] = blocks.mla ? PlainRows(CACHALOT_KV_TYPE_BF16, data + planes.exact, rope, stride, planes.head_bytes, rope * size)
                        : RowsOf(planes.value, data, stride, planes.head_bytes);
    return;
  }
  const int64_t row = (dim + rope) * size;
  const std::byte* values = blocks.mla ? data + dim * size : data + s.kv_heads * tokens * row;
  out[0] = PlainRows(s.type, data, dim, stride, tokens * row, row);
  out[1] = PlainRows(s.type, values, blocks.mla ? rope : dim, stride, tokens * row, row);
}

// --- tensors ---

KvOutcome ReadHeader(const char* name, const void* data, uint64_t bytes, const cachalot_kv_header* copy, uint32_t device,
                     cachalot_kv_header* header) {
  if (data == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "{} is null", name);
  if (copy == nullptr && device == CACHALOT_KV_CUDA) {
    return KvFail(CACHALOT_KV_NULL_POINTER, "{}: a tensor in device memory wants its header in host memory", name);
  }
  if (copy == nullptr && bytes < sizeof(*header)) return KvFail(CACHALOT_KV_OUT_OF_BOUNDS, "{}: {} bytes, a header has {}", name, bytes, sizeof(*header));
  std::memcpy(header, copy == nullptr ? data : copy, sizeof(*header));
  KvOutcome outcome = CheckKvHeader(*header, bytes, copy != nullptr);
  if (!outcome.ok()) outcome.message = fmt::format("{}: {}", name, outcome.message);
  return outcome;
}

struct Tensors {
  cachalot_kv_header keys, values;
};

KvOutcome ReadTensors(const cachalot_kv_source& s, Tensors* tensors) {
  RETURN_IF_KV_FAILED(ReadHeader("keys", s.keys, s.keys_bytes, s.keys_header, s.device, &tensors->keys));
  RETURN_IF_KV_FAILED(ReadHeader("values", s.values, s.values_bytes, s.values_header, s.device, &tensors->values));
  const auto &k = tensors->keys, &v = tensors->values;
  if (k.batch != v.batch || k.kv_heads != v.kv_heads || k.seq_len != v.seq_len) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "keys [{}, {}, {}], but values [{}, {}, {}]", k.batch, k.kv_heads, k.seq_len, v.batch, v.kv_heads,
                  v.seq_len);
  }
  return {};
}

KvOutcome TensorTensors(const cachalot_kv_source& s, const Tensors& tensors, KvRemapTensor (&out)[kMaxRemapTensors]) {
  RETURN_IF_KV_FAILED(TensorOf(tensors.keys, s.keys, &out[0]));
  return TensorOf(tensors.values, s.values, &out[1]);
}

// --- pages ---

struct Strides {
  uint64_t page = 0, token = 0, head = 0;
  bool operator==(const Strides&) const = default;
};

KvOutcome CheckPageShape(const cachalot_kv_pages& p) {
  if (p.layout > CACHALOT_KV_VLLM_HND) return KvFail(CACHALOT_KV_BAD_TYPE, "pages: layout {}", p.layout);
  if (p.dtype != CACHALOT_KV_DTYPE_F16 && p.dtype != CACHALOT_KV_DTYPE_BF16) {
    return KvFail(CACHALOT_KV_BAD_TYPE, "pages: dtype {}: F16 or BF16 is written", p.dtype);
  }
  if (p.page_size < 1 || p.page_size > INT32_MAX || p.num_pages > INT32_MAX) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "pages: {} of {} tokens", p.num_pages, p.page_size);
  }
  return {};
}

bool IsVllm(uint32_t layout) { return layout == CACHALOT_KV_VLLM_NHD || layout == CACHALOT_KV_VLLM_HND; }

Strides DenseStrides(const cachalot_kv_pages& p, uint64_t row) {
  const bool nhd = p.layout == CACHALOT_KV_NHD || p.layout == CACHALOT_KV_VLLM_NHD;
  Strides s;
  s.token = nhd ? row * p.kv_heads : row;
  s.head = nhd ? row : row * p.page_size;
  s.page = row * p.kv_heads * p.page_size;
  return s;
}

KvOutcome CheckExtent(const char* name, const Strides& s, uint64_t dim, const cachalot_kv_pages& p, const void* data, uint64_t bytes) {
  if (p.num_pages == 0) return {};
  if (data == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "pages: {} is null", name);
  if (reinterpret_cast<uintptr_t>(data) % kValueBytes != 0) return KvFail(CACHALOT_KV_MISALIGNED, "pages: {} at {}", name, data);
  if (s.page > UINT32_MAX || s.token > UINT32_MAX || s.head > UINT32_MAX) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "pages: strides of {}: {}, {}, {}; FlashInfer's have 32 bits", name, s.page, s.token, s.head);
  }
  const Wide end = (Wide{p.num_pages - 1} * s.page + Wide{p.page_size - 1} * s.token + Wide{p.kv_heads - 1} * s.head + dim) * kValueBytes;
  if (end > bytes) {
    return KvFail(CACHALOT_KV_OUT_OF_BOUNDS, "pages: {} of {} tokens want {} bytes of {}, {} there are", p.num_pages, p.page_size,
                  end > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(end), name, bytes);
  }
  return {};
}

KvOutcome ToTable(const char* name, const cachalot_kv_table& table, uint32_t num_pages, uint32_t page_tokens, KvRemapTable* out) {
  if (table.batch > INT32_MAX) return KvFail(CACHALOT_KV_BAD_TABLE, "{} table: {} sequences", name, table.batch);
  if (table.indptr == nullptr || table.last_page_len == nullptr || (table.indices == nullptr && table.num_indices > 0)) {
    return KvFail(CACHALOT_KV_NULL_POINTER, "{} table: indptr, indices or last_page_len is null", name);
  }
  for (const void* array : {static_cast<const void*>(table.indptr), static_cast<const void*>(table.indices), static_cast<const void*>(table.last_page_len)}) {
    if (reinterpret_cast<uintptr_t>(array) % 4 != 0) return KvFail(CACHALOT_KV_MISALIGNED, "{} table: an array at {}", name, array);
  }
  *out = {table.indptr, table.indices, table.last_page_len, table.num_indices, num_pages, static_cast<int32_t>(page_tokens)};
  return {};
}

}  // namespace

KvOutcome KvBlockBytes(const cachalot_kv_source& source, uint64_t* bytes) {
  RETURN_IF_KV_FAILED(CheckSource(source));
  if (source.kind != CACHALOT_KV_BLOCKS) return KvFail(CACHALOT_KV_BAD_TYPE, "source: only blocks have a size");
  Blocks blocks;
  RETURN_IF_KV_FAILED(DescribeBlocks(source, &blocks));
  *bytes = blocks.block_bytes;
  return {};
}

KvOutcome PlanMaterialize(const cachalot_kv_source& s, const cachalot_kv_pages& p, KvRemapParams* params) {
  RETURN_IF_KV_FAILED(CheckSource(s));
  RETURN_IF_KV_FAILED(CheckStruct("cachalot_kv_pages", p.struct_size, sizeof(p), p.abi_version, p.reserved));
  RETURN_IF_KV_FAILED(CheckPageShape(p));
  *params = {};
  uint32_t heads = 0;
  const bool own_table = p.table.indptr != nullptr;
  if (s.kind == CACHALOT_KV_BLOCKS) {
    Blocks blocks;
    RETURN_IF_KV_FAILED(DescribeBlocks(s, &blocks));
    RETURN_IF_KV_FAILED(CheckBlockMemory(s, blocks));
    BlockTensors(s, blocks, params->tensors);
    heads = s.kv_heads;
    RETURN_IF_KV_FAILED(ToTable("source", s.table, s.num_blocks, s.block_tokens, &params->from));
    if (!own_table && p.page_size != s.block_tokens) {
      return KvFail(CACHALOT_KV_BAD_TABLE, "pages: of {} tokens without a table of their own, but blocks of {}", p.page_size, s.block_tokens);
    }
    RETURN_IF_KV_FAILED(ToTable("page", own_table ? p.table : s.table, p.num_pages, p.page_size, &params->to));
    params->batch = static_cast<int32_t>(s.table.batch);
    if (own_table && p.table.batch != s.table.batch) {
      return KvFail(CACHALOT_KV_BAD_TABLE, "{} sequences in the pages' table, {} in the source's", p.table.batch, s.table.batch);
    }
  } else {
    Tensors tensors;
    RETURN_IF_KV_FAILED(ReadTensors(s, &tensors));
    RETURN_IF_KV_FAILED(TensorTensors(s, tensors, params->tensors));
    const cachalot_kv_header& k = tensors.keys;
    heads = k.kv_heads;
    params->from.num_pages = k.batch;
    params->from.page_tokens = static_cast<int32_t>(k.seq_len);
    params->batch = static_cast<int32_t>(own_table ? p.table.batch : k.batch);
    if (own_table) {
      RETURN_IF_KV_FAILED(ToTable("page", p.table, p.num_pages, p.page_size, &params->to));
      if (p.table.batch > k.batch) return KvFail(CACHALOT_KV_BAD_TABLE, "{} sequences in the table, {} in the tensors", p.table.batch, k.batch);
    } else if (p.page_size != k.seq_len || p.num_pages < k.batch) {
      return KvFail(CACHALOT_KV_BAD_TABLE, "pages: {} of {} tokens without a table, for {} sequences of {}", p.num_pages, p.page_size, k.batch,
                    k.seq_len);
    } else {
      params->to.num_pages = p.num_pages;
      params->to.page_tokens = static_cast<int32_t>(p.page_size);
    }
  }
  params->num_tensors = 2;
  params->num_heads = static_cast<int32_t>(heads);
  params->to_bf16 = p.dtype == CACHALOT_KV_DTYPE_BF16;
  params->fault = p.fault;
  KvRemapTensor &k = params->tensors[0], &v = params->tensors[1];
  if (p.kv_heads != heads || p.head_dim != static_cast<uint32_t>(k.dim) || p.value_dim != static_cast<uint32_t>(v.dim)) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "pages: {} heads of {} and {} values; the source has {} of {} and {}", p.kv_heads, p.head_dim,
                  p.value_dim, heads, k.dim, v.dim);
  }
  Strides ks = {p.page_stride, p.token_stride, p.head_stride};
  Strides vs = {p.value_page_stride, p.value_token_stride, p.value_head_stride};
  const bool vllm = IsVllm(p.layout), dense = ks == Strides{} && vs == Strides{};
  if (vllm && p.value_dim != p.head_dim) return KvFail(CACHALOT_KV_BAD_SHAPE, "pages: values of {}, keys of {}: vLLM's layout has one size", p.value_dim, p.head_dim);
  if (dense) {
    ks = DenseStrides(p, vllm ? 2 * uint64_t{p.head_dim} : p.head_dim);
    vs = vllm ? ks : DenseStrides(p, p.value_dim);
  }
  auto* keys = static_cast<uint16_t*>(p.keys);
  auto* values = static_cast<uint16_t*>(p.values);
  uint64_t values_bytes = p.values_bytes;
  if (vllm && keys != nullptr) {
    if (values != nullptr && values != keys + p.head_dim) return KvFail(CACHALOT_KV_BAD_SHAPE, "pages: vLLM's values are not behind their keys");
    values = keys + p.head_dim;
    const uint64_t before = uint64_t{p.head_dim} * kValueBytes;
    values_bytes = p.keys_bytes < before ? 0 : p.keys_bytes - before;
  }
  RETURN_IF_KV_FAILED(CheckExtent("keys", ks, p.head_dim, p, keys, p.keys_bytes));
  RETURN_IF_KV_FAILED(CheckExtent("values", vs, p.value_dim, p, values, values_bytes));
  const auto place = [](KvRemapTensor* t, uint16_t* out, const Strides& strides) {
    t->out = out;
    t->out_page = static_cast<int64_t>(strides.page);
    t->out_token = static_cast<int64_t>(strides.token);
    t->out_head = static_cast<int64_t>(strides.head);
  };
  place(&k, keys, ks);
  place(&v, values, vs);
  return {};
}

KvOutcome ViewKvPages(const cachalot_kv_source& s, cachalot_kv_pages* pages) {
  RETURN_IF_KV_FAILED(CheckSource(s));
  RETURN_IF_KV_FAILED(CheckStruct("cachalot_kv_pages", pages->struct_size, sizeof(*pages), pages->abi_version, {}));
  cachalot_kv_pages p = {};
  p.struct_size = sizeof(p);
  p.abi_version = CACHALOT_KV_ABI_VERSION;
  p.layout = CACHALOT_KV_HND;
  p.k_scale = p.v_scale = 1;
  KvRemapTensor tensors[kMaxRemapTensors];
  if (s.kind == CACHALOT_KV_BLOCKS) {
    Blocks blocks;
    RETURN_IF_KV_FAILED(DescribeBlocks(s, &blocks));
    RETURN_IF_KV_FAILED(CheckBlockMemory(s, blocks));
    if (blocks.planes) {
      return KvFail(CACHALOT_KV_NOT_VIEWABLE, "a cache of type {} has scales for each token, which FlashInfer does not read", TypeName(s.type));
    }
    BlockTensors(s, blocks, tensors);
    p.num_pages = s.num_blocks;
    p.page_size = s.block_tokens;
    p.kv_heads = s.kv_heads;
    p.table = s.table;
  } else {
    Tensors both;
    RETURN_IF_KV_FAILED(ReadTensors(s, &both));
    RETURN_IF_KV_FAILED(TensorTensors(s, both, tensors));
    p.num_pages = both.keys.batch;
    p.page_size = both.keys.seq_len;
    p.kv_heads = both.keys.kv_heads;
    p.table.batch = both.keys.batch;
  }
  const KvRemapTensor &k = tensors[0], &v = tensors[1];
  for (const KvRemapTensor* t : {&k, &v}) {
    const bool half = t->code == KvRemapCode::kF16 || t->code == KvRemapCode::kBF16;
    if ((!half && t->code != KvRemapCode::kE4M3) || t->code != k.code || t->scale_type != KvRemapScale::kOne || (half && t->scale != 1) ||
        t->rotation != 1 || t->mean != nullptr) {
      return KvFail(CACHALOT_KV_NOT_VIEWABLE, "viewable are F16, BF16 and E4M3, keys and values alike, with one scale (1 but for E4M3), not rotated, without a mean");
    }
  }
  p.dtype = k.code == KvRemapCode::kF16 ? CACHALOT_KV_DTYPE_F16 : k.code == KvRemapCode::kBF16 ? CACHALOT_KV_DTYPE_BF16 : CACHALOT_KV_DTYPE_E4M3;
  const int64_t size = p.dtype == CACHALOT_KV_DTYPE_E4M3 ? 1 : kValueBytes;
  p.head_dim = static_cast<uint32_t>(k.dim);
  p.value_dim = static_cast<uint32_t>(v.dim);
  const auto place = [&](const KvRemapPlane& plane, void** data, uint64_t* page, uint64_t* token, uint64_t* head) {
    *data = const_cast<std::byte*>(plane.data);
    *page = static_cast<uint64_t>(plane.outer / size);
    *token = static_cast<uint64_t>(plane.token / size);
    *head = static_cast<uint64_t>(plane.head / size);
    return *page <= UINT32_MAX && *token <= UINT32_MAX && *head <= UINT32_MAX;
  };
  if (!place(k.main, &p.keys, &p.page_stride, &p.token_stride, &p.head_stride) ||
      !place(v.main, &p.values, &p.value_page_stride, &p.value_token_stride, &p.value_head_stride)) {
    return KvFail(CACHALOT_KV_NOT_VIEWABLE, "strides of {}, {}, {} values: FlashInfer's have 32 bits", p.page_stride, p.token_stride, p.head_stride);
  }
  const auto* end_k = static_cast<const std::byte*>(s.kind == CACHALOT_KV_BLOCKS ? s.blocks : s.keys) + (s.kind == CACHALOT_KV_BLOCKS ? s.blocks_bytes : s.keys_bytes);
  const auto* end_v = s.kind == CACHALOT_KV_BLOCKS ? end_k : static_cast<const std::byte*>(s.values) + s.values_bytes;
  p.keys_bytes = static_cast<uint64_t>(end_k - k.main.data);
  p.values_bytes = static_cast<uint64_t>(end_v - v.main.data);
  p.equal_strides = p.page_stride == p.value_page_stride && p.token_stride == p.value_token_stride && p.head_stride == p.value_head_stride;
  *pages = p;
  if (k.code == KvRemapCode::kE4M3) {
    pages->k_scale = k.scale;
    pages->v_scale = v.scale;
  }
  return {};
}

}  // namespace cachalot
