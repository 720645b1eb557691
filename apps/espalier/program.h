// The program without `main`. It is a library, so that it is compiled with the same flags as the other files.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

int run_program(int argc, char** argv);  // returns the exit code

// Runs one espalier command from within another. `words` are its arguments without the program's name. Returns its exit
// code or throws.
int run_command_line(std::vector<std::string> words);

}  // namespace esp::app
