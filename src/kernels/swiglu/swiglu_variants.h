// The variants of SwiGlu: internal to the op's folder and to matmuls that end with it.
#pragma once

#include "kernels/swiglu/swiglu.h"

namespace cachalot {

void SwiGluRef(const ExecContext& ctx, const SwiGluParams& params);
void SwiGluAvx2(const ExecContext& ctx, const SwiGluParams& params);
void SwiGluRowsAvx2(const SwiGluParams& params);  // the same on this thread, for who is in a loop already

}  // namespace cachalot
