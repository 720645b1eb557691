#include "esp/base/error.h"

#include <cstring>

#include <fmt/format.h>

namespace esp {

std::string errno_text(int error_number) {
  const char* name = strerrorname_np(error_number);
  return fmt::format("{} ({})", strerrordesc_np(error_number) ? strerrordesc_np(error_number) : "unknown error",
                     name ? name : "?");
}

}  // namespace esp
