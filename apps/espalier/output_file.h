// Results for other programs: written whole or not at all.
#pragma once

#include <string>

namespace esp::app {

// Writes beside the target and renames. IoError says what could not be written. "-" is stdout.
void write_file(const std::string& path, const std::string& text);

}  // namespace esp::app
