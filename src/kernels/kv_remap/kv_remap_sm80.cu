// KvRemap on the GPU: a thread decodes 8 values and writes them as 16 bytes, neighbours write neighbouring ones. A thread
// block works on one page of the destination; a rotation of up to 128 values goes through the shuffles of 16 lanes. The
// operations are those of kv_remap_ref.cc one by one, so the bits are the same.
// Bound: bytes read and written, most of them written.
#include <cuda_fp16.h>

#include "device/cuda/cuda_error.h"
#include "kernels/kv_remap/kv_remap_cuda.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = kRemapChunk;
constexpr int64_t kMostItems = int64_t{1} << 31;  // threads' worth of work of a page: what 32 bits count, with room for a stride

// Of which `valid` are the row's.
template <int N>
struct alignas(16) Bytes {
  uint8_t at[N];
};

template <int N>
__device__ __forceinline__ Bytes<N> Load(const std::byte* data, int valid) {
  Bytes<N> bytes = {};
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (N == 16 && valid == N && address % 16 == 0) {
    *reinterpret_cast<uint4*>(bytes.at) = *reinterpret_cast<const uint4*>(data);
  } else if (N == 8 && valid == N && address % 8 == 0) {
    *reinterpret_cast<uint2*>(bytes.at) = *reinterpret_cast<const uint2*>(data);
  } else if (N == 4 && valid == N && address % 4 == 0) {
    *reinterpret_cast<uint32_t*>(bytes.at) = *reinterpret_cast<const uint32_t*>(data);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < valid) bytes.at[i] = static_cast<uint8_t>(data[i]);
    }
  }
  return bytes;
}

__device__ __forceinline__ float HalfValue(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ float BFloatValue(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

// The bits of E4M3 in F16's places are 2^-8 of the value, subnormal ones included.
__device__ __forceinline__ float E4M3Value(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return __uint_as_float(0x7fc00000u);
  const auto half = static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7);
  return __fmul_rn(HalfValue(half), 256.0f);
}

__device__ __forceinline__ float Number(float x) { return x == x ? x : 0.0f; }

struct Scale {
  float scale, zero;
};

__device__ __forceinline__ Scale ScaleOf(const KvRemapTensor& t, const std::byte* scales, int i) {
  const int64_t g = t.group == 0 ? 0 : i / t.group;
  switch (t.scale_type) {
    case KvRemapScale::kF16:
      return {HalfValue(reinterpret_cast<const uint16_t*>(scales)[g]), t.zero};
    case KvRemapScale::kBF16:
      return {BFloatValue(reinterpret_cast<const uint16_t*>(scales)[g]), t.zero};
    case KvRemapScale::kF32:
      return {reinterpret_cast<const float*>(scales)[g], t.zero};
    case KvRemapScale::kF32Zero: {
      const uint32_t word = reinterpret_cast<const uint32_t*>(scales)[g];
      return {__uint_as_float(word & ~15u), static_cast<float>(word & 15u)};
    }
    default:
      return {t.scale, t.zero};
  }
}

// Values [first, first + 8) of a row, those behind `valid` zeros or what the row's padding says.
template <KvRemapCode kCode>
__device__ __forceinline__ void Decode(const KvRemapTensor& t, const std::byte* main, const std::byte* high, Scale s, int first,
                                       int valid, float (&x)[kChunk]) {
  if constexpr (kCode == KvRemapCode::kF16 || kCode == KvRemapCode::kBF16) {
    const Bytes<16> bytes = Load<16>(main + int64_t{first} * 2, valid * 2);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const auto bits = static_cast<uint16_t>(bytes.at[2 * i] | bytes.at[2 * i + 1] << 8);
      x[i] = __fmul_rn(kCode == KvRemapCode::kF16 ? HalfValue(bits) : BFloatValue(bits), s.scale);
    }
  } else if constexpr (kCode == KvRemapCode::kInt8 || kCode == KvRemapCode::kE4M3) {
    const Bytes<8> bytes = Load<8>(main + first, valid);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      x[i] = __fmul_rn(kCode == KvRemapCode::kE4M3 ? E4M3Value(bytes.at[i]) : static_cast<float>(static_cast<int8_t>(bytes.at[i])), s.scale);
    }
  } else {
    uint32_t code[kChunk];
    if constexpr (kCode == KvRemapCode::kInt4) {
      const Bytes<4> bytes = Load<4>(main + first / 2, (valid + 1) / 2);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) code[i] = bytes.at[i / 2] >> (i % 2 * 4) & 15;
    } else if constexpr (kCode == KvRemapCode::kInt6) {
      const Bytes<6> bytes = Load<6>(main + first / 8 * 6, (valid * 6 + 7) / 8);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const int bit = i * 6;
        code[i] = (bytes.at[bit / 8] >> (bit % 8) | (bit % 8 > 2 ? bytes.at[bit / 8 + 1] << (8 - bit % 8) : 0)) & 63;
      }
    } else {  // a quarter of a unit
      const int unit = first / 32, quarter = first / 8 % 4;
      const Bytes<8> bytes = Load<8>(main + unit * 16 + (quarter & 1) * 8, 8);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) code[i] = bytes.at[i] >> (quarter / 2 * 4) & 15;
      if constexpr (kCode == KvRemapCode::kInt6Unit) {
        const Bytes<8> top = Load<8>(high + unit * 8, 8);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) code[i] |= (top.at[i] >> (quarter * 2) & 3u) << 4;
      }
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = __fmul_rn(__fsub_rn(static_cast<float>(code[i]), s.zero), s.scale);
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = i < valid ? Number(x[i]) : 0.0f;
}

