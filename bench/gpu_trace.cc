// Where the GPU's time goes: a library that the CUDA driver loads into any program,
//
//   CUDA_INJECTION64_PATH=build/libcachalot_gpu_trace.so build/cachalot bench …
//
// and that prints, when the program ends, the kernels of the last part of the run (the last GPU_TRACE_MS milliseconds of
// activity, 200 by default): calls, time, share; and how long the device stood idle between them. Kernels inside graphs are
// counted like others. With GPU_TRACE_SPLIT_MS=N the run is cut where the device stood idle for so long, and each piece is reported by
// itself: `bench --gpu-tune` waits 20 ms whenever settings change. With GPU_TRACE_LIST=N it also prints the last N of them one by one, in order: how long each took, and
// how long nothing ran in front of it (below 0: it began while others still ran). It is a bench, not a part of the engine, and its
// settings are read from the environment because nothing else reaches a library that is loaded this way.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Span {
  uint64_t start = 0;
  uint64_t end = 0;
  std::string name;
};

std::mutex g_mutex;
std::vector<Span> g_spans;

// "StreamKernel<…>" of "void cachalot::(anonymous namespace)::StreamKernel<…>(…)".
std::string ShortName(const char* symbol) {
  if (symbol == nullptr) return "?";
  int failed = 0;
  char* plain = abi::__cxa_demangle(symbol, nullptr, nullptr, &failed);
  std::string name = failed == 0 ? plain : symbol;
  std::free(plain);
  for (const char* noise : {"void ", "cachalot::", "(anonymous namespace)::"}) {
    for (size_t at = name.find(noise); at != std::string::npos; at = name.find(noise, at)) name.erase(at, std::char_traits<char>::length(noise));
  }
  size_t end = 0;
  for (int depth = 0; end < name.size() && (name[end] != '(' || depth > 0); ++end) depth += (name[end] == '<') - (name[end] == '>');
  return name.substr(0, std::min<size_t>(end, 90));
}

// The last `count`, one a line.
void List(const std::vector<Span>& spans, size_t count) {
  const size_t first = spans.size() - std::min(count, spans.size());
  uint64_t until = first > 0 ? spans[first - 1].end : spans[0].start;
  std::fprintf(stderr, "%9s %9s  %s\n", "idle us", "us", "kernel, in order");
  for (size_t i = first; i < spans.size(); ++i) {
    const Span& span = spans[i];
    std::fprintf(stderr, "%9.2f %9.2f  %s\n", (static_cast<double>(span.start) - static_cast<double>(until)) * 1e-3,
                 static_cast<double>(span.end - span.start) * 1e-3, span.name.c_str());
    until = std::max(until, span.end);
  }
}

void CUPTIAPI OnRequest(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *max_records = 0;
}

void CUPTIAPI OnComplete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(g_mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      g_spans.push_back({kernel->start, kernel->end, ShortName(kernel->name)});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      g_spans.push_back({copy->start, copy->end, "memcpy"});
    }
  }
  std::free(buffer);
}

uint64_t Nanoseconds(const char* name, double usual_ms) {
  const char* wanted = std::getenv(name);
  return static_cast<uint64_t>((wanted != nullptr ? std::atof(wanted) : usual_ms) * 1e6);
}

// The last part of some of the run, in order of their starts.
void Report(const std::vector<Span>& spans) {
  const uint64_t window = Nanoseconds("GPU_TRACE_MS", 200);
  uint64_t last = 0;
  for (const Span& span : spans) last = std::max(last, span.end);
  struct Sum {
    int64_t calls = 0;
    double us = 0;
  };
  std::map<std::string, Sum> sums;
  double busy = 0, gaps = 0;
  int64_t num_gaps = 0;
  uint64_t until = 0, first = 0;
  for (const Span& span : spans) {
    if (span.start + window < last) continue;
    if (until == 0) first = until = span.start;
    Sum& sum = sums[span.name];
    ++sum.calls;
    sum.us += static_cast<double>(span.end - span.start) * 1e-3;
    if (span.start > until) {
      gaps += static_cast<double>(span.start - until) * 1e-3;
      ++num_gaps;
    }
    if (span.end > until) busy += static_cast<double>(span.end - std::max(until, span.start)) * 1e-3;
    until = std::max(until, span.end);
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  const double total = static_cast<double>(last - first) * 1e-3;
  std::fprintf(stderr, "%.0f us: busy %.1f %%, idle %.1f %% in %lld gaps of %.2f us\n", total, 100 * busy / total,
               100 * gaps / total, static_cast<long long>(num_gaps), num_gaps > 0 ? gaps / static_cast<double>(num_gaps) : 0.0);
  std::fprintf(stderr, "%9s %9s %7s  %s\n", "calls", "us each", "share", "kernel");
  for (const auto& [name, sum] : rows) {
    std::fprintf(stderr, "%9lld %9.2f %6.1f%%  %s\n", static_cast<long long>(sum.calls), sum.us / static_cast<double>(sum.calls),
                 100 * sum.us / total, name.c_str());
  }
}

void Report() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(g_mutex);
  std::sort(g_spans.begin(), g_spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  const uint64_t split = Nanoseconds("GPU_TRACE_SPLIT_MS", 1e9);
  std::vector<Span> piece;
  uint64_t until = 0;
  for (const Span& span : g_spans) {
    if (!piece.empty() && span.start > until + split) {
      Report(piece);
      piece.clear();
    }
    piece.push_back(span);
    until = std::max(until, span.end);
  }
  if (!piece.empty()) Report(piece);
  const char* listed = std::getenv("GPU_TRACE_LIST");
  if (listed != nullptr && !g_spans.empty()) List(g_spans, static_cast<size_t>(std::max(0, std::atoi(listed))));
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(&OnRequest, &OnComplete);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  std::atexit(&Report);
  return 1;
}
