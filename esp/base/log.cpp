#include "esp/base/log.h"

#include <unistd.h>

#include <ctime>
#include <iterator>

#include "esp/base/table.h"

namespace esp {
namespace {

struct Row {
  std::string_view name;
  LogLevel level;
  std::string_view colour;
};
constexpr Row kLevels[] = {{"debug", LogLevel::debug, "\033[2m"},
                           {"info", LogLevel::info, ""},
                           {"warn", LogLevel::warn, "\033[33m"},
                           {"error", LogLevel::error, "\033[31m"},
                           {"off", LogLevel::off, ""}};

}  // namespace

LogLevel parse_log_level(std::string_view name) {
  return find_row("log level", kLevels, name).level;
}

void Log::write(LogLevel level, fmt::string_view text, fmt::format_args args) const {
  if (!enabled(level)) return;
  const Row& row = kLevels[static_cast<int>(level)];
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  fmt::memory_buffer line;
  auto out = std::back_inserter(line);
  bool paint = colour_ && !row.colour.empty();
  if (paint) fmt::format_to(out, "{}", row.colour);
  fmt::format_to(out, "{:02}:{:02}:{:02}.{:03} {:<5} ", local.tm_hour, local.tm_min, local.tm_sec,
                 now.tv_nsec / 1'000'000, row.name);
  if (rank_ >= 0) fmt::format_to(out, "[rank {}] ", rank_);
  fmt::vformat_to(out, text, args);
  if (paint) fmt::format_to(out, "\033[0m");
  line.push_back('\n');
  // One write per line. A short write or a closed stderr is ignored.
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace esp
