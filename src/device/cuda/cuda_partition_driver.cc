// PartSms (cuda_partition.h) in libcachalot_cuda.so. The driver's functions are asked for by name and version, so that an older driver is an answer, not a failure to load.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>

#include "device/cuda/cuda_error.h"

extern "C" cachalot::CudaStatus cachalot_cuda_part_sms(int first_sms, void** streams, int32_t* num_sms);

namespace cachalot {
namespace {

constexpr unsigned kDriverVersion = CUDA_VERSION;  // as the structs here are laid out

template <typename Function>
CudaStatus Find(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult query = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &query);
  if (error != cudaSuccess || query != cudaDriverEntryPointSuccess || found == nullptr) {
    cudaGetLastError();
    return CudaFail(CudaFault::kUnsupported, "the driver has no %s: SMs cannot be parted", name);
  }
  *function = reinterpret_cast<Function>(found);
  return nullptr;
}

CudaStatus Checked(CUresult result, const char* call) {
  return result == CUDA_SUCCESS ? nullptr : CudaFail(CudaFault::kDevice, "%s: error %d of the driver", call, static_cast<int>(result));
}

struct Parts {
  void* streams[2] = {};
  int32_t num_sms[2] = {};
};

CudaStatus Part(int first_sms, Parts* parts) {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetDevResource) get_resource = nullptr;
  decltype(&cuDevSmResourceSplitByCount) split = nullptr;
  decltype(&cuDevResourceGenerateDesc) describe = nullptr;
  decltype(&cuGreenCtxCreate) create = nullptr;
  decltype(&cuGreenCtxStreamCreate) create_stream = nullptr;
  if (CudaStatus failure = Find("cuDeviceGet", &device_get)) return failure;
  if (CudaStatus failure = Find("cuDeviceGetDevResource", &get_resource)) return failure;
  if (CudaStatus failure = Find("cuDevSmResourceSplitByCount", &split)) return failure;
  if (CudaStatus failure = Find("cuDevResourceGenerateDesc", &describe)) return failure;
  if (CudaStatus failure = Find("cuGreenCtxCreate", &create)) return failure;
  if (CudaStatus failure = Find("cuGreenCtxStreamCreate", &create_stream)) return failure;

  int ordinal = 0, least = 0, greatest = 0;
  if (CudaStatus failure = CudaChecked(cudaGetDevice(&ordinal), "cudaGetDevice")) return failure;
  if (CudaStatus failure = CudaChecked(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange")) return failure;
  CUdevice device = 0;
  if (CudaStatus failure = Checked(device_get(&device, ordinal), "cuDeviceGet")) return failure;
  CUdevResource all = {}, resources[2] = {};
  if (CudaStatus failure = Checked(get_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource")) return failure;
  if (first_sms <= 0 || first_sms >= static_cast<int>(all.sm.smCount)) {
    return CudaFail(CudaFault::kInvalid, "a part of %d SMs: the card has %u", first_sms, all.sm.smCount);
  }
  unsigned num_groups = 1;
  if (CudaStatus failure = Checked(split(&resources[0], &num_groups, &all, &resources[1], 0, static_cast<unsigned>(first_sms)), "cuDevSmResourceSplitByCount")) {
    return failure;
  }
  if (num_groups != 1 || resources[1].type != CU_DEV_RESOURCE_TYPE_SM || resources[1].sm.smCount == 0) {
    return CudaFail(CudaFault::kInvalid, "a part of %d SMs leaves no other", first_sms);
  }
  for (int i = 0; i < 2; ++i) {
    CUdevResourceDesc description = nullptr;
    CUgreenCtx context = nullptr;
    CUstream stream = nullptr;
    if (CudaStatus failure = Checked(describe(&description, &resources[i], 1), "cuDevResourceGenerateDesc")) return failure;
    if (CudaStatus failure = Checked(create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate")) return failure;
    if (CudaStatus failure = Checked(create_stream(&stream, context, CU_STREAM_NON_BLOCKING, i == 0 ? greatest : least), "cuGreenCtxStreamCreate")) return failure;
    parts->streams[i] = stream;
    parts->num_sms[i] = static_cast<int32_t>(resources[i].sm.smCount);
  }
  return nullptr;
}

}  // namespace
}  // namespace cachalot

extern "C" __attribute__((visibility("default"))) cachalot::CudaStatus cachalot_cuda_part_sms(int first_sms, void** streams, int32_t* num_sms) {
  static std::map<int, cachalot::Parts> known;
  auto found = known.find(first_sms);
  if (found == known.end()) {
    cachalot::Parts parts;
    if (cachalot::CudaStatus failure = cachalot::Part(first_sms, &parts)) return failure;
    found = known.emplace(first_sms, parts).first;
  }
  for (int i = 0; i < 2; ++i) {
    streams[i] = found->second.streams[i];
    num_sms[i] = found->second.num_sms[i];
  }
  return nullptr;
}
