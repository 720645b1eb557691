// Output files are written completely or not at all: a temporary file is written and then renamed.
#pragma once

#include <span>
#include <string>

namespace esp::app {

// From now on, text printed to stdout goes to stderr. Only data written to the path "-" goes to stdout.
void reserve_stdout_for_data();

// Flushes stdout. IoError: printed text could not be written.
void check_stdout();

// Checks, before long work, that a file can be written at this path, or files into this folder. Leaves no file behind.
// IoError: the path is not writable. "-" is stdout.
void check_output_file(const std::string& option, const std::string& path);
void check_output_folder(const std::string& option, const std::string& path);

// UsageError: the output file is one of the input files.
void check_not_an_input(const std::string& option, const std::string& path, std::span<const std::string> inputs);

// Writes a temporary file beside the target and renames it. Devices and pipes are written directly. "-" is stdout.
// IoError: names the path.
void write_file(const std::string& path, const std::string& text);

}  // namespace esp::app