// All lanes of the warp.
__device__ __forceinline__ void Rotate(float (&x)[kChunk], int length) {
#pragma unroll
  for (int half = 1; half < kChunk; half *= 2) {
    if (half >= length) break;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = __fadd_rn(a, b);
      x[i + half] = __fsub_rn(a, b);
    }
  }
  const int lane = threadIdx.x % 32;
  for (int half = kChunk; half < length; half *= 2) {
    const int other = half / kChunk;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float theirs = __shfl_xor_sync(0xffffffffu, x[i], other);
      x[i] = (lane & other) == 0 ? __fadd_rn(x[i], theirs) : __fsub_rn(theirs, x[i]);
    }
  }
  const float inverse = 1.0f / static_cast<float>(length);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = __fmul_rn(x[i], inverse);
}

__device__ __forceinline__ uint16_t Rounded(float x, bool bf16) {
  x = Number(x);
  if (!bf16) return __half_as_ushort(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
  constexpr float kLargest = 0x1.fep127f;
  const uint32_t bits = __float_as_uint(fminf(fmaxf(x, -kLargest), kLargest));
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct Sequence {
  int b;
  int64_t page_idx;  // of its pages
};

// The sequence whose page is named at `slot` of the table; b -1: none.
__device__ Sequence FindSequence(const KvRemapTable& table, int batch, int64_t slot) {
  if (table.indptr == nullptr) return {static_cast<int>(slot), 0};
  int low = 0, high = batch;  // indptr[low] <= slot < indptr[high]
  if (table.indptr[0] > slot || table.indptr[batch] <= slot) return {-1, 0};
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.indptr[middle] <= slot ? low : high) = middle;
  }
  return {low, slot - table.indptr[low]};
}

// -1: the table is not as it must be.
__device__ int64_t Length(const KvRemapTable& table, int b) {
  if (table.indptr == nullptr) return table.page_tokens;
  const int64_t begin = table.indptr[b], end = table.indptr[b + 1];
  if (begin < 0 || end < begin || end > table.num_indices) return -1;
  if (end == begin) return 0;
  const int last = table.last_page[b];
  return last < 1 || last > table.page_tokens ? -1 : (end - begin - 1) * table.page_tokens + last;
}

