// CudaTransfers: blocks on their way between the device's pools and page-locked memory of the host, on a stream of their own, one
// after the other. The compute stream waits on the device for those started before, never the host. Large blocks come in slices of some
// layers, the first layers of all blocks first, so that a step can begin with them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "device/cuda/cuda_copies.h"
#include "device/cuda/cuda_library.h"
#include "runtime/cuda_stream_trace.h"
#include "runtime/executor.h"
#include "runtime/kv_store.h"

namespace cachalot {

class CudaTransfers {
 public:
  CudaTransfers() = default;
  ~CudaTransfers();
  CudaTransfers(const CudaTransfers&) = delete;
  CudaTransfers& operator=(const CudaTransfers&) = delete;

  // num_started: what another, whose device was lost, had started.
  // trace: null, or gets the batches.
  Status Create(const CudaBackend* backend, int64_t num_started, CudaStreamTrace* trace);
  // The layers [first_layer, end_layer) are the device's. slice_bytes: fewer are not worth a copy of their own; 0: as many as usual.
  void Slice(std::span<const KvGroupSpec> groups, const KvStore& kv, int32_t first_layer, int32_t end_layer, int64_t slice_bytes);
  // Blocks of groups on the CPU are copied at once. Fault point: "device.copy".
  Status Start(std::span<const BlockTransfer> transfers, KvStore* kv);
  // How many are done; the rate of those into blocks is learned.
  Result<int64_t> Done();
  // What `stream` does from now on waits for all that were started.
  Status LetWait(void* stream);
  // So too, but for what later layers read.
  Status LetLayerWait(void* stream, int32_t layer);
  // Whether it would have it wait for any.
  bool LetsWait() const { return !awaited_ && !batches_.empty(); }
  // All that were started are done, or void.
  Status Settle();
  // A copy that the host waits for, behind all that were started.
  Status CopyNow(void* to, const void* from, int64_t bytes);

  double bytes_per_second() const { return rate_seconds_ > 0 ? rate_bytes_ / rate_seconds_ : 0; }

 private:
  static constexpr int32_t kSlices = 4;  // of the layers
  // Of one call of Start.
  struct Batch {
    void* begin = nullptr;
    void* end = nullptr;        // events
    std::array<void*, kSlices - 1> slices = {};  // of all but the last
    int32_t num_slices = 1;
    int64_t num_transfers = 0;
    int64_t bytes_into = 0;     // 0 where some are out of blocks: then it tells no rate
    int64_t bytes = 0;          // on the stream
    bool into = false, out_of = false;  // which ways
  };
  Status TakeEvents(Batch* batch);
  Status Enqueue(std::span<const BlockTransfer> transfers, KvStore* kv, Batch* batch);
  Status Copy(const BlockTransfer& transfer, int64_t begin, int64_t end, const KvStore& kv, Batch* batch);
  // Those that Copy has gathered.
  Status Flush();
  // Into how many slices these go, which are all that is left of a batch.
  int32_t NumSlices(std::span<const BlockTransfer> transfers, const KvStore& kv) const;
  int32_t SliceOf(int32_t layer) const;

  const CudaBackend* backend_ = nullptr;
  CudaStreamTrace* trace_ = nullptr;
  CudaCopyMany copy_many_ = nullptr;  // or null
  void* stream_ = nullptr;
  // Copies of one way that follow each other.
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> sizes_;
  bool into_device_ = false;
  std::deque<Batch> batches_;       // that are under way, oldest first
  std::vector<Batch> spare_;        // of their events
  int64_t num_started_ = 0, num_done_ = 0;
  bool awaited_ = true;             // by the compute stream, all that were started
  int32_t next_slice_ = 0;          // of the last batch: those in front of it are awaited
  int32_t first_layer_ = 0, end_layer_ = 0;
  int64_t slice_bytes_ = 0;
  std::vector<std::array<int64_t, kSlices>> slice_ends_;  // [groups] of a block
  double rate_bytes_ = 0, rate_seconds_ = 0;
};

}  // namespace cachalot
