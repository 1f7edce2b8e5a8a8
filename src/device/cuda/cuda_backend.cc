// The table. Built at the first call, then constant.
#include "device/cuda/cuda_backend.h"

#include "device/cuda/cuda_context.h"
#include "device/cuda/cuda_ops.h"

namespace cachalot {
namespace {

CudaBackend MakeBackend() {
  CudaBackend backend = {};
  backend.version = kCudaBackendVersion;
#ifdef CACHALOT_CUDA_PTX80
  backend.has_ptx = true;
#endif
  FillContextRows(&backend);
  backend.batch_rows = &CudaBatchRows;
  backend.embed = &CudaEmbed;
  backend.rms_norm = &CudaRmsNorm;
  backend.rope_table = &CudaRopeTable;
  backend.rope_append_fuses = &CudaRopeAppendFuses;
  backend.rope_append = &CudaRopeAppend;
  backend.swiglu = &CudaSwiGlu;
  backend.attention_plan_bytes = &CudaAttentionPlanBytes;
  backend.attention_plan = &CudaPlanAttention;
  backend.attention_plan_of_two = &CudaPlanAttentionOfTwo;
  backend.attention = &CudaAttention;
  backend.moe_gate_fuses = &CudaMoeGateFuses;
  backend.moe_gate = &CudaMoeGate;
  backend.moe_route = &CudaMoeRoute;
  backend.moe_sort = &CudaMoeSort;
  backend.mla_split = &CudaMlaSplit;
  backend.mla_gather = &CudaMlaGather;
  backend.mla_assemble = &CudaMlaAssemble;
  backend.read_bandwidth = &CudaReadBandwidth;
  backend.copy_heads = &CudaCopyHeads;
  backend.step_begin = &CudaStepBegin;
  backend.step_end = &CudaStepEnd;
  backend.draft_begin = &CudaDraftBegin;
  backend.draft_next = &CudaDraftNext;
  backend.draft_feed = &CudaDraftFeed;
  backend.gather_rows = &CudaGatherRows;
  backend.logprob_rows = &CudaLogprobRows;
  backend.sample_history = &CudaSampleHistory;
  backend.sample = &CudaSample;
  backend.matmul_init = &CudaMatmulInit;
  backend.matmul_release = &CudaMatmulRelease;
  backend.matmul_workspace_bytes = &CudaMatmulWorkspaceBytes;
  backend.head_matmul_workspace_bytes = &CudaHeadMatmulWorkspaceBytes;
  backend.moe_matmul_workspace_bytes = &CudaMoeMatmulWorkspaceBytes;
  backend.matmul_fuses = &CudaMatmulFuses;
  backend.moe_matmul_fuses = &CudaMoeMatmulFuses;
  backend.matmul = &CudaMatmul;
  backend.matmul_chains = &CudaMatmulChains;
  backend.matmul_chain = &CudaRunMatmulChain;
  backend.head_matmul = &CudaHeadMatmul;
  backend.moe_matmul = &CudaMoeMatmul;
  backend.moe_pair_fuses = &CudaMoePairFuses;
  backend.moe_pair = &CudaMoePair;
  backend.moe_combine = &CudaMoeCombine;
  backend.moe_few_fuses = &CudaMoeFewFuses;
  backend.moe_few = &CudaMoeFew;
  return backend;
}

}  // namespace
}  // namespace cachalot

extern "C" __attribute__((visibility("default"))) const cachalot::CudaBackend* cachalot_cuda_backend(int version) {
  static const cachalot::CudaBackend backend = cachalot::MakeBackend();
  return version == cachalot::kCudaBackendVersion ? &backend : nullptr;
}
