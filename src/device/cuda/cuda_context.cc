// Thin: each function is one runtime call whose error becomes a CudaStatus.
#include "device/cuda/cuda_context.h"

#include <cstdio>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_tune.h"

namespace cachalot {
namespace {

cudaStream_t Stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t Event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

CudaStatus DeviceCount(int* count) {
  *count = 0;
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error == cudaErrorNoDevice) {
    cudaGetLastError();
    *count = 0;
    return nullptr;
  }
  return CudaChecked(error, "cudaGetDeviceCount");
}

CudaStatus DeviceInfo(int device, CudaDeviceInfo* info) {
  cudaDeviceProp properties;
  if (CudaStatus failure = CudaChecked(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties")) {
    return failure;
  }
  std::snprintf(info->name, sizeof(info->name), "%.*s", static_cast<int>(sizeof(info->name)) - 1, properties.name);
  info->compute_capability = properties.major * 10 + properties.minor;
  info->num_sms = properties.multiProcessorCount;
  info->total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info->l2_bytes = properties.l2CacheSize;
  info->shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  return nullptr;
}

CudaStatus SetDevice(int device) {
  return CudaChecked(cudaSetDevice(device), "cudaSetDevice");
}

CudaStatus MemoryInfo(int64_t* free_bytes, int64_t* total_bytes) {
  size_t free = 0, total = 0;
  CudaStatus failure = CudaChecked(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  *free_bytes = static_cast<int64_t>(free);
  *total_bytes = static_cast<int64_t>(total);
  return failure;
}

// A call that asks for memory: the failure says how much.
CudaStatus Allocated(cudaError_t error, const char* call, int64_t bytes) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  const CudaFault fault = error == cudaErrorMemoryAllocation ? CudaFault::kExhausted : CudaFault::kDevice;
  return CudaFail(fault, "%s of %lld bytes: %s", call, static_cast<long long>(bytes), cudaGetErrorString(error));
}

CudaStatus Allocate(int64_t bytes, void** data) {
  *data = nullptr;
  if (bytes <= 0) return bytes == 0 ? nullptr : CudaFail(CudaFault::kInvalid, "allocation of a negative size");
  return Allocated(cudaMalloc(data, static_cast<size_t>(bytes)), "cudaMalloc", bytes);
}

CudaStatus Release(void* data) {
  return CudaChecked(cudaFree(data), "cudaFree");
}

CudaStatus AllocateHost(int64_t bytes, void** data) {
  *data = nullptr;
  if (bytes <= 0) return bytes == 0 ? nullptr : CudaFail(CudaFault::kInvalid, "allocation of a negative size");
  return Allocated(cudaMallocHost(data, static_cast<size_t>(bytes)), "cudaMallocHost", bytes);
}

CudaStatus ReleaseHost(void* data) {
  return CudaChecked(cudaFreeHost(data), "cudaFreeHost");
}

CudaStatus PinHost(void* data, int64_t bytes) {
  return Allocated(cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterDefault), "cudaHostRegister", bytes);
}

CudaStatus UnpinHost(void* data) {
  return CudaChecked(cudaHostUnregister(data), "cudaHostUnregister");
}

CudaStatus StreamCreate(bool high_priority, void** stream) {
  int least = 0, greatest = 0;
  if (CudaStatus failure =
          CudaChecked(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange")) {
    return failure;
  }
  cudaStream_t created = nullptr;
  CudaStatus failure = CudaChecked(
      cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, high_priority ? greatest : least),
      "cudaStreamCreateWithPriority");
  *stream = created;
  return failure;
}

CudaStatus StreamDestroy(void* stream) {
  return CudaChecked(cudaStreamDestroy(Stream(stream)), "cudaStreamDestroy");
}

CudaStatus StreamSynchronize(void* stream) {
  return CudaChecked(cudaStreamSynchronize(Stream(stream)), "cudaStreamSynchronize");
}

CudaStatus StreamWaitEvent(void* stream, void* event) {
  return CudaChecked(cudaStreamWaitEvent(Stream(stream), Event(event), 0), "cudaStreamWaitEvent");
}

CudaStatus EventCreate(bool timing, void** event) {
  cudaEvent_t created = nullptr;
  CudaStatus failure = CudaChecked(
      cudaEventCreateWithFlags(&created, timing ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
  *event = created;
  return failure;
}

CudaStatus EventDestroy(void* event) {
  return CudaChecked(cudaEventDestroy(Event(event)), "cudaEventDestroy");
}

CudaStatus EventRecord(void* event, void* stream) {
  return CudaChecked(cudaEventRecord(Event(event), Stream(stream)), "cudaEventRecord");
}

CudaStatus EventSynchronize(void* event) {
  return CudaChecked(cudaEventSynchronize(Event(event)), "cudaEventSynchronize");
}

CudaStatus EventQuery(void* event, bool* done) {
  const cudaError_t error = cudaEventQuery(Event(event));
  *done = error == cudaSuccess;
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return nullptr;
  }
  return CudaChecked(error, "cudaEventQuery");
}

CudaStatus EventElapsedMs(void* begin, void* end, float* ms) {
  return CudaChecked(cudaEventElapsedTime(ms, Event(begin), Event(end)), "cudaEventElapsedTime");
}

CudaStatus Copy(void* dst, const void* src, int64_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  return CudaChecked(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, Stream(stream)),
                     "cudaMemcpyAsync");
}

CudaStatus Fill(void* dst, int value, int64_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  return CudaChecked(cudaMemsetAsync(dst, value, static_cast<size_t>(bytes), Stream(stream)), "cudaMemsetAsync");
}

CudaStatus GraphBegin(void* stream) {
  return CudaChecked(cudaStreamBeginCapture(Stream(stream), cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
}

CudaStatus GraphEnd(void* stream, void** graph) {
  *graph = nullptr;
  cudaGraph_t captured = nullptr;
  if (CudaStatus failure = CudaChecked(cudaStreamEndCapture(Stream(stream), &captured), "cudaStreamEndCapture")) {
    return failure;
  }
  *graph = captured;
  return nullptr;
}

CudaStatus GraphRelease(void* graph) {
  return CudaChecked(cudaGraphDestroy(static_cast<cudaGraph_t>(graph)), "cudaGraphDestroy");
}

// Nodes of the explicit graph, each after the one before.
CudaStatus AddStepNodes(const CudaStepCopies& copies, cudaGraph_t captured, cudaGraph_t graph) {
  cudaGraphNode_t last = nullptr, node = nullptr;
  const auto after = [&] { return last != nullptr ? size_t{1} : size_t{0}; };
  if (copies.in_bytes > 0) {
    if (CudaStatus failure = CudaChecked(
            cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, copies.in_dst, copies.in_src,
                                     static_cast<size_t>(copies.in_bytes), cudaMemcpyHostToDevice),
            "cudaGraphAddMemcpyNode1D (in)")) {
      return failure;
    }
    last = node;
  }
  if (CudaStatus failure = CudaChecked(cudaGraphAddChildGraphNode(&node, graph, &last, after(), captured),
                                       "cudaGraphAddChildGraphNode")) {
    return failure;
  }
  last = node;
  if (copies.out_bytes == 0) return nullptr;
  return CudaChecked(cudaGraphAddMemcpyNode1D(&node, graph, &last, after(), copies.out_dst, copies.out_src,
                                              static_cast<size_t>(copies.out_bytes), cudaMemcpyDeviceToHost),
                     "cudaGraphAddMemcpyNode1D (out)");
}

CudaStatus StepGraphCreate(const CudaStepCopies& copies, void* captured, void** step_graph) {
  *step_graph = nullptr;
  cudaGraph_t graph = nullptr;
  if (CudaStatus failure = CudaChecked(cudaGraphCreate(&graph, 0), "cudaGraphCreate")) return failure;
  CudaStatus failure = AddStepNodes(copies, static_cast<cudaGraph_t>(captured), graph);
  if (failure == nullptr) {
    cudaGraphExec_t executable = nullptr;
    failure = CudaChecked(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    *step_graph = executable;
  }
  cudaGraphDestroy(graph);
  return failure;
}

CudaStatus StepGraphLaunch(void* step_graph, void* stream) {
  return CudaChecked(cudaGraphLaunch(static_cast<cudaGraphExec_t>(step_graph), Stream(stream)), "cudaGraphLaunch");
}

CudaStatus StepGraphDestroy(void* step_graph) {
  return CudaChecked(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(step_graph)), "cudaGraphExecDestroy");
}

CudaTune current_tune;

CudaStatus SetTune(const char* settings) {
  if (ParseCudaTune(settings, &current_tune)) return nullptr;
  return CudaFail(CudaFault::kInvalid, "GPU settings '%.100s': known are %.*s", settings, static_cast<int>(kCudaTuneKeys.size()),
                  kCudaTuneKeys.data());
}

CudaStatus ResetDevice() {
  cudaGetLastError();
  return CudaChecked(cudaDeviceReset(), "cudaDeviceReset");
}

}  // namespace

const CudaTune& CurrentTune() { return current_tune; }

void FillContextRows(CudaBackend* backend) {
  backend->set_tune = &SetTune;
  backend->device_count = &DeviceCount;
  backend->device_info = &DeviceInfo;
  backend->set_device = &SetDevice;
  backend->memory_info = &MemoryInfo;
  backend->allocate = &Allocate;
  backend->release = &Release;
  backend->allocate_host = &AllocateHost;
  backend->release_host = &ReleaseHost;
  backend->pin_host = &PinHost;
  backend->unpin_host = &UnpinHost;
  backend->stream_create = &StreamCreate;
  backend->stream_destroy = &StreamDestroy;
  backend->stream_synchronize = &StreamSynchronize;
  backend->stream_wait_event = &StreamWaitEvent;
  backend->event_create = &EventCreate;
  backend->event_destroy = &EventDestroy;
  backend->event_record = &EventRecord;
  backend->event_synchronize = &EventSynchronize;
  backend->event_query = &EventQuery;
  backend->event_elapsed_ms = &EventElapsedMs;
  backend->copy = &Copy;
  backend->fill = &Fill;
  backend->graph_begin = &GraphBegin;
  backend->graph_end = &GraphEnd;
  backend->graph_release = &GraphRelease;
  backend->step_graph_create = &StepGraphCreate;
  backend->step_graph_launch = &StepGraphLaunch;
  backend->step_graph_destroy = &StepGraphDestroy;
  backend->reset_device = &ResetDevice;
}

}  // namespace cachalot
