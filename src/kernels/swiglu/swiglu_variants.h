// The variants of SwiGlu: internal to the op's folder.
#pragma once

#include "kernels/swiglu/swiglu.h"

namespace cachalot {

void SwiGluRef(const ExecContext& ctx, const SwiGluParams& params);
void SwiGluAvx2(const ExecContext& ctx, const SwiGluParams& params);

}  // namespace cachalot
