// How a call of the C interface went: a cachalot_kv_status and what exactly was wrong.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "cachalot/flashinfer.h"

namespace cachalot {

struct [[nodiscard]] KvOutcome {
  cachalot_kv_status code = CACHALOT_KV_OK;
  std::string message;
  bool ok() const { return code == CACHALOT_KV_OK; }
};

template <typename... Args>
KvOutcome KvFail(cachalot_kv_status code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}

#define RETURN_IF_KV_FAILED(expr)                  \
  do {                                             \
    ::cachalot::KvOutcome outcome_macro_ = (expr); \
    if (!outcome_macro_.ok()) return outcome_macro_; \
  } while (0)

}  // namespace cachalot
