#include "cli/console.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace cachalot {
namespace {

std::atomic<bool> g_interrupted{false};
std::atomic<int> g_stoppers{0};
const auto g_start = std::chrono::steady_clock::now();

void OnInterrupt(int) {
  // While someone watches the flag, the first Ctrl-C is theirs.
  if (g_stoppers.load() > 0 && !g_interrupted.exchange(true)) return;
  ::_exit(kExitInterrupted);
}

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

Status Output::Write(std::string_view text) {
  while (!text.empty()) {
    if (closed_) return Cancelled("standard output is closed");
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EPIPE || errno == EBADF) {
      closed_ = true;
    } else if (errno != EINTR) {
      return Internal("writing to standard output: {}", std::strerror(errno));
    }
  }
  return Status::Ok();
}

StopOnInterrupt::StopOnInterrupt() {
  g_interrupted = false;
  ++g_stoppers;
}
StopOnInterrupt::~StopOnInterrupt() {
  --g_stoppers;
}
bool StopOnInterrupt::interrupted() const {
  return g_interrupted.load(std::memory_order_relaxed);
}
void StopOnInterrupt::Clear() {
  g_interrupted = false;
}

void InstallSignalHandlers() {
  std::signal(SIGPIPE, SIG_IGN);
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  ::sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read of the keyboard returns, so that chat can react.
  ::sigaction(SIGINT, &action, nullptr);
}

void PrintNote(std::string_view text) {
  WriteAll(STDERR_FILENO, text);
}

void PrintError(std::string_view message) {
  std::string line = "cachalot: ";
  for (const char c : message) line += c == '\n' || c == '\r' ? ' ' : c;
  PrintNote(line + "\n");
}

int ExitWith(const Status& status, const Output& output) {
  if (status.ok() || output.closed()) return kExitOk;
  PrintError(status.message());
  return kExitError;
}

int ExitUsage(const Status& status) {
  PrintError(status.message());
  return kExitUsage;
}

bool UseColor(std::string_view setting, int fd) {
  if (setting == "always") return true;
  if (setting == "never") return false;
  const char* no_color = std::getenv("NO_COLOR");
  return ::isatty(fd) != 0 && (no_color == nullptr || *no_color == '\0');
}

double SecondsSinceStart() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - g_start).count();
}

}  // namespace cachalot
