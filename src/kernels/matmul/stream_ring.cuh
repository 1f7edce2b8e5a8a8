// What the streaming kernels share (matmul_stream.cuh, matmul_wgmma.cuh, matmul_wgmma_codes.cuh): how a block finds its range of
// the line of all chunks, and the ring of stages that runs ahead of it.
//
// Invariant: W is loaded before the kernels in front have ended, x never is; each stage is one group of copies.
#pragma once

#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "kernels/matmul/stream_schedule.cuh"

namespace cachalot {
namespace {

// This block's range. False: it has none, and may return.
template <int kColumns>
__device__ __forceinline__ bool EnterStream(const MatmulProblem& p, const StreamWork& work, int* first_slots, StreamLine* line) {
  const bool experts = p.expert_begin != nullptr;
  int num_tiles = p.num_groups * work.n_tiles * work.m_tiles;
  LetNextKernelStart();
  if (experts) {
    WaitForEarlierKernels();
    num_tiles = ScanExperts<kColumns>(p, first_slots) * work.n_tiles;
  }
  *line = LineOf(work, num_tiles);
  if (blockIdx.x < line->num_ranges) return true;
  if (!experts) WaitForEarlierKernels();
  return false;
}

// `Source`: Enter(tile), CopyW(chunk, stage's address), CopyX(chunk, stage's address).
template <int kStages, int kStageBytes, int kAhead, typename Source>
struct StreamRing {
  Source source;
  const StreamLine& line;
  int chunks;     // of a tile
  uint32_t ring;  // address in shared memory
  int tile, chunk, stage;  // of the next load
  int64_t left;

  __device__ __forceinline__ void Start() {
    tile = static_cast<int>(line.begin / chunks), chunk = static_cast<int>(line.begin % chunks), stage = 0;
    left = line.end - line.begin;
    source.Enter(tile);
  }
  __device__ __forceinline__ void Next(bool w, bool x) {
    if (left > 0) {
      if (chunk == chunks) {
        chunk = 0;
        source.Enter(++tile);
      }
      if (w) source.CopyW(chunk, ring + stage * kStageBytes);
      if (x) source.CopyX(chunk, ring + stage * kStageBytes);
      ++chunk;
      --left;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (x) CommitAsync();
  }
  // The first kAhead stages: W, then, once the kernels in front have ended, x.
  __device__ __forceinline__ void Fill(bool experts) {
    Start();
#pragma unroll 1
    for (int i = experts ? kAhead : 0; i < 2 * kAhead; ++i) {
      if (i == kAhead && !experts) {
        WaitForEarlierKernels();
        Start();
      }
      Next(experts || i < kAhead, i >= kAhead);
    }
  }
};

}  // namespace
}  // namespace cachalot
