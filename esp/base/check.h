// ESP_CHECK(condition, "format", …): checks an invariant. A failure is an internal error (a bug in Espalier) and names
// the source location.
#pragma once

#include <string>

#include <fmt/format.h>

namespace esp {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace esp

#define ESP_CHECK(condition, ...)                                                         \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::esp::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
