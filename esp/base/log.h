// Logger with a rank prefix. A Log is a value: copy it and pass it on; there is no global logger. Each line is written
// to stderr in one call, so that lines of several ranks do not mix. stdout is reserved for data.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace esp {

enum class LogLevel { debug, info, warn, error, off };
LogLevel parse_log_level(std::string_view name);

class Log {
 public:
  Log() = default;
  Log(LogLevel level, int rank, bool colour = false) : level_(level), rank_(rank), colour_(colour) {}

  Log with_rank(int rank) const { return Log(level_, rank, colour_); }
  bool enabled(LogLevel level) const { return level >= level_; }

  template <typename... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::debug, text, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::info, text, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::warn, text, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::error, text, fmt::make_format_args(args...));
  }

 private:
  void write(LogLevel level, fmt::string_view text, fmt::format_args args) const;

  LogLevel level_ = LogLevel::warn;
  int rank_ = -1;  // -1: this process has no rank yet
  bool colour_ = false;
};

}  // namespace esp
