#include "cli/hub_flags.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "base/file.h"
#include "cli/console.h"

namespace cachalot {
namespace {

std::string Text(const char* value) { return value == nullptr ? "" : value; }

bool IsTrue(std::string value) {
  for (char& c : value) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string Megabytes(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6); }

// On a terminal one line that changes, elsewhere a line for each file.
class Progress {
 public:
  explicit Progress(const std::string& repo) : repo_(repo) {}
  ~Progress() {
    if (shown_) PrintNote("\r\x1b[K");
  }

  void Show(const HubProgress& progress) {
    if (!progress.note.empty()) PrintNote((shown_ ? "\r\x1b[K" : "") + progress.note + "\n");
    if (progress.file.empty() || progress.file_done >= progress.file_bytes) return;
    const auto now = Clock::now();
    if (!terminal_) {
      if (progress.file == file_) return;
      file_ = progress.file;
      PrintNote(fmt::format("fetching {} of {} ({} MB)\n", progress.file, repo_, Megabytes(progress.file_bytes)));
      return;
    }
    if (progress.file != file_) {
      file_ = progress.file;
      start_ = now;
      start_bytes_ = progress.done;
    }
    if (shown_ && now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    shown_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = seconds > 0.5 ? static_cast<double>(progress.done - start_bytes_) / seconds : 0;
    PrintNote(fmt::format("\r\x1b[K{}: {} of {} MB, {:.1f} MB/s", progress.file, Megabytes(progress.done),
                          Megabytes(progress.bytes), rate / 1e6));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string repo_;
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  std::string file_;
  Clock::time_point start_{}, last_{};
  int64_t start_bytes_ = 0;
};

}  // namespace

HubOptions HubOptionsFromEnvironment() {
  HubOptions options;
  std::string home = Text(std::getenv("HF_HOME"));
  if (home.empty()) {
    const std::string cache = Text(std::getenv("XDG_CACHE_HOME"));
    home = (cache.empty() ? Text(std::getenv("HOME")) + "/.cache" : cache) + "/huggingface";
  }
  options.cache = Text(std::getenv("HF_HUB_CACHE"));
  if (options.cache.empty()) options.cache = home + "/hub";
  if (const std::string endpoint = Text(std::getenv("HF_ENDPOINT")); !endpoint.empty()) {
    options.server.endpoint = endpoint;
  }
  options.server.token = Text(std::getenv("HF_TOKEN"));
  if (options.server.token.empty()) {
    if (const auto file = ReadTextFile(home + "/token", 4096); file.ok()) options.server.token = *file;
  }
  while (!options.server.token.empty() && std::isspace(static_cast<unsigned char>(options.server.token.back()))) {
    options.server.token.pop_back();
  }
  options.offline = IsTrue(Text(std::getenv("HF_HUB_OFFLINE")));
  return options;
}

void HubFlags::Declare(FlagSet* flags, Extent extent) {
  if (extent == kAll) {
    flags->String("-hf,-hfr,--hf-repo", &repo, "ORG/REPO[:QUANT]",
                  "instead of -m: a model of the hub, fetched once (QUANT: Q4_K_M,\nelse Q8_0, else the first; @REVISION before it)");
  }
  flags->String("-hff,--hf-file", &file, "FILE", "this file of the repository");
  flags->String("-hft,--hf-token", &token, "TOKEN", "for what needs one (default: HF_TOKEN)");
  flags->Switch("--offline", &offline, "only what has been fetched before");
}

Status HubFlags::Resolve() const { return ParseHubModelName(repo).status(); }

Result<HubModel> HubFlags::Pull() const {
  ASSIGN_OR_RETURN(const HubModelName name, ParseHubModelName(repo));
  HubOptions options = HubOptionsFromEnvironment();
  if (!token.empty()) options.server.token = token;
  options.offline = options.offline || offline;
  options.server.http.user_agent = "cachalot/" CACHALOT_VERSION;
  const StopOnInterrupt stop;
  Progress progress(name.repo);
  return PullModel(name, file, options, [&](const HubProgress& state) {
    progress.Show(state);
    return !stop.interrupted();
  });
}

}  // namespace cachalot
