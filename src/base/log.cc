#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace cachalot {

Status SetLogLevel(std::string_view level) {
  for (auto known : {"trace", "debug", "info", "warn", "error", "off"}) {
    if (level == known) {
      spdlog::set_level(spdlog::level::from_str(std::string(level)));
      return Status::Ok();
    }
  }
  return InvalidArgument("log level '{}' is none of trace, debug, info, warn, error, off", level);
}

void InitLog() {
  auto logger = std::make_shared<spdlog::logger>("cachalot", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(spdlog::level::warn);
}

}  // namespace cachalot
