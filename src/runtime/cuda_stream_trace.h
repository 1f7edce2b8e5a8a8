// CudaStreamTrace: what a GPU's streams did and when, by pairs of events on them, and when the host launched and waited (obs/export/chrome_trace.h).
//
// Lanes: the host's thread, the stream that computes, the one that copies. The device's clock is laid beside the host's at the start, and is
// moved where it would have a step begin before its launch or end after the host saw its end: between those it may be off.
// Costs two events a step. Their differences are floats, so that times are relative to an event that moves along.
#pragma once

#include <array>
#include <memory>

#include "device/cuda/cuda_library.h"
#include "obs/export/chrome_trace.h"
#include "sched/plan.h"

namespace cachalot {

class CudaStreamTrace {
 public:
  enum Lane : int32_t { kHost = 1, kCompute = 2, kCopies = 3 };

  // A step from its launch until it is collected.
  struct Step {
    void* begin = nullptr;  // events: before all that it waits for and moves,
    void* work = nullptr;   // behind that
    bool waits = false;     // for copies of KV blocks
    bool moves = false;     // KV blocks itself
    double launch_us = 0;   // of the host
    const char* kind = "";  // "prefill", "decode", "mixed", "moves"
    int64_t sequences = 0;
    int64_t tokens = 0;
    int64_t kv_tokens = 0;
    int32_t bucket = 0;     // of sequences, of the graph; 0: op by op
  };
  static Result<std::unique_ptr<CudaStreamTrace>> Create(const CudaBackend* backend, ChromeTrace* file, void* compute_stream);
  ~CudaStreamTrace();
  CudaStreamTrace(const CudaStreamTrace&) = delete;
  CudaStreamTrace& operator=(const CudaStreamTrace&) = delete;

  double NowUs() const { return file_->NowUs(); }
  // Something of the host's, until now.
  void Host(const char* what, double begin_us, int64_t step_id);

  Status Begin(const StepPlan& plan, bool waits, Step* step);
  // What the step waits for and moves is enqueued.
  Status Work(Step* step);
  void Launched(const StepPlan& plan, const Step& step);
  // The host has seen, since `wait_us` waiting for it, that `done` is over; `done` is an event with a time, behind the step.
  Status Collected(uint64_t step_id, Step* step, void* done, double wait_us);
  // Blocks, between two events that are over.
  Status Copies(void* begin, void* end, int64_t blocks, int64_t bytes, bool into, bool out_of);

 private:
  CudaStreamTrace(const CudaBackend* backend, ChromeTrace* file, void* stream) : backend_(backend), file_(file), stream_(stream) {}
  // In the file's time, of an event `from` another whose time is known.
  Status TimeOf(void* event, void* from, double from_us, double* us) const;
  void AddOn(Lane lane, const char* name, double begin_us, double end_us, std::span<const ChromeTrace::Arg> args = {});

  const CudaBackend* const backend_;
  ChromeTrace* const file_;
  void* const stream_;
  std::array<Step*, 2> steps_ = {};  // whose events were made here
  void* base_ = nullptr;             // an event that is over,
  double base_us_ = 0;               // and when it was
  std::array<double, 4> ends_ = {};  // by lane, of what was written last
};

}  // namespace cachalot
