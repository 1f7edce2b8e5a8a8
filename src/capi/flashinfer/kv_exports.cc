// The exported functions: null checks, the run on the device asked for, and no exception let out.
#include "cachalot/flashinfer.h"

#include <dlfcn.h>

#include <cstring>
#include <exception>

#include "base/cpu_features.h"
#include "base/status.h"
#include "capi/flashinfer/kv_header.h"
#include "capi/flashinfer/kv_outcome.h"
#include "capi/flashinfer/kv_pages.h"
#include "device/cuda/cuda_library.h"
#include "kernels/kv_remap/kv_remap_cuda.h"

namespace cachalot {
namespace {

thread_local std::string last_error;  // NOLINT: a thread's own

template <typename Fn>
int Guarded(Fn&& fn) {
  try {
    KvOutcome outcome = fn();
    if (!outcome.ok()) last_error = std::move(outcome.message);
    return outcome.code;
  } catch (const std::exception& e) {
    return CACHALOT_KV_INTERNAL;
  }
}

// libcachalot_cuda.so: beside this library first.
Result<const CudaBackend*> Backend() {
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&deepseek_kv_remap), &here) != 0 && here.dli_fname != nullptr) {
    const std::string path = here.dli_fname;
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos) {
      Result<const CudaBackend*> beside = LoadCudaBackend(path.substr(0, slash) + "/libcachalot_cuda.so");
      if (beside.ok()) return beside;
    }
  }
  return LoadCudaBackend();
}

KvOutcome FromStatus(const Status& status, cachalot_kv_status code) {
  return status.ok() ? KvOutcome{} : KvOutcome{code, status.message()};
}

KvOutcome RunCuda(const KvRemapParams& params, void* stream) {
  static const Result<const CudaBackend*> backend = Backend();
  if (!backend.ok()) return FromStatus(backend.status(), CACHALOT_KV_NO_DEVICE);
  int devices = 0;
  const Status counted = FromCuda((*backend)->device_count(&devices));
  if (!counted.ok() || devices == 0) return KvFail(CACHALOT_KV_NO_DEVICE, "no CUDA device: {}", counted.ok() ? "there is none" : counted.message());
  static const Result<CudaKvRemapFn> remap = FindCudaKvRemap(**backend);
  if (!remap.ok()) return FromStatus(remap.status(), CACHALOT_KV_NO_DEVICE);
  CudaExec exec;
  exec.stream = stream;
  const Status status = FromCuda((*remap)(exec, params));
  return FromStatus(status, status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kInvalidArgument
                                ? CACHALOT_KV_BAD_SHAPE
                                : CACHALOT_KV_DEVICE_ERROR);
}

KvOutcome Run(const KvRemapParams& params, uint32_t device, void* stream) {
  if (device == CACHALOT_KV_CUDA) return RunCuda(params, stream);
  static const Result<Isa> isa = ParseIsa("auto");
  ExecContext ctx;
  ctx.isa = isa.ok() ? *isa : Isa::kRef;
  return FromStatus(KvRemap(ctx, params), CACHALOT_KV_BAD_TABLE);
}

struct RemapShapeArgs {
  int32_t batch, kv_heads, seq_len, head_dim, qtype;
};

