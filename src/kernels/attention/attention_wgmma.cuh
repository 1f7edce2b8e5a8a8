// wgmma (sm_90a) in C++ clothes: D [64, N] += A [64, 16] B [N, 16]^T, a warpgroup at a time.
//
// A tile of 16-bit values in shared memory lies in panels of 64 columns (128 bytes), each [rows][128 bytes], aligned to 1024
// bytes, in the swizzle of Swizzled<128>. Read along its columns (queries, keys, weights) an operand's 16 columns begin at
// 32-byte steps within a panel; read along its rows (values: B transposed) 16 rows are 2048 bytes, and N columns are N / 64
// panels.
//
// Warp w of the group holds rows 16 w + lane / 4 and + 8 of D: d[4 j], d[4 j + 1] are columns 8 j + 2 (lane % 4), + 1 of the
// first, d[4 j + 2], d[4 j + 3] of the second. A in registers: as A of mma m16n8k16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace cachalot {

inline constexpr int kPanelBytes = 128;  // of a row
inline constexpr int kPanelValues = 64;

// Columns of a panel: 8 rows are 1024 bytes.
__device__ __forceinline__ uint64_t ColumnsDescriptor(uint32_t shared) {
  return uint64_t{(shared & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// Rows of panels that lie panel_stride bytes apart.
__device__ __forceinline__ uint64_t RowsDescriptor(uint32_t shared, uint32_t panel_stride) {
  return uint64_t{(shared & 0x3ffff) >> 4} | uint64_t{panel_stride >> 4} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// The descriptor of what lies so many bytes further on, of which the hardware sees multiples of 16.
__device__ __forceinline__ uint64_t Further(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000u) | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

// What ordinary instructions (cp.async too) have written to shared memory may be read by wgmma.
__device__ __forceinline__ void FenceForWgmma() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// Before the first wgmma after other instructions have touched its registers.
__device__ __forceinline__ void WgmmaBegin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// Until at most kPending of the latest groups are under way. Accumulators that are read afterwards are named, so that no
// read moves before the wait.
template <int kPending, int kCount>
__device__ __forceinline__ void WgmmaWait(float (&d)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int kPending, int kBlocks, int kCount>
__device__ __forceinline__ void WgmmaWait(float (&d)[kBlocks][kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
#pragma unroll
  for (auto& block : d) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(block[i])::"memory");
  }
}

// The same where nothing reads accumulators behind it.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

#define CACHALOT_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CACHALOT_RUN16(i) CACHALOT_F4(i), CACHALOT_F4(i + 4), CACHALOT_F4(i + 8), CACHALOT_F4(i + 12)
#define CACHALOT_F16 CACHALOT_RUN16(0)
#define CACHALOT_F8 CACHALOT_F4(0), CACHALOT_F4(4)
#define CACHALOT_F32 CACHALOT_RUN16(0), CACHALOT_RUN16(16)
#define CACHALOT_F64 CACHALOT_F32, CACHALOT_RUN16(32), CACHALOT_RUN16(48)
#define CACHALOT_F128 CACHALOT_F64, CACHALOT_RUN16(64), CACHALOT_RUN16(80), CACHALOT_RUN16(96), CACHALOT_RUN16(112)
#define CACHALOT_LIST8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CACHALOT_LIST16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CACHALOT_LIST32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CACHALOT_LIST64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63"
#define CACHALOT_LIST128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
  "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// Both operands from shared memory (Mma; MmaTransposed: A is read along its rows, as values are), or A from registers (MmaRegisters);
// keep: D += , else D = .
template <typename T, int kN, bool kTransposeB>
struct Wgmma;

#define CACHALOT_WGMMA(T, TYPE, N, COUNT, A, B, C, D, E, F)                                                              \
  template <bool kTransposeB>                                                                                            \
  struct Wgmma<T, N, kTransposeB> {                                                                                      \
    static __device__ __forceinline__ void Mma(float (&d)[COUNT], uint64_t a, uint64_t b, bool keep) {                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\n"                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" CACHALOT_LIST##COUNT "}, %" #A   \
                   ", %" #B ", p, 1, 1, 0, %" #D ";\n}\n"                                                                \
                   : CACHALOT_F##COUNT                                                                                   \
                   : "l"(a), "l"(b), "r"(int{keep}), "n"(int{kTransposeB})                                               \
                   : "memory");                                                                                          \
    }                                                                                                                    \
    static __device__ __forceinline__ void MmaTransposed(float (&d)[COUNT], uint64_t a, uint64_t b, bool keep) {         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\n"                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" CACHALOT_LIST##COUNT "}, %" #A   \
                   ", %" #B ", p, 1, 1, 1, %" #D ";\n}\n"                                                                \
                   : CACHALOT_F##COUNT                                                                                   \
                   : "l"(a), "l"(b), "r"(int{keep}), "n"(int{kTransposeB})                                               \
                   : "memory");                                                                                          \
    }                                                                                                                    \
    static __device__ __forceinline__ void MmaRegisters(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b,           \
                                                        bool keep) {                                                     \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #E ", 0;\n"                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" CACHALOT_LIST##COUNT "}, {%" #A  \
                   ", %" #B ", %" #C ", %" #D "}, %" #F ", p, 1, 1, %" CACHALOT_NEXT_##COUNT ";\n}\n"                  \
                   : CACHALOT_F##COUNT                                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(int{keep}), "l"(b), "n"(int{kTransposeB})           \
                   : "memory");                                                                                          \
    }                                                                                                                    \
  }
#define CACHALOT_NEXT_8 "14"
#define CACHALOT_NEXT_16 "22"
#define CACHALOT_NEXT_32 "38"
#define CACHALOT_NEXT_64 "70"
#define CACHALOT_NEXT_128 "134"
CACHALOT_WGMMA(__half, "f16", 16, 8, 8, 9, 10, 11, 12, 13);
CACHALOT_WGMMA(__half, "f16", 32, 16, 16, 17, 18, 19, 20, 21);
CACHALOT_WGMMA(__half, "f16", 64, 32, 32, 33, 34, 35, 36, 37);
CACHALOT_WGMMA(__half, "f16", 128, 64, 64, 65, 66, 67, 68, 69);
CACHALOT_WGMMA(__half, "f16", 256, 128, 128, 129, 130, 131, 132, 133);
CACHALOT_WGMMA(__nv_bfloat16, "bf16", 16, 8, 8, 9, 10, 11, 12, 13);
CACHALOT_WGMMA(__nv_bfloat16, "bf16", 32, 16, 16, 17, 18, 19, 20, 21);
CACHALOT_WGMMA(__nv_bfloat16, "bf16", 64, 32, 32, 33, 34, 35, 36, 37);
CACHALOT_WGMMA(__nv_bfloat16, "bf16", 128, 64, 64, 65, 66, 67, 68, 69);
CACHALOT_WGMMA(__nv_bfloat16, "bf16", 256, 128, 128, 129, 130, 131, 132, 133);

#undef CACHALOT_WGMMA
#undef CACHALOT_NEXT_8
#undef CACHALOT_NEXT_16
#undef CACHALOT_NEXT_32
#undef CACHALOT_NEXT_64
#undef CACHALOT_NEXT_128
#undef CACHALOT_LIST8
#undef CACHALOT_LIST16
#undef CACHALOT_LIST32
#undef CACHALOT_LIST64
#undef CACHALOT_LIST128
#undef CACHALOT_F128
#undef CACHALOT_F64
#undef CACHALOT_F32
#undef CACHALOT_F16
#undef CACHALOT_F8
#undef CACHALOT_RUN16
#undef CACHALOT_F4

}  // namespace cachalot
