#include "hub/hub_retry.h"

#include <algorithm>

#include "base/log.h"

namespace cachalot {
namespace {

// What to do about an answer's status: nothing (2xx), try again, or give up with these words.
bool WorthRetrying(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}
bool WorthRetrying(StatusCode code) { return code == StatusCode::kInternal || code == StatusCode::kDeadline; }

Status Refusal(const HubResponseHead& head, const std::string& what, bool has_token) {
  switch (head.status) {
    case 401:
      return has_token ? InvalidArgument("{}: the server does not accept the token (401)", what)
                       : NotFound("{}: no such repository, or it needs a token (401): set HF_TOKEN", what);
    case 403:
      return InvalidArgument("{}: access is refused (403): the repository's page says how to get it{}", what,
                             has_token ? "" : "; then set HF_TOKEN");
    case 404:
      return NotFound("{}: there is no such thing (404)", what);
    default:
      return Internal("{}: the server answers {}", what, head.status);
  }
}

}  // namespace

Result<HubSession> HubSession::Open(HubServerOptions options) {
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  const auto url = ParseHubUrl(options.endpoint);
  if (!url.ok()) return url.status().WithContext("HF_ENDPOINT");
  for (const char c : options.token) {
    if (c <= 0x20 || c >= 0x7f) return InvalidArgument("HF_TOKEN has a character that no token may have");
  }
  HubSession session;
  session.http_ = std::make_unique<HubHttp>(options.http);
  session.options_ = std::make_shared<const HubServerOptions>(std::move(options));
  return session;
}

Status HubSession::Run(const std::function<Outcome()>& attempt, const std::string& what) {
  const HubServerOptions& options = *options_;
  for (int32_t tries = 1;; ++tries) {
    Outcome outcome = attempt();
    if (outcome.gained) tries = 1;
    const bool answered = outcome.head.status != 0;
    const bool refused = answered && outcome.head.status >= 400;
    if (outcome.status.ok() && !refused && !outcome.again) return Status::Ok();
    const bool retry = refused ? WorthRetrying(outcome.head.status) : outcome.again || WorthRetrying(outcome.status.code());
    const Status error = refused ? Refusal(outcome.head, what, !options.token.empty()) : outcome.status.WithContext(what);
    if (!retry || tries >= options.max_attempts) return error;
    int64_t pause = std::min<int64_t>(int64_t{options.first_pause_ms} << std::min(tries - 1, 20), options.longest_pause_ms);
    if (refused && outcome.head.retry_after_s >= 0) {
      if (outcome.head.retry_after_s > options.longest_pause_ms / 1000) {
        return Exhausted("{}: the server asks to wait {} s ({}), which is too long", what, outcome.head.retry_after_s,
                         outcome.head.status);
      }
      pause = outcome.head.retry_after_s * 1000;
    }
    LOG_INFO("{}; again in {} ms", error.message(), pause);
    if (options.on_retry) {
      const std::string why = answered ? error.message() : fmt::format("no answer from {}", http_->last_url().Authority());
      options.on_retry(fmt::format("{}, trying again ({} of {})", why, tries + 1, options.max_attempts));
    }
    RETURN_IF_ERROR(HubPause(pause, options.http.cancelled));
  }
}

Result<HubSession::Text> HubSession::GetText(const std::string& url_text, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const HubUrl url, ParseHubUrl(url_text));
  ASSIGN_OR_RETURN(const HubUrl endpoint, ParseHubUrl(options_->endpoint));
  Text text;
  const auto attempt = [&] {
    Outcome outcome;
    text = {};
    const auto on_head = [&](const HubResponseHead& head) {
      outcome.head = head;
      text.next_url = head.next_url;
      if (head.status == 200 && head.content_length > max_bytes) {
        return Corrupt("an answer of {} bytes, the limit is {}", head.content_length, max_bytes);
      }
      return Status::Ok();
    };
    const auto on_body = [&](std::span<const std::byte> piece) {
      if (static_cast<int64_t>(text.body.size() + piece.size()) > max_bytes) {
        return Corrupt("an answer of more than {} bytes", max_bytes);
      }
      text.body.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      return Status::Ok();
    };
    outcome.status = http_->Get({.url = url, .token = url.SameOrigin(endpoint) ? options_->token : ""}, on_head, on_body);
    if (outcome.status.ok() && outcome.head.status < 400 && outcome.head.status != 200) {
      outcome.status = Corrupt("the server answers {}", outcome.head.status);
    }
    return outcome;
  };
  RETURN_IF_ERROR(Run(attempt, url.Text()));
  return text;
}

}  // namespace cachalot
