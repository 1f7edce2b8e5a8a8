// cachalot replay: runs the requests of a record (serve --record DIR) again and compares the answers, token by token.
#include <chrono>
#include <deque>
#include <thread>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flag_set.h"
#include "cli/model_flags.h"
#include "cli/session.h"
#include "server/record.h"

namespace cachalot {
namespace {

using WallClock = std::chrono::steady_clock;

struct ReplayFlags {
  ModelFlags model;
  std::string path;
  float speed = 0.0f;
  int32_t max_seqs = 8;
};

// A choice that runs again.
struct Rerun {
  const RecordedRequest* record = nullptr;
  const RecordedChoice* wanted = nullptr;
  size_t choice = 0;
  std::vector<int32_t> token_ids;
  std::string text;
  std::string finish_reason;
  Status error;
};

// Index of the first token that differs; -1 when all are the same.
int64_t FirstDifference(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t common = std::min(a.size(), b.size());
  for (size_t i = 0; i < common; ++i) {
    if (a[i] != b[i]) return static_cast<int64_t>(i);
  }
  return a.size() == b.size() ? -1 : static_cast<int64_t>(common);
}

Status Submit(Session* session, Rerun* rerun) {
  return session->engine()
      .Submit(rerun->wanted->request,
              [rerun](const RequestOutput& output) {
                rerun->token_ids.insert(rerun->token_ids.end(), output.token_ids.begin(), output.token_ids.end());
                rerun->text += output.text;
                if (!output.error.ok()) rerun->error = output.error;
                if (output.finished) rerun->finish_reason = FinishReasonName(output.finish_reason);
              })
      .status();
}

Status RunAll(const ReplayFlags& flags, Session* session, std::deque<Rerun>* reruns, const StopOnInterrupt& stop) {
  const auto start = WallClock::now();
  const int64_t first_us = reruns->empty() ? 0 : reruns->front().record->arrival_us;
  size_t next = 0;
  while (next < reruns->size() || session->engine().HasWork()) {
    if (stop.interrupted()) return Cancelled("interrupted");
    while (next < reruns->size()) {
      Rerun& rerun = (*reruns)[next];
      const auto due = flags.speed <= 0 ? start
                                        : start + std::chrono::microseconds(static_cast<int64_t>(
                                                      static_cast<double>(rerun.record->arrival_us - first_us) / flags.speed));
      if (WallClock::now() < due) {
        if (session->engine().HasWork()) break;
        std::this_thread::sleep_until(std::min(due, WallClock::now() + std::chrono::milliseconds(50)));
        if (stop.interrupted()) return Cancelled("interrupted");
        continue;
      }
      RETURN_IF_ERROR(Submit(session, &rerun).WithContext(rerun.record->id));
      ++next;
    }
    if (session->engine().HasWork()) RETURN_IF_ERROR(session->engine().Step());
  }
  return Status::Ok();
}

Result<bool> Replay(const ReplayFlags& flags, Output* output) {
  ASSIGN_OR_RETURN(const std::vector<RecordedRequest> records, ReadRecords(flags.path));
  ModelOptions options = flags.model.options;
  options.max_seqs = flags.max_seqs;
  ASSIGN_OR_RETURN(const auto session, Session::Open(options));
  std::deque<Rerun> reruns;
  for (const auto& record : records) {
    for (size_t i = 0; i < record.choices.size(); ++i) reruns.push_back({&record, &record.choices[i], i, {}, "", "", {}});
  }
  const auto start = WallClock::now();
  const StopOnInterrupt stop;
  RETURN_IF_ERROR(RunAll(flags, session.get(), &reruns, stop));
  const double seconds = std::chrono::duration<double>(WallClock::now() - start).count();
  int64_t different = 0;
  int64_t tokens = 0;
  std::string text;
  for (const Rerun& rerun : reruns) {
    tokens += static_cast<int64_t>(rerun.token_ids.size());
    const int64_t at = FirstDifference(rerun.token_ids, rerun.wanted->token_ids);
    const bool same = at < 0 && rerun.text == rerun.wanted->text && rerun.finish_reason == rerun.wanted->finish_reason;
    if (same && rerun.error.ok()) continue;
    ++different;
    if (!rerun.error.ok()) {
      text += fmt::format("{} choice {}: {}\n", rerun.record->id, rerun.choice, rerun.error.message());
    } else if (at >= 0) {
      text += fmt::format("{} choice {}: differs from token {} on (of {})\n", rerun.record->id, rerun.choice, at,
                          rerun.wanted->token_ids.size());
    } else {
      text += fmt::format("{} choice {}: same tokens, but ended with {} and not {}\n", rerun.record->id, rerun.choice,
                          rerun.finish_reason, rerun.wanted->finish_reason);
    }
  }
  text += fmt::format("{} requests, {} answers, {} tokens in {:.2f} s: {} the same, {} different\n", records.size(), reruns.size(),
                      tokens, seconds, static_cast<int64_t>(reruns.size()) - different, different);
  RETURN_IF_ERROR(output->Write(text));
  return different == 0;
}

}  // namespace

int ReplayCommand(Args args) {
  ReplayFlags flags;
  FlagSet set("replay DIR -m FILE|FOLDER --deterministic",
              "Runs recorded requests (serve --record DIR) again. Exit code 0: all answers are the same, 1: not.");
  set.Positional("DIR", &flags.path, "the record's folder, or its file");
  set.Float("--speed", &flags.speed, 0, 1e6, "X", "pace of the arrivals (1: as recorded; 0, the default: all at once)");
  set.Int("--max-num-seqs,-np,--parallel", &flags.max_seqs, 1, 1 << 16, "N", "sequences that run at once (default 8)");
  flags.model.Declare(&set);
  Output output;
  if (const Status status = set.Parse(args); !status.ok()) return ExitUsage(status);
  if (set.help_wanted()) return ExitWith(output.Write(set.Help()), output);
  if (flags.path.empty()) return ExitUsage(InvalidArgument("no record given: replay DIR"));
  if (const Status status = flags.model.Resolve(); !status.ok()) return ExitUsage(status);
  if (const int code = flags.model.Fetch(); code != kExitOk) return code;
  const Result<bool> same = Replay(flags, &output);
  if (!same.ok()) return ExitWith(same.status(), output);
  return *same ? kExitOk : kExitError;
}

}  // namespace cachalot
