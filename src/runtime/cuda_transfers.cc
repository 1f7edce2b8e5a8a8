#include "runtime/cuda_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fault.h"

namespace cachalot {
namespace {

constexpr double kRateMemory = 0.9;  // of older batches, at each
constexpr int64_t kSliceBytes = 128 << 10;
constexpr int64_t kMostCopies = 1024;  // of a batch in slices: each takes the host half a microsecond

}  // namespace

Status CudaTransfers::Create(const CudaBackend* backend, int64_t num_started, CudaStreamTrace* trace) {
  backend_ = backend;
  trace_ = trace;
  copy_many_ = FindCopyMany(*backend);
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
    for (void* slice : batch.slices) {
      if (slice != nullptr) (void)backend_->event_destroy(slice);
    }
  }
  (void)backend_->stream_destroy(stream_);
}

void CudaTransfers::Slice(std::span<const KvGroupSpec> groups, const KvStore& kv, int32_t first_layer, int32_t end_layer, int64_t slice_bytes) {
  first_layer_ = first_layer;
  end_layer_ = end_layer;
  slice_bytes_ = slice_bytes > 0 ? slice_bytes : kSliceBytes;
  slice_ends_.clear();
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto num_layers = static_cast<int64_t>(groups[g].layers.size());
    const int64_t layer_bytes = num_layers > 0 ? kv.infos()[g].block_bytes / num_layers : 0;
    auto& ends = slice_ends_.emplace_back();
    for (int32_t slice = 0; slice < kSlices; ++slice) {
      ends[static_cast<size_t>(slice)] =
          layer_bytes * std::count_if(groups[g].layers.begin(), groups[g].layers.end(), [&](int32_t layer) { return SliceOf(layer) <= slice; });
    }
  }
}

int32_t CudaTransfers::SliceOf(int32_t layer) const {
  return std::clamp((layer - first_layer_) * kSlices / std::max(end_layer_ - first_layer_, 1), 0, kSlices - 1);
}

int32_t CudaTransfers::NumSlices(std::span<const BlockTransfer> transfers, const KvStore& kv) const {
  int64_t bytes = 0;
  for (const BlockTransfer& transfer : transfers) {
    if (!transfer.into_block || !kv.OnGpu(transfer.group) || slice_ends_.empty()) return 1;
    bytes += kv.infos()[static_cast<size_t>(transfer.group)].block_bytes;
  }
  const auto count = static_cast<int64_t>(transfers.size());
  int32_t slices = kSlices;
  while (slices > 1 && (count * slices > kMostCopies || bytes < slice_bytes_ * count * slices)) slices /= 2;
  return slices;
}

Status CudaTransfers::TakeEvents(Batch* batch) {
  if (!spare_.empty()) {
    *batch = spare_.back();
    spare_.pop_back();
    return Status::Ok();
  }
  for (void*& slice : batch->slices) RETURN_IF_ERROR(FromCuda(backend_->event_create(false, &slice)));
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
  next_slice_ = 0;
  return Status::Ok();
}

Status CudaTransfers::Copy(const BlockTransfer& transfer, int64_t begin, int64_t end, const KvStore& kv, Batch* batch) {
  std::byte* block = kv.DeviceBytes(transfer.group, transfer.block).data() + begin;
  std::byte* host = transfer.host + begin;
  if (end == begin) return Status::Ok();
  (transfer.into_block ? batch->into : batch->out_of) = true;
  batch->bytes += end - begin;
  if (transfer.into_block != into_device_) RETURN_IF_ERROR(Flush());
  into_device_ = transfer.into_block;
  to_.push_back(transfer.into_block ? block : host);
  from_.push_back(transfer.into_block ? host : block);
  sizes_.push_back(static_cast<size_t>(end - begin));
  return Status::Ok();
}

Status CudaTransfers::Flush() {
  Status status;
  bool done = to_.empty();
  if (!done && to_.size() > 1 && copy_many_ != nullptr) {
    status = FromCuda(copy_many_(to_.data(), from_.data(), sizes_.data(), to_.size(), into_device_, stream_));
    done = status.code() != StatusCode::kUnsupported;
    if (!done) {
      copy_many_ = nullptr;
      status = Status::Ok();
    }
  }
  for (size_t i = 0; !done && i < to_.size() && status.ok(); ++i) {
    status = FromCuda(backend_->copy(to_[i], from_[i], static_cast<int64_t>(sizes_[i]), stream_));
  }
  to_.clear();
  from_.clear();
  sizes_.clear();
  return status;
}

Status CudaTransfers::Enqueue(std::span<const BlockTransfer> transfers, KvStore* kv, Batch* batch) {
  batch->num_transfers = static_cast<int64_t>(transfers.size());
  batch->bytes = 0;
  batch->into = batch->out_of = false;
  to_.clear();  // of a batch that failed
  from_.clear();
  sizes_.clear();
  RETURN_IF_ERROR(FromCuda(backend_->event_record(batch->begin, stream_)));
  batch->num_slices = 1;
  bool asked = false;
  for (; !transfers.empty(); transfers = transfers.subspan(1)) {
    const BlockTransfer& transfer = transfers.front();
    if (transfer.into_block && !std::exchange(asked, true)) batch->num_slices = NumSlices(transfers, *kv);
    if (batch->num_slices > 1) break;
    if (kv->OnGpu(transfer.group)) {
      RETURN_IF_ERROR(Copy(transfer, 0, kv->infos()[static_cast<size_t>(transfer.group)].block_bytes, *kv, batch));
      continue;
    }
    const std::span<std::byte> block = kv->BlockBytes(transfer.group, transfer.block);
    if (transfer.into_block) std::memcpy(block.data(), transfer.host, block.size());
    else std::memcpy(transfer.host, block.data(), block.size());
  }
  for (int32_t slice = 0; slice < batch->num_slices && !transfers.empty(); ++slice) {
    const int32_t step = kSlices / batch->num_slices, first = slice * step, last = first + step - 1;
    for (const BlockTransfer& transfer : transfers) {
      const auto& ends = slice_ends_[static_cast<size_t>(transfer.group)];
      RETURN_IF_ERROR(Copy(transfer, first == 0 ? 0 : ends[static_cast<size_t>(first - 1)], ends[static_cast<size_t>(last)], *kv, batch));
    }
    RETURN_IF_ERROR(Flush());
    if (slice + 1 < batch->num_slices) RETURN_IF_ERROR(FromCuda(backend_->event_record(batch->slices[static_cast<size_t>(slice)], stream_)));
  }
  RETURN_IF_ERROR(Flush());
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

Status CudaTransfers::LetLayerWait(void* stream, int32_t layer) {
  if (!LetsWait()) return Status::Ok();
  const Batch& last = batches_.back();
  const int32_t slice = SliceOf(layer) / (kSlices / last.num_slices);
  if (slice < next_slice_) return Status::Ok();
  if (slice + 1 == last.num_slices) return LetWait(stream);
  next_slice_ = slice + 1;
  return FromCuda(backend_->stream_wait_event(stream, last.slices[static_cast<size_t>(slice)]));
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