KvOutcome Remap(const void* src, uint64_t src_bytes, const cachalot_kv_header* copy, void* dst, uint64_t dst_bytes,
                const RemapShapeArgs& args, uint32_t device, void* stream) {
  if (src == nullptr || dst == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "src or dst is null");
  if (device > CACHALOT_KV_CUDA) return KvFail(CACHALOT_KV_BAD_TYPE, "device {}", device);
  if (device == CACHALOT_KV_CUDA && copy == nullptr) {
    return KvFail(CACHALOT_KV_NULL_POINTER, "memory of a device wants its header in host memory");
  }
  uint32_t stored = 0;
  KvRemapParams params;
  RETURN_IF_KV_FAILED(ParseQtype(args.qtype, &stored, &params.to_bf16));
  if (copy == nullptr && src_bytes < sizeof(cachalot_kv_header)) return KvFail(CACHALOT_KV_OUT_OF_BOUNDS, "src: {} bytes, a header has {}", src_bytes, sizeof(cachalot_kv_header));
  cachalot_kv_header header;
  std::memcpy(&header, copy == nullptr ? src : copy, sizeof(header));
  RETURN_IF_KV_FAILED(CheckKvHeader(header, src_bytes, copy != nullptr));
  if (header.qtype != stored) return KvFail(CACHALOT_KV_BAD_TYPE, "qtype {}, but src holds {}", stored, header.qtype);
  const int64_t want[] = {header.batch, header.kv_heads, header.seq_len, header.head_dim};
  const int64_t got[] = {args.batch, args.kv_heads, args.seq_len, args.head_dim};
  if (std::memcmp(want, got, sizeof(want)) != 0) {
    return KvFail(CACHALOT_KV_BAD_SHAPE, "[{}, {}, {}, {}], but src holds [{}, {}, {}, {}]", got[0], got[1], got[2], got[3], want[0], want[1],
                  want[2], want[3]);
  }
  const unsigned __int128 bytes = static_cast<unsigned __int128>(header.batch) * header.kv_heads * header.seq_len * (header.head_dim * 2);
  if (bytes > dst_bytes) return KvFail(CACHALOT_KV_OUT_OF_BOUNDS, "dst: {} bytes are too few", dst_bytes);
  if (bytes == 0) return {};
  if (reinterpret_cast<uintptr_t>(dst) % 2 != 0) return KvFail(CACHALOT_KV_MISALIGNED, "dst at {}", dst);
  KvRemapTensor& t = params.tensors[0];
  RETURN_IF_KV_FAILED(TensorOf(header, src, &t));
  t.out = static_cast<uint16_t*>(dst);
  t.out_token = t.dim;
  t.out_head = t.out_token * args.seq_len;
  t.out_page = t.out_head * args.kv_heads;
  params.num_tensors = 1;
  params.batch = args.batch;
  params.num_heads = args.kv_heads;
  params.from.num_pages = params.to.num_pages = args.batch;
  params.from.page_tokens = params.to.page_tokens = args.seq_len;
  return Run(params, device, stream);
}

KvOutcome PageCounts(const int32_t* lengths, uint32_t batch, uint32_t page_size, int32_t* indptr, int32_t* last_page_len) {
  if (indptr == nullptr || (batch > 0 && (lengths == nullptr || last_page_len == nullptr))) {
    return KvFail(CACHALOT_KV_NULL_POINTER, "lengths, indptr or last_page_len is null");
  }
  if (page_size < 1 || page_size > INT32_MAX || batch > INT32_MAX) return KvFail(CACHALOT_KV_BAD_SHAPE, "{} sequences, pages of {}", batch, page_size);
  int64_t sum = 0;
  for (uint32_t b = 0; b < batch; ++b) {  // before anything is written
    if (lengths[b] < 0) return KvFail(CACHALOT_KV_BAD_SHAPE, "lengths[{}] is {}", b, lengths[b]);
    sum += (int64_t{lengths[b]} + page_size - 1) / page_size;
    if (sum > INT32_MAX) return KvFail(CACHALOT_KV_BAD_SHAPE, "{} sequences of pages of {}: more than 2^31 - 1 pages", batch, page_size);
  }
  indptr[0] = 0;
  for (uint32_t b = 0; b < batch; ++b) {
    const int64_t pages = (int64_t{lengths[b]} + page_size - 1) / page_size;
    indptr[b + 1] = indptr[b] + static_cast<int32_t>(pages);
    last_page_len[b] = pages == 0 ? 0 : static_cast<int32_t>(lengths[b] - (pages - 1) * page_size);
  }
  return {};
}

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT: the definitions below are C's

