// The ops behind CudaBackend's rows, each defined in its op's folder: for the library's own sources only.
#pragma once

#include "device/cuda/cuda_backend.h"

namespace cachalot {

CudaStatus CudaBatchRows(const CudaExec& exec, const CudaBatch& batch);
CudaStatus CudaEmbed(const CudaExec& exec, const CudaEmbedParams& params);
CudaStatus CudaRmsNorm(const CudaExec& exec, const RmsNormParams& params);
CudaStatus CudaRopeTable(const CudaExec& exec, const RopeTableParams& params);
bool CudaRopeAppendFuses();
CudaStatus CudaRopeAppend(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params);
CudaStatus CudaSwiGlu(const CudaExec& exec, const SwiGluParams& params);
int64_t CudaAttentionPlanBytes(const CudaAttentionShape& shape, const CudaBatch& batch, int32_t num_sms);
CudaStatus CudaPlanAttention(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan);
CudaStatus CudaPlanAttentionOfTwo(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan, const CudaBatch& other,
                                  const CudaAttentionPlan& other_plan);
CudaStatus CudaAttention(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan,
                         const AttentionParams& params);
bool CudaMoeGateFuses(const CudaExec& exec, const CudaMoeGateParams& params);
CudaStatus CudaMoeGate(const CudaExec& exec, const CudaMoeGateParams& params, const int32_t* row_slots);
CudaStatus CudaMoeRoute(const CudaExec& exec, const MoeRouteParams& params);
CudaStatus CudaMoeSort(const CudaExec& exec, const MoeSortParams& params, const int32_t* row_slots);
CudaStatus CudaMlaSplit(const CudaExec& exec, const CudaBatch& batch, const CudaMlaSplitParams& params);
CudaStatus CudaMlaGather(const CudaExec& exec, const CudaMlaGatherParams& params);
CudaStatus CudaMlaAssemble(const CudaExec& exec, const CudaMlaAssembleParams& params);
CudaStatus CudaReadBandwidth(int64_t bytes, int repeats, double* bytes_per_second);
CudaStatus CudaCopyHeads(const CudaExec& exec, const CopyHeadsParams& params);
CudaStatus CudaStepBegin(const CudaExec& exec, const CudaStepBeginParams& params);
CudaStatus CudaStepEnd(const CudaExec& exec, const CudaStepEndParams& params);
CudaStatus CudaDraftBegin(const CudaExec& exec, const CudaDraftBeginParams& params);
CudaStatus CudaDraftNext(const CudaExec& exec, const CudaDraftNextParams& params);
CudaStatus CudaDraftFeed(const CudaExec& exec, const CudaDraftFeedParams& params);
CudaStatus CudaGatherRows(const CudaExec& exec, const CudaGatherRowsParams& params);
CudaStatus CudaLogprobRows(const CudaExec& exec, const CudaLogprobParams& params);
CudaStatus CudaSampleHistory(const CudaExec& exec, const CudaSampleHistoryParams& params);
CudaStatus CudaSample(const CudaExec& exec, const CudaSampleParams& params);
CudaStatus CudaMatmulInit(void** plans);
void CudaMatmulRelease(void* plans);
int64_t CudaMatmulWorkspaceBytes(const CudaMatmulParams& params, int32_t num_sms);
int64_t CudaHeadMatmulWorkspaceBytes(const CudaHeadMatmulParams& params, int32_t num_sms);
int64_t CudaMoeMatmulWorkspaceBytes(const CudaMoeMatmulParams& params, int32_t num_sms);
bool CudaMatmulFuses(const CudaExec& exec, const CudaMatmulParams& params);
bool CudaMoeMatmulFuses(const CudaExec& exec, const CudaMoeMatmulParams& params);
CudaStatus CudaMatmul(const CudaExec& exec, const CudaMatmulParams& params);
bool CudaMatmulChains(const CudaExec& exec, const CudaMatmulChain& chain);
CudaStatus CudaRunMatmulChain(const CudaExec& exec, const CudaMatmulChain& chain);
CudaStatus CudaHeadMatmul(const CudaExec& exec, const CudaHeadMatmulParams& params);
CudaStatus CudaMoeMatmul(const CudaExec& exec, const CudaMoeMatmulParams& params);
bool CudaMoePairFuses(const CudaExec& exec, const CudaMoeMatmulParams& moe, const CudaMatmulParams& matmul);
CudaStatus CudaMoePair(const CudaExec& exec, const CudaMoeMatmulParams& moe, const CudaMatmulParams& matmul);
CudaStatus CudaMoeCombine(const CudaExec& exec, const CudaMoeCombineParams& params);
bool CudaMoeFewFuses(const CudaExec& exec, const CudaMoeFewParams& params);
CudaStatus CudaMoeFew(const CudaExec& exec, const CudaMoeFewParams& params);

}  // namespace cachalot
