#include "device/cuda/cuda_partition.h"

#include <dlfcn.h>

namespace cachalot {

Result<std::array<CudaPart, 2>> PartSms(const CudaBackend& backend, int32_t first_sms) {
  const std::string path = CudaLibraryPath(backend);
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return NotFound("{} is not loaded", path);
  const auto part = reinterpret_cast<CudaStatus (*)(int, void**, int32_t*)>(dlsym(library, "cachalot_cuda_part_sms"));
  dlclose(library);  // as often as it was opened; the library stays
  if (part == nullptr) return Unsupported("{} cannot part SMs: it is of another build", path);
  void* streams[2] = {};
  int32_t num_sms[2] = {};
  RETURN_IF_ERROR(FromCuda(part(first_sms, streams, num_sms)));
  return std::array<CudaPart, 2>{CudaPart{streams[0], num_sms[0]}, CudaPart{streams[1], num_sms[1]}};
}

}  // namespace cachalot
