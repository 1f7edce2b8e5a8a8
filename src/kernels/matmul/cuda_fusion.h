// What a matmul on the GPU may do beside multiplying, where that is one launch (MatmulFuses, MoeMatmulFuses say so): RmsNorm of its
// rows of x, all of k, by this weight (the decode kernel); SwiGlu of its products, of which the first half are gates, the second ups
// (the decode kernel, 16-bit weights on wgmma). Bit for bit as RmsNorm, the matmul and SwiGlu one after the other, but where more
// rows are cut among the blocks in another way.
#pragma once

namespace cachalot {

struct CudaFusion {
  const float* norm_weight = nullptr;  // [k] or null
  float norm_eps = 0;
  bool glu = false;  // y [.., n / 2]
  bool any() const { return norm_weight != nullptr || glu; }
};

}  // namespace cachalot
