// ESP_CHECK(condition, "format", …): what must hold. Its failure is our bug and says where.
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
