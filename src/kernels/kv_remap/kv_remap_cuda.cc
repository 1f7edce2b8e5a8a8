#include "kernels/kv_remap/kv_remap_cuda.h"

#include <dlfcn.h>

#include "base/status.h"
#include "device/cuda/cuda_backend.h"

namespace cachalot {

Result<CudaKvRemapFn> FindCudaKvRemap(const CudaBackend& backend) {
  Dl_info library;
  if (dladdr(reinterpret_cast<const void*>(backend.device_count), &library) == 0) return Internal("the CUDA backend is of no library");
  void* handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return NotFound("{} is not loaded", library.dli_fname);
  const auto find = reinterpret_cast<decltype(&cachalot_cuda_kv_remap)>(dlsym(handle, "cachalot_cuda_kv_remap"));
  dlclose(handle);  // as often as it was opened; the library stays
  const CudaKvRemapFn remap = find == nullptr ? nullptr : find(kCudaKvRemapVersion);
  if (remap == nullptr) return Unsupported("{} has no kv_remap of version {}: it is of another build", library.dli_fname, kCudaKvRemapVersion);
  return remap;
}

}  // namespace cachalot
