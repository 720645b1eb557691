// The whole program but its entry, so that it is compiled like the rest of the binary's files.
#pragma once

#include <string>
#include <vector>

namespace esp::app {

int run_program(int argc, char** argv);  // the exit code

// A command of ours run within another: these words behind the program's name. Its exit code, or its exception.
int run_words(std::vector<std::string> words);

}  // namespace esp::app
