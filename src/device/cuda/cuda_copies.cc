#include "device/cuda/cuda_copies.h"

#include <dlfcn.h>

namespace cachalot {

CudaCopyMany FindCopyMany(const CudaBackend& backend) {
  void* library = dlopen(CudaLibraryPath(backend).c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  const auto copy = reinterpret_cast<CudaCopyMany>(dlsym(library, "cachalot_cuda_copy_many"));
  dlclose(library);  // as often as it was opened; the library stays
  return copy;
}

}  // namespace cachalot
