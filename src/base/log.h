// Logging: spdlog to stderr, one line an event. The library logs; it never prints to stdout.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

#include "base/status.h"

namespace cachalot {

// level: trace, debug, info, warn, error, off.
Status SetLogLevel(std::string_view level);
// Sends the default logger to stderr with our line format; call once from main.
void InitLog();

}  // namespace cachalot

#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
