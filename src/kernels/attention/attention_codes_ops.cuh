// Instructions of the kernels over codes.
#pragma once

#include "device/cuda/tensor_core.cuh"
#include "device/cuda/value.cuh"
#include "kernels/attention/attention_codes.cuh"
#include "kernels/attention/code_fragments.h"

namespace cachalot {

template <int kWords>
__device__ __forceinline__ void LoadWords(uint32_t (&to)[kWords], const std::byte* from) {
  if constexpr (kWords == 8) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7]) : "l"(from + 16));
  } else if constexpr (kWords == 4) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];\n" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
  } else {
    static_assert(kWords == 1);
    asm volatile("ld.global.u32 %0, [%1];\n" : "=r"(to[0]) : "l"(from));
  }
}
__device__ __forceinline__ uint32_t LoadHalfWord(const std::byte* from) {
  uint16_t value;
  asm volatile("ld.global.u16 %0, [%1];\n" : "=h"(value) : "l"(from));
  return value;
}


template <int kWords>
__device__ __forceinline__ void LoadShared(uint32_t (&to)[kWords], uint32_t from) {
  if constexpr (kWords == 8) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7]) : "r"(from + 16));
  } else if constexpr (kWords == 4) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(to[0]), "=r"(to[1]) : "r"(from));
  } else {
    static_assert(kWords == 1);
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(to[0]) : "r"(from));
  }
}
__device__ __forceinline__ uint32_t LoadSharedHalfWord(uint32_t from) {
  uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];\n" : "=h"(value) : "r"(from));
  return value;
}
// Two of them, the other `apart` bytes further.
__device__ __forceinline__ uint32_t LoadSharedHalfWords(uint32_t from, uint32_t apart) {
  return LoadSharedHalfWord(from) | LoadSharedHalfWord(from + apart) << 16;
}
// 16 bytes to shared memory.
__device__ __forceinline__ void CopyPiece(uint32_t to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}

// c += a b over 32 bytes: a signed, b as it says.
template <bool kSigned>
__device__ __forceinline__ void MmaBytes(int (&c)[4], const uint32_t (&a)[4], OperandB b) {
  if constexpr (kSigned) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
  } else {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
  }
}

// As MmaBytes, with keys as a and the query as b.
template <bool kSigned>
__device__ __forceinline__ void MmaKeyBytes(int (&c)[4], const uint32_t (&a)[4], OperandB b) {
  if constexpr (kSigned) {
    MmaBytes<true>(c, a, b);
  } else {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
  }
}

// A matrix of eight by eight F16, of which lane 4 i + j has values 2 j and 2 j + 1 of row i.
__device__ __forceinline__ uint32_t Transposed(uint32_t pair) {
  uint32_t to;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(to) : "r"(pair));
  return to;
}

// The two E4M3 codes in the lower or upper half of a word, as F16.
__device__ __forceinline__ uint32_t HalvesOfE4M3(uint32_t word, bool upper) {
  uint32_t halves;
  if (upper) {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.rn.f16x2.e4m3x2 %0, b;\n}\n" : "=r"(halves) : "r"(word));
  } else {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.rn.f16x2.e4m3x2 %0, a;\n}\n" : "=r"(halves) : "r"(word));
  }
  return halves;
}

// 2^x; 0 where that is less than F32's least normal number.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// BF16 in a half of a word.
__device__ __forceinline__ float ScaleOf(uint32_t word, bool upper) { return __uint_as_float(upper ? word & 0xffff0000u : word << 16); }

__device__ __forceinline__ uint32_t SubAndScale2(uint32_t halves, uint32_t offset, uint32_t scales) {
  const __half2 moved = __hsub2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&offset));
  const __half2 scaled = __hmul2(moved, *reinterpret_cast<const __half2*>(&scales));
  return *reinterpret_cast<const uint32_t*>(&scaled);
}
__device__ __forceinline__ uint32_t ScaleAndAdd2(uint32_t halves, uint32_t scales, uint32_t sums) {
  const __half2 sum = __hfma2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&scales),
                              *reinterpret_cast<const __half2*>(&sums));
  return *reinterpret_cast<const uint32_t*>(&sum);
}
__device__ __forceinline__ uint32_t Scale2(uint32_t halves, uint32_t scales) {
  const __half2 scaled = __hmul2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&scales));
  return *reinterpret_cast<const uint32_t*>(&scaled);
}

}  // namespace cachalot
