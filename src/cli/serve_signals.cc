#include "cli/serve_signals.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include <fcntl.h>

namespace cachalot {
namespace {

std::atomic<int> g_signals{0};
int g_pipe[2] = {-1, -1};
struct sigaction g_old_int {};
struct sigaction g_old_term {};

void OnSignal(int) {
  g_signals.fetch_add(1);
  const char byte = 1;
  [[maybe_unused]] const ssize_t n = ::write(g_pipe[1], &byte, 1);
}

}  // namespace

StopSignals::StopSignals() {
  g_signals = 0;
  if (::pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) g_pipe[0] = g_pipe[1] = -1;
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &g_old_int);
  ::sigaction(SIGTERM, &action, &g_old_term);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGINT, &g_old_int, nullptr);
  ::sigaction(SIGTERM, &g_old_term, nullptr);
  for (int& fd : g_pipe) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
}

int StopSignals::Wait(int32_t timeout_ms) const {
  struct pollfd wait {g_pipe[0], POLLIN, 0};
  if (::poll(&wait, 1, timeout_ms) > 0) {
    char waste[16];
    [[maybe_unused]] const ssize_t n = ::read(g_pipe[0], waste, sizeof(waste));
  }
  return g_signals.load();
}

}  // namespace cachalot
