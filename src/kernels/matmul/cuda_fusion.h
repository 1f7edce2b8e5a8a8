// What a matmul on the GPU may do beside multiplying, where it is one launch of the decode kernel anyway (MatmulFuses,
// MoeMatmulFuses say so): RmsNorm of its rows of x, all of k, by this weight; SwiGlu of its products, of which the first half are
// gates, the second ups. Bit for bit as RmsNorm, the matmul and SwiGlu one after the other.
#pragma once

namespace cachalot {

struct CudaFusion {
  const float* norm_weight = nullptr;  // [k] or null
  float norm_eps = 0;
  bool glu = false;  // y [.., n / 2]
  bool any() const { return norm_weight != nullptr || glu; }
};

}  // namespace cachalot