template <KvRemapCode kCode>
__global__ void __launch_bounds__(kThreads) Kernel(const __grid_constant__ KvRemapParams p, const __grid_constant__ KvRemapTensor t) {
  const int64_t slot = blockIdx.x;
  const auto fail = [&] {
    if (p.fault != nullptr && threadIdx.x == 0) *p.fault = 1;
  };
  // Once a block: its sequence, and whether both tables hold.
  const Sequence seq = FindSequence(p.to, p.batch, slot);
  if (p.to.indptr != nullptr && slot == 0 && p.to.indptr[p.batch] > p.to.num_indices) fail();
  if (seq.b < 0) return;
  const int64_t length = Length(p.to, seq.b), from_length = Length(p.from, seq.b);
  const int64_t page = p.to.indptr == nullptr ? seq.b : p.to.indices[slot];
  if (length < 0 || from_length < 0 || (p.from.indptr == nullptr ? length > from_length : length != from_length) || page < 0 ||
      page >= p.to.num_pages || (p.from.indptr == nullptr && seq.b >= p.from.num_pages) || seq.page_idx * p.to.page_tokens >= length) {
    fail();
    return;
  }
  const int64_t first_token = seq.page_idx * p.to.page_tokens;
  const int64_t tokens = min(int64_t{p.to.page_tokens}, length - first_token);
  const auto chunks = static_cast<uint32_t>((t.dim + kChunk - 1) / kChunk);
  const bool token_major = t.out_token >= t.out_head;
  const auto total = static_cast<uint32_t>(tokens * p.num_heads * chunks);  // CudaKvRemap sees to it that it fits
  const auto heads = static_cast<uint32_t>(p.num_heads), rows_of_head = static_cast<uint32_t>(tokens);
  const bool wide = (reinterpret_cast<uintptr_t>(t.out) % 16 | t.out_page % kChunk | t.out_head % kChunk | t.out_token % kChunk) == 0;
  // Whole warps go round together: the shuffles want all lanes.
  for (uint32_t base = blockIdx.y * kThreads + threadIdx.x / 32 * 32; base < total; base += gridDim.y * kThreads) {
    const uint32_t at = base + threadIdx.x % 32;
    bool valid = at < total;
    const uint32_t row = valid ? at / chunks : 0;
    const int first = static_cast<int>(valid ? at - row * chunks : 0) * kChunk;
    const int64_t token = token_major ? row / heads : row % rows_of_head;
    const int64_t head = token_major ? row % heads : row / rows_of_head;
    int64_t outer = seq.b, from_token = first_token + token;
    if (p.from.indptr != nullptr) {
      outer = p.from.indices[p.from.indptr[seq.b] + from_token / p.from.page_tokens];
      from_token %= p.from.page_tokens;
      if (outer < 0 || outer >= p.from.num_pages) {
        if (p.fault != nullptr) *p.fault = 1;
        valid = false;
      }
    }
    const int count = valid ? min(kChunk, t.dim - first) : 0;
    float x[kChunk] = {};
    if (count > 0) {
      const auto plane = [&](const KvRemapPlane& from) { return from.data + outer * from.outer + head * from.head + from_token * from.token; };
      const Scale scale = ScaleOf(t, plane(t.scales), first);
      Decode<kCode>(t, plane(t.main), plane(t.high), scale, first, count, x);
    }
    if (t.rotation > 1) Rotate(x, t.rotation);
    if (count == 0) continue;
    if (t.mean != nullptr) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (i < count) x[i] = __fadd_rn(x[i], t.mean[head * t.mean_head + first + i]);
      }
    }
    uint16_t* out = t.out + page * t.out_page + head * t.out_head + token * t.out_token + first;
    alignas(16) uint16_t bits[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) bits[i] = Rounded(x[i], p.to_bf16);
    if (wide && count == kChunk) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(bits);
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (i < count) out[i] = bits[i];
      }
    }
  }
}

using KernelFn = void (*)(KvRemapParams, KvRemapTensor);
constexpr KernelFn kKernels[] = {
    &Kernel<KvRemapCode::kInt4>,     &Kernel<KvRemapCode::kInt6>, &Kernel<KvRemapCode::kInt4Unit>,
    &Kernel<KvRemapCode::kInt6Unit>, &Kernel<KvRemapCode::kInt8>, &Kernel<KvRemapCode::kE4M3>,
    &Kernel<KvRemapCode::kF16>,      &Kernel<KvRemapCode::kBF16>,
};

CudaStatus CudaKvRemap(const CudaExec& exec, const KvRemapParams& params) {
  const int64_t slots = params.to.indptr == nullptr ? params.batch : params.to.num_indices;
  if (slots == 0 || params.batch == 0 || params.num_heads == 0 || params.to.page_tokens == 0) return nullptr;
  if (slots > 0x7fffffff) return CudaFail(CudaFault::kInvalid, "kv_remap of %lld pages", static_cast<long long>(slots));
  for (int i = 0; i < params.num_tensors; ++i) {
    const KvRemapTensor& tensor = params.tensors[i];
    const int64_t chunks = (tensor.dim + kChunk - 1) / kChunk;
    const int64_t items = int64_t{params.to.page_tokens} * params.num_heads * chunks;
    if (items > kMostItems) {
      return CudaFail(CudaFault::kUnsupported, "kv_remap of pages of %d tokens, %d heads, %d values: more than %lld times 8", params.to.page_tokens,
                      params.num_heads, tensor.dim, static_cast<long long>(kMostItems));
    }
    const int64_t blocks = (items + kThreads - 1) / kThreads;
    const dim3 grid(static_cast<unsigned>(slots), static_cast<unsigned>(blocks < 1024 ? blocks : 1024));
    kKernels[static_cast<int>(tensor.code)]<<<grid, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params, tensor);
  }
  return CudaLaunched("kv_remap of %lld pages, %d tokens, %d heads", static_cast<long long>(slots), params.to.page_tokens,
                      params.num_heads);
}

}  // namespace
}  // namespace cachalot

extern "C" __attribute__((visibility("default"))) cachalot::CudaKvRemapFn cachalot_cuda_kv_remap(int version) {
  return version == cachalot::kCudaKvRemapVersion ? &cachalot::CudaKvRemap : nullptr;
}
