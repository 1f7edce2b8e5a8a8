// SwiGLU of one pair of values, for the op and for matmuls that do it on their way out.
#pragma once

namespace cachalot {

__device__ __forceinline__ float SwiGluValue(float gate, float up) { return __fdiv_rn(gate, 1.0f + expf(-gate)) * up; }

}  // namespace cachalot
