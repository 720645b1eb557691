// What `espalier --version` prints.
#pragma once

#include <string>

namespace esp::app {

std::string version_text();
std::string version_number();

}  // namespace esp::app
