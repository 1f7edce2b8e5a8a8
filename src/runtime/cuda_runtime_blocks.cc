// CudaRuntime: KV blocks from outside, and what becomes of them when the device is lost.
#include <algorithm>
#include <cstring>

#include "base/fault.h"
#include "base/log.h"
#include "runtime/cuda_runtime_device.h"

namespace cachalot {

Status CudaRuntime::ReadBlock(int32_t group, int32_t block, std::span<std::byte> out) {
  Device& d = *device_;
  const std::span<std::byte> bytes = d.kv.OnGpu(group) ? d.kv.DeviceBytes(group, block) : d.kv.BlockBytes(group, block);
  CHECK(out.size() == bytes.size()) << out.size() << " bytes for a block of " << bytes.size();
  if (d.kv.OnGpu(group)) return d.transfers.CopyNow(out.data(), bytes.data(), static_cast<int64_t>(bytes.size()));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return Status::Ok();
}

Status CudaRuntime::WriteBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) {
  Device& d = *device_;
  const std::span<std::byte> place = d.kv.OnGpu(group) ? d.kv.DeviceBytes(group, block) : d.kv.BlockBytes(group, block);
  CHECK(place.size() == bytes.size()) << bytes.size() << " bytes for a block of " << place.size();
  if (d.kv.OnGpu(group)) return d.transfers.CopyNow(place.data(), bytes.data(), static_cast<int64_t>(bytes.size()));
  std::memcpy(place.data(), bytes.data(), bytes.size());
  return Status::Ok();
}

Status CudaRuntime::StartTransfers(std::span<const BlockTransfer> transfers) {
  RETURN_IF_ERROR(device_->transfers.Start(transfers, &device_->kv));
  num_transfers_ += static_cast<int64_t>(transfers.size());
  return Status::Ok();
}

// Of a device that could not be made again all are over: nobody has use for what they were to bring.
Result<int64_t> CudaRuntime::TransfersDone() {
  if (device_ == nullptr) return num_transfers_;
  return device_->transfers.Done();
}

double CudaRuntime::transfer_bytes_per_second() const { return device_ == nullptr ? 0 : device_->transfers.bytes_per_second(); }

Status CudaRuntime::PinHost(std::span<std::byte> memory) {
  RETURN_IF_ERROR(FromCuda(backend_->pin_host(memory.data(), static_cast<int64_t>(memory.size()))));
  pinned_.push_back(memory);
  return Status::Ok();
}

void CudaRuntime::UnpinHost(std::span<std::byte> memory) {
  std::erase_if(pinned_, [&](const std::span<std::byte>& other) { return other.data() == memory.data(); });
  if (device_ == nullptr) return;
  (void)device_->transfers.Settle();
  (void)backend_->unpin_host(memory.data());
}

Status CudaRuntime::Recover() {
  bool lost = FaultHits("device.rebuild");
  if (device_ != nullptr) {
    for (InFlight& step : device_->in_flight) step.active = false;
    next_step_ = next_collect_ = 0;
    device_->step.status = Status::Ok();
    if (built_ && !lost && FromCuda(backend_->stream_synchronize(device_->stream)).ok() && device_->transfers.Settle().ok()) {
      return Status::Ok();
    }
  }
  LOG_WARN("the GPU is lost: it is reset and the model is loaded again");
  device_.reset();
  RETURN_IF_ERROR(FromCuda(backend_->reset_device()));
  for (const std::span<std::byte>& memory : pinned_) {
    RETURN_IF_ERROR(FromCuda(backend_->pin_host(memory.data(), static_cast<int64_t>(memory.size()))));
  }
  return BuildDevice();
}

}  // namespace cachalot
