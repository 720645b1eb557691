// Text of `espalier --version`.
#pragma once

#include <string>

namespace esp::app {

std::string version_text();
std::string version_number();
std::string version_id();  // version and commit

}  // namespace esp::app