extern "C" {

uint32_t cachalot_kv_abi_version(void) { return CACHALOT_KV_ABI_VERSION; }

int cachalot_kv_check_version(uint32_t header_version) {
  return Guarded([&] {
    return header_version == CACHALOT_KV_ABI_VERSION
               ? KvOutcome{}
               : KvFail(CACHALOT_KV_BAD_VERSION, "the header is of version {}, the library of {}", header_version, CACHALOT_KV_ABI_VERSION);
  });
}

const char* cachalot_kv_error_text(int status) {
  switch (status) {
    case CACHALOT_KV_OK:
      return "ok";
    case CACHALOT_KV_NULL_POINTER:
      return "null pointer";
    case CACHALOT_KV_BAD_VERSION:
      return "other version";
    case CACHALOT_KV_BAD_HEADER:
      return "corrupt header";
    case CACHALOT_KV_BAD_SHAPE:
      return "sizes out of range or not alike";
    case CACHALOT_KV_BAD_TYPE:
      return "unknown type";
    case CACHALOT_KV_OUT_OF_BOUNDS:
      return "out of bounds";
    case CACHALOT_KV_MISALIGNED:
      return "misaligned";
    case CACHALOT_KV_BAD_TABLE:
      return "bad page table";
    case CACHALOT_KV_NOT_VIEWABLE:
      return "not viewable without a copy";
    case CACHALOT_KV_NO_DEVICE:
      return "no CUDA device";
    case CACHALOT_KV_DEVICE_ERROR:
      return "device error";
    case CACHALOT_KV_INTERNAL:
      return "internal error";
    default:
      return "unknown status";
  }
}

const char* cachalot_kv_last_error(void) { return last_error.c_str(); }

int cachalot_kv_header_init(cachalot_kv_header* header, int qtype, int packing, int scale_type, uint32_t group, uint32_t batch,
                            uint32_t kv_heads, uint32_t seq_len, uint32_t head_dim) {
  return Guarded([&] {
    if (header == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "header is null");
    return InitKvHeader(header, qtype, packing, scale_type, group, batch, kv_heads, seq_len, head_dim);
  });
}

int cachalot_kv_header_seal(cachalot_kv_header* header) {
  return Guarded([&] {
    if (header == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "header is null");
    SealKvHeader(header);
    return KvOutcome{};
  });
}

int cachalot_kv_header_check(const cachalot_kv_header* header, uint64_t bytes) {
  return Guarded([&] {
    if (header == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "header is null");
    return CheckKvHeader(*header, bytes, false);
  });
}

int deepseek_kv_remap(const void* src, void* dst, int32_t batch, int32_t kv_heads, int32_t seq_len, int32_t head_dim, int32_t qtype) {
  return Guarded([&] {
    return Remap(src, UINT64_MAX, nullptr, dst, UINT64_MAX, {batch, kv_heads, seq_len, head_dim, qtype}, CACHALOT_KV_CPU, nullptr);
  });
}

int cachalot_kv_remap(const void* src, uint64_t src_bytes, const cachalot_kv_header* header, void* dst, uint64_t dst_bytes,
                      int32_t batch, int32_t kv_heads, int32_t seq_len, int32_t head_dim, int32_t qtype, uint32_t device, void* stream) {
  return Guarded([&] {
    return Remap(src, src_bytes, header, dst, dst_bytes, {batch, kv_heads, seq_len, head_dim, qtype}, device, stream);
  });
}

int cachalot_kv_page_view(const cachalot_kv_source* source, cachalot_kv_pages* pages) {
  return Guarded([&] {
    if (source == nullptr || pages == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "source or pages is null");
    return ViewKvPages(*source, pages);
  });
}

int cachalot_kv_page_materialize(const cachalot_kv_source* source, const cachalot_kv_pages* pages, void* stream) {
  return Guarded([&] {
    if (source == nullptr || pages == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "source or pages is null");
    KvRemapParams params;
    RETURN_IF_KV_FAILED(PlanMaterialize(*source, *pages, &params));
    return Run(params, source->device, stream);
  });
}

int cachalot_kv_block_bytes(const cachalot_kv_source* source, uint64_t* bytes) {
  return Guarded([&] {
    if (source == nullptr || bytes == nullptr) return KvFail(CACHALOT_KV_NULL_POINTER, "source or bytes is null");
    return KvBlockBytes(*source, bytes);
  });
}

int cachalot_kv_page_counts(const int32_t* lengths, uint32_t batch, uint32_t page_size, int32_t* indptr, int32_t* last_page_len) {
  return Guarded([&] { return PageCounts(lengths, batch, page_size, indptr, last_page_len); });
}

}  // extern "C"
