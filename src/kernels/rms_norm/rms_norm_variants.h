// The variants of RmsNorm: internal to the op's folder.
#pragma once

#include "kernels/rms_norm/rms_norm.h"

namespace cachalot {

void RmsNormRef(const ExecContext& ctx, const RmsNormParams& params);
void RmsNormAvx2(const ExecContext& ctx, const RmsNormParams& params);

}  // namespace cachalot
