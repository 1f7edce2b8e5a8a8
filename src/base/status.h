// Status and Result<T>: how everything that input or memory pressure can cause is reported.
// Invariant: a Status that is not ok carries a message naming the value, the limit and the place.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace cachalot {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,
  kNotFound,
  kUnsupported,
  kExhausted,
  kCorrupt,
  kDeviceError,
  kCancelled,
  kDeadline,
  kInternal,
};

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "corrupt: model.gguf: ..."
  std::string ToString() const;

  // The same error with the place in front: "place: message".
  Status WithContext(std::string_view place) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

#define CACHALOT_DEFINE_ERROR_(Name, kCode)                                \
  template <typename... Args>                                              \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {        \
    return Status(StatusCode::kCode, fmt::format(format, std::forward<Args>(args)...)); \
  }
CACHALOT_DEFINE_ERROR_(InvalidArgument, kInvalidArgument)
CACHALOT_DEFINE_ERROR_(NotFound, kNotFound)
CACHALOT_DEFINE_ERROR_(Unsupported, kUnsupported)
CACHALOT_DEFINE_ERROR_(Exhausted, kExhausted)
CACHALOT_DEFINE_ERROR_(Corrupt, kCorrupt)
CACHALOT_DEFINE_ERROR_(DeviceError, kDeviceError)
CACHALOT_DEFINE_ERROR_(Cancelled, kCancelled)
CACHALOT_DEFINE_ERROR_(DeadlineExceeded, kDeadline)
CACHALOT_DEFINE_ERROR_(Internal, kInternal)
#undef CACHALOT_DEFINE_ERROR_

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {         // NOLINT: implicit on purpose
    CHECK(!status_.ok()) << "a Result needs a value or an error";
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    CHECK(ok()) << status_.ToString();
    return *value_;
  }
  const T& value() const& {
    CHECK(ok()) << status_.ToString();
    return *value_;
  }
  T&& value() && {
    CHECK(ok()) << status_.ToString();
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define CACHALOT_CONCAT_INNER_(a, b) a##b
#define CACHALOT_CONCAT_(a, b) CACHALOT_CONCAT_INNER_(a, b)

#define RETURN_IF_ERROR(expr)                       \
  do {                                              \
    ::cachalot::Status status_macro_ = (expr);      \
    if (!status_macro_.ok()) return status_macro_;  \
  } while (0)

#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL_(CACHALOT_CONCAT_(result_macro_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.status();          \
  lhs = std::move(tmp).value()

}  // namespace cachalot
