#include "runtime/cuda_stream_trace.h"

#include <algorithm>

namespace cachalot {
namespace {

constexpr int kTries = 8;                 // to find a moment at which the host's thread was not held up
constexpr double kNarrowUs = 30;         // between which the first event lies
constexpr double kMaxFromBaseUs = 2e5;    // a float of milliseconds has a resolution of 1/64 us there

const char* KindOf(const StepPlan& plan) {
  if (plan.rows.empty()) return "moves";
  const auto prompts = std::count_if(plan.rows.begin(), plan.rows.end(), [](const PlanRow& row) { return row.q_len > 1 + row.num_drafts; });
  return prompts == 0 ? "decode" : prompts == static_cast<int64_t>(plan.rows.size()) ? "prefill" : "mixed";
}

}  // namespace

Result<std::unique_ptr<CudaStreamTrace>> CudaStreamTrace::Create(const CudaBackend* backend, ChromeTrace* file, void* compute_stream) {
  std::unique_ptr<CudaStreamTrace> trace(new CudaStreamTrace(backend, file, compute_stream));
  RETURN_IF_ERROR(FromCuda(backend->event_create(true, &trace->base_)));
  for (int i = 0; i < kTries; ++i) {
    const double before = file->NowUs();
    RETURN_IF_ERROR(FromCuda(backend->event_record(trace->base_, compute_stream)));
    RETURN_IF_ERROR(FromCuda(backend->event_synchronize(trace->base_)));
    const double after = file->NowUs();
    trace->base_us_ = (before + after) / 2;
    if (after - before < kNarrowUs) break;
  }
  file->NameLane(kHost, "host: launches and waits");
  file->NameLane(kCompute, "stream: steps");
  file->NameLane(kCopies, "stream: KV copies");
  return trace;
}

CudaStreamTrace::~CudaStreamTrace() {
  if (base_ != nullptr) (void)backend_->event_destroy(base_);
  for (Step* step : steps_) {
    if (step == nullptr) continue;
    (void)backend_->event_destroy(step->begin);
    (void)backend_->event_destroy(step->work);
    step->begin = step->work = nullptr;
  }
  file_->Flush();
}

void CudaStreamTrace::Host(const char* what, double begin_us, int64_t step_id) {
  const ChromeTrace::Arg args[] = {{"step", step_id}};
  file_->Add(kHost, what, begin_us, file_->NowUs() - begin_us, args);
}

Status CudaStreamTrace::Begin(const StepPlan& plan, bool waits, Step* step) {
  if (step->begin == nullptr) {
    RETURN_IF_ERROR(FromCuda(backend_->event_create(true, &step->begin)));
    RETURN_IF_ERROR(FromCuda(backend_->event_create(true, &step->work)));
    *std::find(steps_.begin(), steps_.end(), nullptr) = step;
  }
  step->waits = waits;
  step->moves = !plan.swap_outs.empty() || !plan.swap_ins.empty() || !plan.block_copies.empty();
  step->kind = KindOf(plan);
  step->sequences = static_cast<int64_t>(plan.rows.size());
  step->tokens = step->kv_tokens = 0;
  step->bucket = 0;
  for (const PlanRow& row : plan.rows) {
    step->tokens += row.q_len;
    step->kv_tokens += row.num_computed + row.q_len;
  }
  step->launch_us = file_->NowUs();
  return FromCuda(backend_->event_record(step->begin, stream_));
}

Status CudaStreamTrace::Work(Step* step) {
  if (!step->waits && !step->moves) return Status::Ok();
  return FromCuda(backend_->event_record(step->work, stream_));
}

void CudaStreamTrace::Launched(const StepPlan& plan, const Step& step) {
  Host(step.bucket > 0 ? "launch of a graph" : "launch op by op", step.launch_us, static_cast<int64_t>(plan.step_id));
}

Status CudaStreamTrace::TimeOf(void* event, void* from, double from_us, double* us) const {
  float ms = 0;
  RETURN_IF_ERROR(FromCuda(backend_->event_elapsed_ms(from, event, &ms)));
  *us = from_us + 1e3 * static_cast<double>(ms);
  return Status::Ok();
}

void CudaStreamTrace::AddOn(Lane lane, const char* name, double begin_us, double end_us, std::span<const ChromeTrace::Arg> args) {
  begin_us = std::max(begin_us, ends_[lane]);
  end_us = std::max(begin_us, end_us);
  file_->Add(lane, name, begin_us, end_us - begin_us, args);
}

Status CudaStreamTrace::Collected(uint64_t step_id, Step* step, void* done, double wait_us) {
  const double seen_us = file_->NowUs();
  const auto id = static_cast<int64_t>(step_id);
  Host("wait", wait_us, id);
  double begin_us = 0, work_us = 0, end_us = 0;
  RETURN_IF_ERROR(TimeOf(step->begin, base_, base_us_, &begin_us));
  RETURN_IF_ERROR(TimeOf(done, step->begin, begin_us, &end_us));
  work_us = begin_us;
  const bool before = step->waits || step->moves;
  if (before) RETURN_IF_ERROR(TimeOf(step->work, step->begin, begin_us, &work_us));
  const double off_us = begin_us < step->launch_us ? step->launch_us - begin_us : std::min(0.0, seen_us - end_us);
  base_us_ += off_us;
  begin_us += off_us;
  work_us += off_us;
  end_us += off_us;
  const ChromeTrace::Arg args[] = {{"step", id}, {"sequences", step->sequences}, {"tokens", step->tokens}, {"kv_tokens", step->kv_tokens}, {"bucket", step->bucket}};
  AddOn(kCompute, step->kind, begin_us, end_us, args);
  if (before) AddOn(kCompute, !step->moves ? "waits for copies" : step->waits ? "waits for copies, moves blocks" : "moves blocks", begin_us, work_us);
  if (step->sequences > 0) AddOn(kCompute, step->bucket > 0 ? "graph" : "ops", work_us, end_us);
  ends_[kCompute] = std::max(ends_[kCompute], end_us);
  if (begin_us - base_us_ > kMaxFromBaseUs) {
    std::swap(base_, step->begin);
    base_us_ = begin_us;
  }
  return Status::Ok();
}

Status CudaStreamTrace::Copies(void* begin, void* end, int64_t blocks, int64_t bytes, bool into, bool out_of) {
  double begin_us = 0, end_us = 0;
  RETURN_IF_ERROR(TimeOf(begin, base_, base_us_, &begin_us));
  RETURN_IF_ERROR(TimeOf(end, begin, begin_us, &end_us));
  const ChromeTrace::Arg args[] = {{"blocks", blocks}, {"bytes", bytes}};
  AddOn(kCopies, into && out_of ? "KV in and out" : into ? "KV in" : "KV out", begin_us, end_us, args);
  ends_[kCopies] = std::max(ends_[kCopies], end_us);
  return Status::Ok();
}

}  // namespace cachalot
