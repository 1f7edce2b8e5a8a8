// The driver of the fuzz targets where there is no libFuzzer: replays every seed, then runs mutated ones.
// Whatever kills the process (signal, sanitizer, a too large allocation, a hang) first writes the input at
// fault to a file and names it.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
#ifdef CACHALOT_SANITIZED
// The sanitizers report first and then abort, which OnSignal catches. No parser needs a single allocation of
// this size for an input of at most a megabyte.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1:max_allocation_size_mb=512";
}
extern "C" const char* __ubsan_default_options() {
  return "abort_on_error=1";
}
#endif

namespace {

constexpr unsigned kMaxSecondsPerInput = 60;

struct Options {
  int64_t runs = 0;     // mutated inputs; 0: only the seeds, or until `seconds` are over
  int64_t seconds = 0;  // 0: no limit
  int64_t seed = 1;
  int64_t max_len = 1 << 20;
  std::vector<std::string> paths;
};

// Read by SaveInput(), which may run in a signal handler.
const char* g_input = nullptr;
size_t g_input_size = 0;
char g_crash_path[512] = "crash.bin";

void SaveInput() {
  static volatile sig_atomic_t saved = 0;
  if (g_input == nullptr || saved) return;
  saved = 1;
  const int fd = ::open(g_crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  size_t done = 0;
  while (fd >= 0 && done < g_input_size) {
    const ssize_t n = ::write(fd, g_input + done, g_input_size - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  const auto say = [](const char* text) { (void)!::write(2, text, std::strlen(text)); };
  say(done == g_input_size && fd >= 0 ? "\nthe input at fault is in "
                                      : "\nthe input at fault could not be written to ");
  say(g_crash_path);
  say("\n");
  if (fd >= 0) ::close(fd);
}

void OnSignal(int number) {
  const char* text =
      number == SIGALRM ? "\nan input took longer than a minute" : "\nan input ended the process";
  (void)!::write(2, text, std::strlen(text));
  SaveInput();
  std::signal(number, SIG_DFL);
  ::raise(number);
}

void CatchEverything() {
  for (const int number : {SIGABRT, SIGALRM}) std::signal(number, OnSignal);
#ifndef CACHALOT_SANITIZED
  for (const int number : {SIGBUS, SIGFPE, SIGILL, SIGSEGV}) std::signal(number, OnSignal);
#endif
}

void RunOne(const std::string& input) {
  // A copy of exactly the input's size: a read past its end is then a read past an allocation.
  const std::vector<uint8_t> exact(input.begin(), input.end());
  g_input = input.data();
  g_input_size = input.size();
  ::alarm(kMaxSecondsPerInput);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  ::alarm(0);
  g_input = nullptr;
}

bool ParseOption(std::string_view argument, std::string_view name, int64_t* out) {
  if (!argument.starts_with(name)) return false;
  const std::string_view value = argument.substr(name.size());
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *out);
  if (error == std::errc() && end == value.data() + value.size() && *out >= 0) return true;
  std::fprintf(stderr, "%s: a whole number of at least 0 is needed\n", std::string(argument).c_str());
  std::exit(2);
}

Options ParseArguments(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (ParseOption(argument, "-runs=", &options.runs) ||
        ParseOption(argument, "-seconds=", &options.seconds) ||
        ParseOption(argument, "-seed=", &options.seed) ||
        ParseOption(argument, "-max_len=", &options.max_len)) {
      continue;
    }
    if (argument.starts_with("-")) {
      std::fprintf(stderr, "usage: %s [-runs=N] [-seconds=S] [-seed=K] [-max_len=BYTES] FILE|FOLDER…\n",
                   argv[0]);
      std::exit(2);
    }
    options.paths.emplace_back(argument);
  }
  return options;
}

// Files in the order of their names, so that a run means the same everywhere.
std::vector<std::string> SeedPaths(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const auto& path : paths) {
    DIR* dir = ::opendir(path.c_str());
    if (dir == nullptr) {
      out.push_back(path);
      continue;
    }
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(dir)) {
      if (entry->d_name[0] != '.') names.push_back(path + "/" + entry->d_name);
    }
    ::closedir(dir);
    std::sort(names.begin(), names.end());
    out.insert(out.end(), names.begin(), names.end());
  }
  return out;
}

std::vector<std::string> ReadSeeds(const std::vector<std::string>& paths) {
  std::vector<std::string> seeds;
  for (const auto& path : SeedPaths(paths)) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
      std::exit(2);
    }
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

}  // namespace

// The same bound on allocations as above, where no sanitizer watches (which would want its own operator new).
#ifndef CACHALOT_SANITIZED
void* operator new(size_t size) {
  constexpr size_t kMaxAllocationBytes = size_t{512} << 20;
  if (size > kMaxAllocationBytes) {
    std::fprintf(stderr, "an allocation of %zu bytes, the limit is %zu", size, kMaxAllocationBytes);
    std::abort();
  }
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
#endif

int main(int argc, char** argv) {
  const Options options = ParseArguments(argc, argv);
  const std::string name = argv[0] + (std::string_view(argv[0]).rfind('/') + 1);
  std::snprintf(g_crash_path, sizeof(g_crash_path), "%s-crash-%d.bin", name.c_str(),
                static_cast<int>(::getpid()));
  CatchEverything();

  const std::vector<std::string> seeds = ReadSeeds(options.paths);
  if (seeds.empty()) {
    std::fprintf(stderr, "%s: no seeds: name files or a folder\n", name.c_str());
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (const auto& seed : seeds) RunOne(seed);

  cachalot::fuzz::Mutator mutator(seeds, static_cast<uint64_t>(options.seed),
                                  static_cast<size_t>(options.max_len));
  const bool mutate = options.runs > 0 || options.seconds > 0;
  int64_t runs = 0;
  while (mutate && (options.runs == 0 || runs < options.runs) &&
         (options.seconds == 0 || seconds() < static_cast<double>(options.seconds))) {
    RunOne(mutator.Next());
    ++runs;
  }
  std::printf("%s: %zu seeds and %lld mutated inputs in %.1f s (seed %lld)\n", name.c_str(), seeds.size(),
              static_cast<long long>(runs), seconds(), static_cast<long long>(options.seed));
  return 0;
}
