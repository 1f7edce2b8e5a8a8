// What a set of panel kernels implements for one weight type, and the piece of work it is given. Internal to
// the op; includes nothing that has inline functions, since the *_avx2.cc files see it.
//
// The driver (matmul.cc) cuts a call into tasks: a range of panels, for all rows of x. A task streams its
// panels once and loops over the rows inside, so W comes from memory once whatever the number of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu_features.h"
#include "tensor/dtype.h"

namespace cachalot {

// Scratch of a thread inside a task: the panels of the moment in the form that the inner loops read.
inline constexpr int64_t kThreadScratchBytes = 512 << 10;

struct PanelTask {
  const std::byte* panels = nullptr;  // the first panel of the range
  int64_t panel_bytes = 0;
  int64_t num_panels = 0;
  int64_t num_columns = 0;  // columns of y in the range: 16 a panel, fewer in the matrix's last one
  int64_t k = 0;

  int64_t m = 0;
  const std::byte* x = nullptr;  // F32 rows, or rows as `quantize` makes them
  int64_t x_stride_bytes = 0;
  const int32_t* x_rows = nullptr;   // [m] or null
  float* y = nullptr;                // at the range's first column
  int64_t y_stride = 0;              // in values
  const int32_t* y_rows = nullptr;   // [m] or null
  const float* bias = nullptr;       // at the range's first column, or null
  const float* row_scale = nullptr;  // [m] or null
  bool accumulate = false;

  std::byte* scratch = nullptr;  // [kThreadScratchBytes], this thread's
};

struct PanelKernel {
  DType dtype;
  Isa isa;
  void (*run)(const PanelTask& task);
  // Null: x is read as F32 where it lies. Else a row [k] of x is first turned into XBlocks, or copied.
  void (*quantize)(const float* x, int64_t k, std::byte* out);
  int64_t x_block_bytes = 0;  // that it makes of 32 values (the last ones may be fewer)
};

// 32 values of x against block formats: x = scale * q. Together, so that a row is one stream.
struct XBlock {
  int8_t q[32];
  float scale;
  // Q4_1, Q4_K: scale * sum(q). Q4_0: the int16 pair {-8 * sum of q[4j], q[4j+1] over j, the same of
  // q[4j+2], q[4j+3]}, where its kernel's sums start: so (w - 8) * x is summed with w unsigned.
  union {
    float sum;
    int16_t start[2];
  };
};
static_assert(sizeof(XBlock) == 40);

// The same with more beside it. `start` as above: Q5_1, Q5_K one pair over all of q (codes centred on 16);
// Q3_K, Q6_K a pair for each 16 (centred on 4 and 32).
struct XBlockWide {
  int8_t q[32];
  float scale;
  float sum;  // Q5_1, Q5_K: scale * sum(q)
  union {
    int16_t start[4];
    struct {
      int16_t unused[2];
      int32_t centre;  // Q5_1, Q5_K: 16 * sum(q), which makes the centring good
    };
  };
};
static_assert(sizeof(XBlockWide) == 48);

// Against signed bytes (the levels of IQ4): q as 16 bits, each four of k in the order 0, 2, 1, 3, which is how
// two shifts widen four bytes of w.
struct XBlock16 {
  int16_t q[32];
  float scale;
};
static_assert(sizeof(XBlock16) == 68);

// Against Q8_0's panels, whose words are w0 + 128 + 256 w1 of two neighbours in k (codes_avx2.h): each four of k as
// q0, q2, q1 - 256 q0, q3 - 256 q2. start: -128 times the sum of all q of even k.
struct XBlockPairs {
  int16_t q[32];
  float scale;
  int32_t start;
};
static_assert(sizeof(XBlockPairs) == 72);

// AVX-512 and AMX, all block formats: lanes of 32 bits sum unsigned bytes times q. They start at -centre * sum of q,
// whose centre makes signed numbers of w unsigned ones: one number over all of q, or (Q3_K, Q6_K) one for each 16.
// Q2_K: sums[] holds the plain sums of each 16.
struct XBlockSums {
  int8_t q[32];
  float scale;
  float sum;  // scale * sum(q), where w has minima
  union {
    int32_t start[2];
    int16_t sums[2];
  };
};
static_assert(sizeof(XBlockSums) == 48);
inline constexpr int64_t kMaxXBlockBytes = 32 * sizeof(float);

std::span<const PanelKernel> CodesKernelsAmx();
std::span<const PanelKernel> FloatKernelsAvx512();
std::span<const PanelKernel> CodesKernelsAvx512();
std::span<const PanelKernel> FloatKernelsAvx2();
std::span<const PanelKernel> Codes32KernelsAvx2();
std::span<const PanelKernel> Codes16KernelsAvx2();
// Other bits than the above: matmul.cc says when.
std::span<const PanelKernel> Int16KernelsAvx512();
std::span<const PanelKernel> Int16KernelsAvx2();

}  // namespace cachalot
