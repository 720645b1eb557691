#include "apps/espalier/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include <fmt/format.h>

namespace esp::app {

Style::Style(std::FILE* stream) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  on_ = ::isatty(::fileno(stream)) && !(no_colour && *no_colour) && !(term && std::string_view(term) == "dumb");
}

std::string Style::wrap(std::string_view code, std::string_view text) const {
  return on_ ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
}

int terminal_columns(std::FILE* stream) {
  winsize size{};
  return ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Log make_log() {
  const char* level = std::getenv("ESPALIER_LOG");
  return Log(level && *level ? parse_log_level(level) : LogLevel::warn, -1);
}

}  // namespace esp::app
