#include "base/status.h"

namespace cachalot {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kExhausted: return "exhausted";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kDeviceError: return "device_error";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kDeadline: return "deadline";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return fmt::format("{}: {}", StatusCodeName(code_), message_);
}

Status Status::WithContext(std::string_view place) const {
  if (ok()) return *this;
  return Status(code_, fmt::format("{}: {}", place, message_));
}

}  // namespace cachalot
