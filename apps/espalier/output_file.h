// Results for other programs: written whole or not at all.
#pragma once

#include <string>

namespace esp::app {

// From now on what is printed goes to stderr: stdout is for what is written as "-".
void keep_stdout_for_data();

// IoError when something that was printed has not reached stdout.
void check_stdout();

// Writes beside the target and renames. IoError says what could not be written. "-" is stdout.
void write_file(const std::string& path, const std::string& text);

}  // namespace esp::app
