// The whole program but its entry, so that it is compiled like the rest of the binary's files.
#pragma once

namespace esp::app {

int run_program(int argc, char** argv);  // the exit code

}  // namespace esp::app
