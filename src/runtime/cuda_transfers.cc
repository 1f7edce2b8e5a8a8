#include "runtime/cuda_transfers.h"

#include <algorithm>
#include <cstring>

#include "base/fault.h"

namespace cachalot {
namespace {

constexpr double kRateMemory = 0.9;  // of older batches, at each

}  // namespace

Status CudaTransfers::Create(const CudaBackend* backend, int64_t num_started, CudaStreamTrace* trace) {
  backend_ = backend;
  trace_ = trace;
  num_started_ = num_done_ = num_started;
  return FromCuda(backend->stream_create(true, &stream_));
}

CudaTransfers::~CudaTransfers() {
  if (stream_ == nullptr) return;
  (void)backend_->stream_synchronize(stream_);
  spare_.insert(spare_.end(), batches_.begin(), batches_.end());
  for (const Batch& batch : spare_) {
    if (batch.begin != nullptr) (void)backend_->event_destroy(batch.begin);
    if (batch.end != nullptr) (void)backend_->event_destroy(batch.end);
  }
  (void)backend_->stream_destroy(stream_);
}

Status CudaTransfers::TakeEvents(Batch* batch) {
  if (!spare_.empty()) {
    *batch = spare_.back();
    spare_.pop_back();
    return Status::Ok();
  }
  RETURN_IF_ERROR(FromCuda(backend_->event_create(true, &batch->begin)));
  return FromCuda(backend_->event_create(true, &batch->end));
}

Status CudaTransfers::Start(std::span<const BlockTransfer> transfers, KvStore* kv) {
  if (FaultHits("device.copy")) return DeviceError("injected fault of a transfer");
  Batch batch;
  RETURN_IF_ERROR(TakeEvents(&batch));
  const Status status = Enqueue(transfers, kv, &batch);
  if (!status.ok()) {
    spare_.push_back(batch);
    return status;
  }
  batches_.push_back(batch);
  num_started_ += batch.num_transfers;
  awaited_ = false;
  return Status::Ok();
}

Status CudaTransfers::Enqueue(std::span<const BlockTransfer> transfers, KvStore* kv, Batch* batch) {
  batch->num_transfers = static_cast<int64_t>(transfers.size());
  batch->bytes = 0;
  batch->into = batch->out_of = false;
  RETURN_IF_ERROR(FromCuda(backend_->event_record(batch->begin, stream_)));
  for (const BlockTransfer& transfer : transfers) {
    if (!kv->OnGpu(transfer.group)) {
      const std::span<std::byte> block = kv->BlockBytes(transfer.group, transfer.block);
      if (transfer.into_block) std::memcpy(block.data(), transfer.host, block.size());
      else std::memcpy(transfer.host, block.data(), block.size());
      continue;
    }
    const std::span<std::byte> block = kv->DeviceBytes(transfer.group, transfer.block);
    const auto bytes = static_cast<int64_t>(block.size());
    void* to = transfer.into_block ? block.data() : transfer.host;
    const void* from = transfer.into_block ? transfer.host : block.data();
    RETURN_IF_ERROR(FromCuda(backend_->copy(to, from, bytes, stream_)));
    (transfer.into_block ? batch->into : batch->out_of) = true;
    batch->bytes += bytes;
  }
  batch->bytes_into = batch->out_of ? 0 : batch->bytes;
  return FromCuda(backend_->event_record(batch->end, stream_));
}

Result<int64_t> CudaTransfers::Done() {
  while (!batches_.empty()) {
    Batch& batch = batches_.front();
    bool done = false;
    RETURN_IF_ERROR(FromCuda(backend_->event_query(batch.end, &done)));
    if (!done) break;
    float ms = 0;
    if (batch.bytes_into > 0) RETURN_IF_ERROR(FromCuda(backend_->event_elapsed_ms(batch.begin, batch.end, &ms)));
    if (ms > 0) {
      rate_bytes_ = rate_bytes_ * kRateMemory + static_cast<double>(batch.bytes_into);
      rate_seconds_ = rate_seconds_ * kRateMemory + static_cast<double>(ms) * 1e-3;
    }
    if (trace_ != nullptr && batch.bytes > 0) {
      RETURN_IF_ERROR(trace_->Copies(batch.begin, batch.end, batch.num_transfers, batch.bytes, batch.into, batch.out_of));
    }
    num_done_ += batch.num_transfers;
    spare_.push_back(batch);
    batches_.pop_front();
  }
  return num_done_;
}

Status CudaTransfers::LetWait(void* stream) {
  if (!LetsWait()) return Status::Ok();
  awaited_ = true;
  return FromCuda(backend_->stream_wait_event(stream, batches_.back().end));
}

Status CudaTransfers::Settle() {
  RETURN_IF_ERROR(FromCuda(backend_->stream_synchronize(stream_)));
  spare_.insert(spare_.end(), batches_.begin(), batches_.end());
  batches_.clear();
  num_done_ = num_started_;
  return Status::Ok();
}

Status CudaTransfers::CopyNow(void* to, const void* from, int64_t bytes) {
  RETURN_IF_ERROR(FromCuda(backend_->copy(to, from, bytes, stream_)));
  return FromCuda(backend_->stream_synchronize(stream_));
}

}  // namespace cachalot
