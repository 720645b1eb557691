// Results for other programs: written whole or not at all.
#pragma once

#include <span>
#include <string>

namespace esp::app {

// From now on what is printed goes to stderr: stdout is for what is written as "-".
void keep_stdout_for_data();

// IoError when something that was printed has not reached stdout.
void check_stdout();

// IoError when the file, or a file in the folder, could not be written: asked before work whose result goes there.
// Nothing is left behind. "-" is stdout.
void check_output_file(const std::string& option, const std::string& path);
void check_output_folder(const std::string& option, const std::string& path);

// UsageError when the file that would be written is one of those that are read.
void check_not_an_input(const std::string& option, const std::string& path, std::span<const std::string> inputs);

// Writes beside the target and renames; a device or pipe is written in place. IoError says what could not be written.
// "-" is stdout.
void write_file(const std::string& path, const std::string& text);

}  // namespace esp::app
