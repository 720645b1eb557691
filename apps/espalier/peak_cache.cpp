#include "apps/espalier/peak_cache.h"

#include <cstdlib>

#include "apps/espalier/version.h"

namespace esp::app {

std::string cache_folder() {
  if (const char* const given = std::getenv("XDG_CACHE_HOME"); given && *given == '/')
    return std::string(given) + "/espalier";
  if (const char* const home = std::getenv("HOME"); home && *home == '/') return std::string(home) + "/.cache/espalier";
  return {};
}

train::MachinePeak machine_peak() {
  return train::MachinePeak(cache_folder(), version_number());
}

}  // namespace esp::app
