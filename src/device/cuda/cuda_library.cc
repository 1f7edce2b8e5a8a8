#include "device/cuda/cuda_library.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/file.h"

namespace cachalot {
namespace {

constexpr const char* kLibraryName = "libcachalot_cuda.so";

StatusCode CodeOf(CudaFault fault) {
  switch (fault) {
    case CudaFault::kInvalid:
      return StatusCode::kInvalidArgument;
    case CudaFault::kUnsupported:
      return StatusCode::kUnsupported;
    case CudaFault::kExhausted:
      return StatusCode::kExhausted;
    case CudaFault::kDevice:
      break;
  }
  return StatusCode::kDeviceError;
}

std::string FileOf(const void* code) {
  Dl_info info;
  return dladdr(code, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

// The folder of the file that holds this code, with its slash.
std::string OwnFolder() {
  const std::string file = FileOf(reinterpret_cast<const void*>(&FromCuda));
  return file.substr(0, file.rfind('/') + 1);
}

// A library that ends before its parts do: the loader maps it all the same, and whoever touches what is not there is killed.
Status CheckWhole(const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, File::Open(path));
  Elf64_Ehdr header;
  RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(&header, 1))));
  const bool elf = std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64;
  if (!elf || header.e_phentsize != sizeof(Elf64_Phdr)) return Status::Ok();  // no library: the loader says so
  const auto size = static_cast<uint64_t>(file->size());
  const auto ends_inside = [&](uint64_t begin, uint64_t bytes) { return begin <= size && bytes <= size - begin; };
  bool whole = ends_inside(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize) &&
               ends_inside(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr));
  for (uint64_t i = 0; whole && i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    const auto at = static_cast<int64_t>(header.e_phoff + i * sizeof(part));
    RETURN_IF_ERROR(file->ReadAt(at, std::as_writable_bytes(std::span(&part, 1))));
    whole = ends_inside(part.p_offset, part.p_filesz);
  }
  if (!whole) return Corrupt("{}: cut off: it has {} bytes, its parts end behind them", path, size);
  return Status::Ok();
}

}  // namespace

Status FromCuda(CudaStatus status) {
  if (status == nullptr) return Status::Ok();
  return Status(CodeOf(status->fault), status->message);
}

Result<const CudaBackend*> LoadCudaBackend(const std::string& path) {
  void* library = nullptr;
  const std::string file = path.empty() ? OwnFolder() + kLibraryName : path;
  if (file.find('/') != std::string::npos) {
    if (FileExists(file)) RETURN_IF_ERROR(CheckWhole(file));
    library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    library = dlopen(path.empty() ? kLibraryName : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    const char* reason = dlerror();
    return NotFound("CUDA backend: {}", reason == nullptr ? "cannot be loaded" : reason);
  }
  const auto entry =
      reinterpret_cast<const CudaBackend* (*)(int)>(dlsym(library, "cachalot_cuda_backend"));
  const CudaBackend* backend = entry == nullptr ? nullptr : entry(kCudaBackendVersion);
  if (backend == nullptr) {
    return Unsupported("CUDA backend: {} is of another version than {}", path.empty() ? kLibraryName : path,
                       kCudaBackendVersion);
  }
  return backend;
}

std::string CudaLibraryPath(const CudaBackend& backend) { return FileOf(reinterpret_cast<const void*>(backend.device_count)); }

Status CheckCudaCard(const CudaBackend& backend, const CudaDeviceInfo& card) {
  const int32_t capability = card.compute_capability;
  const auto fails = [&](const std::string& why) {
    return Unsupported("{} (compute capability {}.{}): {}", card.name, capability / 10, capability % 10, why);
  };
  if (capability < kCudaLeastCapability) {
    return fails(fmt::format("the oldest that works is {}.{}", kCudaLeastCapability / 10, kCudaLeastCapability % 10));
  }
  if (capability != kCudaOwnCapability && !backend.has_ptx) {
    return fails(fmt::format("libcachalot_cuda.so has code for {}.{} alone (CACHALOT_CUDA_PTX80 adds code for others)",
                             kCudaOwnCapability / 10, kCudaOwnCapability % 10));
  }
  if (card.shared_bytes_per_block < kCudaLeastSharedBytes) {
    return fails(fmt::format("{} bytes of shared memory a block, kernels take up to {}", card.shared_bytes_per_block,
                             kCudaLeastSharedBytes));
  }
  return Status::Ok();
}

Result<CudaHostBuffer> CudaHostBuffer::Allocate(const CudaBackend* backend, int64_t size_bytes) {
  CudaHostBuffer buffer;
  void* data = nullptr;
  RETURN_IF_ERROR(FromCuda(backend->allocate_host(size_bytes, &data)));
  buffer.backend_ = backend;
  buffer.data_ = static_cast<std::byte*>(data);
  return buffer;
}

CudaHostBuffer& CudaHostBuffer::operator=(CudaHostBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    backend_ = std::exchange(other.backend_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
  }
  return *this;
}

void CudaHostBuffer::Release() {
  if (data_ != nullptr) backend_->release_host(data_);
  data_ = nullptr;
}

Result<CudaBuffer> CudaBuffer::Allocate(const CudaBackend* backend, int64_t size_bytes) {
  CudaBuffer buffer;
  void* data = nullptr;
  RETURN_IF_ERROR(FromCuda(backend->allocate(size_bytes, &data)));
  buffer.backend_ = backend;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = size_bytes;
  return buffer;
}

CudaBuffer& CudaBuffer::operator=(CudaBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    backend_ = std::exchange(other.backend_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void CudaBuffer::Release() {
  if (data_ != nullptr) backend_->release(data_);
  data_ = nullptr;
  size_ = 0;
}

Result<CudaWorkspace> CudaWorkspace::Allocate(const CudaBackend* backend, int64_t size_bytes) {
  CudaWorkspace workspace;
  ASSIGN_OR_RETURN(workspace.buffer_, CudaBuffer::Allocate(backend, Padded(size_bytes)));
  return workspace;
}

std::byte* CudaWorkspace::TakeBytes(int64_t size_bytes) {
  const int64_t padded = Padded(size_bytes);
  CHECK(size_bytes >= 0 && padded <= buffer_.size() - used_)
      << "device workspace of " << buffer_.size() << " bytes, " << used_ << " used, " << size_bytes << " wanted";
  std::byte* data = buffer_.data() + used_;
  used_ += padded;
  peak_ = std::max(peak_, used_);
  return data;
}

}  // namespace cachalot
